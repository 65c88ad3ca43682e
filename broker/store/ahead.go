package store

// aheadBytes and aheadBatches are asked of the disk ahead of a reader that goes on
// where it stopped: enough to keep its queue full while batches lie far apart. More
// is asked for once a half of that has been read.
const (
	aheadBytes   = 4 << 20
	aheadBatches = 512
)

// ahead remembers what was asked for ahead of a reader.
type ahead struct {
	next    int64 // where the reader will go on
	upto    int64 // asked for before this offset
	batches int   // asked for and not read yet, about
	bytes   int
	used    uint64
}

// aheadOf finds the reader that goes on at offset, or takes the place of the one
// that was idle longest.
func (q *queue) aheadOf(offset int64) (a *ahead, known bool) {
	clock, oldest := uint64(0), &q.ahead[0]
	for i := range q.ahead {
		x := &q.ahead[i]
		if x.used > 0 && x.next == offset {
			a, known = x, true
		}
		if x.used < oldest.used {
			oldest = x
		}
		clock = max(clock, x.used)
	}
	if !known {
		a = oldest
		*a = ahead{}
	}
	a.used = clock + 1
	return a, known
}

// readAhead asks the disk for what a reader of old messages will want after this
// plan, across segments. It does so from its second Read on.
func (s *Store) readAhead(res *Result, q *queue, offset int64) {
	q.mu.Lock()
	if q.spanAt(res.Next) == len(q.spans) { // it reads what is being written, or nothing
		q.mu.Unlock()
		return
	}
	a, known := q.aheadOf(offset)
	a.next = res.Next
	for i := range res.plan {
		a.batches--
		a.bytes -= int(res.plan[i].size)
	}
	if a.upto <= res.Next || a.batches < 0 {
		a.upto, a.batches, a.bytes = res.Next, 0, 0
	}
	if !known || a.batches > aheadBatches/2 || a.bytes > aheadBytes/2 {
		q.mu.Unlock()
		return
	}
	from, batches, bytes := a.upto, a.batches, a.bytes
	q.mu.Unlock()

	for spans := 0; spans < maxSpans && batches < aheadBatches && bytes < aheadBytes; spans++ {
		q.mu.Lock()
		var sp span
		if i := q.spanAt(from); i < len(q.spans) {
			sp = q.spans[i]
		}
		q.mu.Unlock()
		if sp.seg == nil || sp.entries != nil { // the rest is new, and in memory most likely
			break
		}
		entries, err := s.entries(q, &sp)
		if err != nil {
			break // whoever reads it will see
		}
		from, batches, bytes = sp.prefetch(entries, from, batches, bytes)
	}
	q.mu.Lock()
	if a.next == res.Next { // else somebody else has it now
		a.upto, a.batches, a.bytes = from, batches, bytes
	}
	q.mu.Unlock()
}

// prefetch asks for batches from an offset on, adjacent ones at once, and returns
// where it stopped.
func (sp *span) prefetch(entries []entry, from int64, batches, bytes int) (upto int64, allBatches, allBytes int) {
	i := find(entries, from-sp.base)
	if i < len(entries) && sp.base+int64(entries[i].delta) < from {
		i++
	}
	for i < len(entries) && batches < aheadBatches && bytes < aheadBytes {
		first, n := entries[i], 0
		for i < len(entries) && entries[i].pos == first.pos+uint32(n) && bytes < aheadBytes {
			n += int(entries[i].size)
			bytes += int(entries[i].size)
			batches++
			i++
		}
		sp.seg.file.Prefetch(int64(first.pos), n)
	}
	if i < len(entries) {
		return sp.base + int64(entries[i].delta), batches, bytes
	}
	return sp.next, batches, bytes
}
