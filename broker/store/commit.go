package store

import (
	"fmt"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// writer is what the committer owns: the segment being written and what goes
// into the next group.
type writer struct {
	seg      *segment
	pos      int64 // end of the log in seg
	size     int64 // of the file
	lastTime int64 // store times never go back
	// abandon is set when it is not known what the end of the segment holds, for
	// a write or sync failed: it is sealed before anything is acknowledged.
	abandon bool
	dedup   dedup
	group   []*queue // with batches in the group being made
	wake    []*Waiter
	keys    []keyEntry
	full    bool  // the disk is
	checkAt int64 // size of the file at which free space is looked at again
	taken   []*pending
	graves  map[Queue]address // deleted while seg was written
	// Turns that were not the committer's, since when.
	alone      int
	aloneSince time.Time
}

// commitLoop writes groups until the store is closed and nothing waits.
func (s *Store) commitLoop() {
	in := &s.in
	for in.wait() {
		for _, op := range in.takeOps() {
			s.slow.begin()
			op()
			s.slow.end()
		}
		in.gather(s.commitTaken(s.wakeReaders))
	}
}

// commitHere does the work of the committer, whose turn the caller has: a goroutine
// that sleeps takes longer to come than a batch to be written. Where that includes
// waiting for the disk the caller has better things to do; and so has one that brings
// many batches without waiting for them, which the committer makes groups of.
func (s *Store) commitHere(waits bool) {
	in, w := &s.in, &s.w
	if now := time.Now(); now.Sub(w.aloneSince) > time.Millisecond {
		w.aloneSince, w.alone = now, 0
	}
	w.alone++
	if s.o.Durability == Fsync || in.hasOps.Load() || !waits && w.alone > aloneMost {
		in.wake <- struct{}{}
		return
	}
	var room [4]*Waiter
	readers := room[:0]
	s.commitTaken(func() { readers = append(readers, s.w.wake...) })
	if in.idle.Store(true); (in.pending() || in.closed.Load()) && in.begin() {
		in.wake <- struct{}{}
	}
	for i, r := range readers {
		r.Wake(i < calmReaders)
	}
}

// aloneMost batches a millisecond are committed by who brings them without waiting.
const aloneMost = 16

// calmReaders are served by an appender that committed by itself; more would keep it.
const calmReaders = 2

// wakeReaders is used by the committer.
func (s *Store) wakeReaders() {
	for _, r := range s.w.wake {
		r.Wake(false)
	}
}

// commitTaken commits and answers what waits, and returns how much that was. wake
// wakes the readers in w.wake, or notes them; they come last, for what is made ready
// to run last runs first.
func (s *Store) commitTaken(wake func()) (count, total int) {
	in, w := &s.in, &s.w
	w.taken = in.take(w.taken[:0])
	for rest := w.taken; len(rest) > 0; {
		n, bytes := s.groupSize(rest)
		s.slow.begin()
		s.commit(rest[:n], bytes)
		s.slow.end()
		in.release(bytes)
		total += bytes
		for _, p := range rest[:n] {
			s.answer(p)
		}
		wake()
		clear(w.wake)
		w.wake = w.wake[:0]
		rest = rest[n:]
	}
	count = len(w.taken)
	clear(w.taken)
	return count, total
}

// answer calls done. p may be used for another append at once.
func (s *Store) answer(p *pending) {
	done, result, err := p.done, p.result, p.err
	if p.pooled {
		*p = pending{}
		s.nodes.Put(p)
	}
	done(result, err)
}

// groupSize returns how many of ps are written together, at least one.
func (s *Store) groupSize(ps []*pending) (n, bytes int) {
	for n < len(ps) && (n == 0 || bytes+len(ps[n].batch) <= s.groupBytes) {
		bytes += len(ps[n].batch)
		n++
	}
	return n, bytes
}

// commit writes one group and sets result and err of each batch.
func (s *Store) commit(group []*pending, bytes int) {
	w := &s.w
	if err := s.prepare(group, bytes); err != nil {
		for _, p := range group {
			p.err = err
		}
		return
	}
	now := max(s.o.Now().UnixMilli(), w.lastTime)
	w.lastTime = now

	s.chain(group)
	k := s.cache.next(w.seg.id, w.pos, bytes)
	n := k.n
	for _, q := range w.group {
		for p := q.head; p != nil; p = p.next {
			n = s.place(p, k, n, now)
		}
	}
	if n > k.n {
		if err := s.write(k, n); err != nil {
			s.undo(group, err)
			return
		}
		s.setFull(false, nil)
	}
	s.publish(k, n)
	for _, p := range group {
		if p.err == nil && !p.result.Duplicate {
			s.noteKeys(p)
		}
	}
}

// chain links the batches of each queue, so that they are written side by side.
func (s *Store) chain(group []*pending) {
	w := &s.w
	w.group = w.group[:0]
	for _, p := range group {
		q := p.queue
		if q.gone { // only the committer changes it
			p.err = fmt.Errorf("%w: %s/%d", ErrNoQueue, q.id.Topic, q.id.ID)
			continue
		}
		if q.head == nil {
			q.head = p
			q.fresh = q.fresh[:0]
			w.group = append(w.group, q)
		} else {
			q.tail.next = p
		}
		q.tail = p
	}
}

// place gives p its offset and copies it to n of the chunk, unless it is a repeat.
func (s *Store) place(p *pending, k *chunk, n int, now int64) int {
	w, q, h := &s.w, p.queue, &p.header
	if p.origin != 0 {
		if a, ok := w.dedup.origins[p.origin]; ok {
			p.result = a
			p.result.Duplicate = true
			return n
		}
	}
	key := windowKey{h.ProducerID, q}
	if h.ProducerID != 0 {
		var dup bool
		if p.result, dup, p.err = w.dedup.check(key, h.ProducerEpoch, h.BaseSequence, h.Count); dup || p.err != nil {
			return n
		}
	}
	pos := k.start + int64(n)
	copy(k.buf[n:], p.batch)
	batch.PutStamp(k.buf[n:], batch.Stamp{
		BaseOffset: q.assign, StoreTime: now, Origin: p.origin,
		Segment: w.seg.id, Position: uint32(pos), Group: uint32(w.pos),
	})
	p.result = Appended{Offset: q.assign, StoreTime: now}
	base := q.next
	if len(q.active) > 0 {
		base = q.base
	}
	if len(q.fresh) == 0 {
		q.freshTimes[0] = now
	}
	q.freshTimes[1] = now
	q.fresh = append(q.fresh, entry{delta: uint32(q.assign - base), pos: uint32(pos), size: uint32(h.Length), tags: tagBits(h)})
	q.assign += int64(h.Count)
	if h.ProducerID != 0 {
		w.dedup.add(key, h.ProducerEpoch, sequence{seq: h.BaseSequence, offset: p.result.Offset, time: now, count: uint32(h.Count)})
	}
	if p.origin != 0 {
		w.dedup.addOrigin(p.origin, p.result)
	}
	return n + h.Length
}

func tagBits(h *batch.Header) uint32 {
	if h.Flags&batch.FlagManyTags != 0 {
		return allTags
	}
	var bits uint32
	for i := range h.Tags() {
		bits |= tagBit(h.Tag(i))
	}
	return bits
}

// write writes what the chunk holds from k.n to n, and makes it durable if it
// shall be.
func (s *Store) write(k *chunk, n int) error {
	w := &s.w
	end := k.start + int64(n)
	padded := (end + 8 + page - 1) / page * page
	pad := n + int(padded-end)
	clear(k.buf[n:pad])
	if _, err := w.seg.file.WriteAt(k.buf[k.n:pad], w.pos); err != nil {
		// What was written of the group must not be taken for a part of the log.
		if terr := w.seg.file.Truncate(w.pos); terr != nil {
			w.abandon = true
		} else {
			w.size = w.pos
		}
		return s.writeFailed(err)
	}
	w.size = max(w.size, padded)
	if s.o.Durability == Fsync {
		if err := w.seg.file.Sync(); err != nil {
			// The system may have dropped the pages: what the file holds from
			// here on is unknown.
			w.abandon = true
			return s.writeFailed(err)
		}
	}
	w.pos = end
	return nil
}

func (s *Store) writeFailed(err error) error {
	if vfs.IsFull(err) {
		s.setFull(true, err)
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	s.o.Report(Event{Kind: WriteFailed, File: s.w.seg.name, Position: s.w.pos, Err: err})
	return fmt.Errorf("write log: %w", err)
}

// undo takes a group back that could not be written.
func (s *Store) undo(group []*pending, err error) {
	w := &s.w
	w.dedup.undo()
	for _, p := range group {
		switch {
		case p.err != nil:
		case p.result.Duplicate && p.result.Offset < p.queue.next:
			// A repeat of what was stored before this group.
		default:
			if p.header.ProducerID != 0 {
				w.dedup.remove(windowKey{p.header.ProducerID, p.queue}, p.queue.next)
			}
			if a, ok := w.dedup.origins[p.origin]; ok && a.Offset >= p.queue.next {
				w.dedup.removeOrigin(p.origin)
			}
			p.err = err
			p.result = Appended{}
		}
	}
	for _, q := range w.group {
		q.assign = q.next
		q.head, q.tail = nil, nil
		q.fresh = q.fresh[:0]
	}
}

// publish shows the group to readers and notes those that wait for it.
func (s *Store) publish(k *chunk, n int) {
	w := &s.w
	w.dedup.keep()
	if n > k.n {
		s.cache.extend(k, n)
		s.activeEnd.Store(w.pos)
		s.activeLast.Store(w.lastTime)
	}
	for _, q := range w.group {
		q.head, q.tail = nil, nil
		if len(q.fresh) == 0 {
			continue
		}
		w.wake = q.publish(w.seg, w.wake)
	}
}

// noteKeys indexes a stored batch by its keys.
func (s *Store) noteKeys(p *pending) {
	h := &p.header
	if h.Keys() == 0 && h.Flags&batch.FlagManyKeys == 0 {
		return
	}
	k := keyEntry{queue: p.queue, offset: p.result.Offset}
	s.keysMu.Lock()
	defer s.keysMu.Unlock()
	if h.Flags&batch.FlagManyKeys != 0 {
		k.hash = anyKey
		s.w.keys = append(s.w.keys, k)
		return
	}
	for i := range h.Keys() {
		k.hash = h.Key(i)
		s.w.keys = append(s.w.keys, k)
	}
}

// maxDelta bounds how far the offsets of a queue advance in one segment: an entry
// has 32 bits for that, and a group adds less than the other half of them.
const maxDelta = 1 << 31

// prepare makes sure that the segment can take another group of so many bytes.
func (s *Store) prepare(group []*pending, bytes int) error {
	w := &s.w
	if w.abandon {
		if err := s.leave(); err != nil {
			return s.writeFailed(fmt.Errorf("leave segment %s: %w", w.seg.name, err))
		}
	} else if w.pos > 0 && (w.pos+int64(bytes) > s.o.SegmentBytes || farAdvanced(group)) {
		if err := s.roll(); err != nil {
			return s.writeFailed(fmt.Errorf("begin a segment after %s: %w", w.seg.name, err))
		}
	}
	return s.checkSpace(bytes)
}

func farAdvanced(group []*pending) bool {
	for _, p := range group {
		if q := p.queue; len(q.active) > 0 && q.assign-q.base > maxDelta {
			return true
		}
	}
	return false
}

// checkSpace refuses to let the log grow into what is kept free for the state.
func (s *Store) checkSpace(bytes int) error {
	w := &s.w
	grow := w.pos + int64(bytes) + padding - w.size
	if grow <= 0 || !w.full && w.size < w.checkAt {
		return nil
	}
	free, err := s.fs.Free(s.logDir)
	if err != nil {
		return nil //nolint:nilerr // not known: the write will tell
	}
	if free-grow < s.o.MinFreeBytes {
		err := fmt.Errorf("%d bytes free, %d are kept for the state", free, s.o.MinFreeBytes)
		s.setFull(true, err)
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	w.checkAt = w.size + min(4<<20, (free-s.o.MinFreeBytes)/2)
	s.setFull(false, nil)
	return nil
}

func (s *Store) setFull(full bool, err error) {
	if s.w.full == full {
		return
	}
	s.w.full = full
	kind := SpaceBack
	if full {
		kind = SpaceLow
	}
	s.o.Report(Event{Kind: kind, File: s.logDir, Err: err})
}
