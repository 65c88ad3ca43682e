package store

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// pending is a batch that waits to be written.
type pending struct {
	id     uint64
	batch  []byte
	header batch.Header
	origin uint64
	queue  *queue
	done   func(Appended, error)

	// Set when its group is put together.
	next   int // of the same queue in the group; -1 = none
	result Appended
	err    error
}

// intake is where appends wait for the committer.
type intake struct {
	mu     sync.Mutex
	room   sync.Cond // there is room again
	wake   chan struct{}
	idle   bool // the committer waits for wake
	closed bool
	lastID uint64
	queue  []pending
	bytes  int
	ops    []func()
}

// AppendAsync stores a batch and calls done once, from a goroutine of the store
// or, if the batch is refused at the door, before it returns. Batches that one
// goroutine hands over for one queue are stored in that order. done must not
// block, and must not call methods of the store that wait for an append.
//
// It blocks while more than Options.PendingBytes wait.
func (s *Store) AppendAsync(e Entry, done func(Appended, error)) {
	if _, err := s.enqueue(e, done); err != nil {
		done(Appended{}, err)
	}
}

// enqueue checks the batch and hands it to the committer.
func (s *Store) enqueue(e Entry, done func(Appended, error)) (id uint64, err error) {
	p := pending{batch: e.Batch, origin: e.Origin, done: done}
	if p.header, err = batch.Parse(e.Batch); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrBadBatch, err)
	}
	h := &p.header
	if h.Length != len(e.Batch) {
		return 0, fmt.Errorf("%w: %d bytes after the batch", ErrBadBatch, len(e.Batch)-h.Length)
	}
	if h.Length > s.o.MaxBatchBytes {
		return 0, fmt.Errorf("%w: batch of %d bytes, allowed %d", ErrBadBatch, h.Length, s.o.MaxBatchBytes)
	}
	if err := batch.VerifyBody(e.Batch, h); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrBadBatch, err)
	}
	if p.queue = s.lookup(h.Topic, h.Queue); p.queue == nil {
		return 0, fmt.Errorf("%w: %s/%d", ErrNoQueue, h.Topic, h.Queue)
	}

	in := &s.in
	in.mu.Lock()
	for in.bytes > s.o.PendingBytes && !in.closed {
		in.room.Wait()
	}
	if in.closed {
		in.mu.Unlock()
		return 0, ErrClosed
	}
	in.lastID++
	p.id = in.lastID
	in.queue = append(in.queue, p)
	in.bytes += len(e.Batch)
	in.wakeLocked()
	in.mu.Unlock()
	return p.id, nil
}

func (in *intake) wakeLocked() {
	if in.idle {
		in.idle = false
		in.wake <- struct{}{} // capacity 1, and nobody else sends while idle was true
	}
}

// call is one Append that waits.
type call struct {
	ch  chan struct{}
	res Appended
	err error
	fn  func(Appended, error)
}

// Append stores a batch and waits until it is as durable as the options say. A
// batch that has not begun to be written is withdrawn when ctx ends; else Append
// waits for the outcome.
func (s *Store) Append(ctx context.Context, e Entry) (Appended, error) {
	c, _ := s.calls.Get().(*call)
	if c == nil {
		c = &call{ch: make(chan struct{}, 1)}
		c.fn = func(a Appended, err error) {
			c.res, c.err = a, err
			c.ch <- struct{}{}
		}
	}
	defer s.calls.Put(c)
	id, err := s.enqueue(e, c.fn)
	if err != nil {
		return Appended{}, err
	}
	select {
	case <-c.ch:
	case <-ctx.Done():
		if s.in.withdraw(id) {
			return Appended{}, fmt.Errorf("append: %w", context.Cause(ctx))
		}
		<-c.ch
	}
	return c.res, c.err
}

// withdraw takes a batch back that the committer does not have yet.
func (in *intake) withdraw(id uint64) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for i := range in.queue {
		if in.queue[i].id == id {
			in.bytes -= len(in.queue[i].batch)
			in.queue = append(in.queue[:i], in.queue[i+1:]...)
			in.room.Broadcast()
			return true
		}
	}
	return false
}

// onCommitter runs f between two groups and waits for it.
func (s *Store) onCommitter(f func()) error {
	done := make(chan struct{})
	s.in.mu.Lock()
	if s.in.closed {
		s.in.mu.Unlock()
		return ErrClosed
	}
	s.in.ops = append(s.in.ops, func() { f(); close(done) })
	s.in.wakeLocked()
	s.in.mu.Unlock()
	<-done
	return nil
}

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
}

// commitLoop writes groups until the store is closed and nothing waits.
func (s *Store) commitLoop() {
	in := &s.in
	var taken []pending
	for {
		in.mu.Lock()
		for len(in.queue) == 0 && len(in.ops) == 0 {
			if in.closed {
				in.mu.Unlock()
				return
			}
			in.idle = true
			in.mu.Unlock()
			<-in.wake
			in.mu.Lock()
		}
		ops := in.ops
		in.ops = nil
		taken, in.queue = in.queue, taken[:0]
		in.mu.Unlock()

		for _, op := range ops {
			op()
		}
		for rest := taken; len(rest) > 0; {
			n, bytes := s.groupSize(rest)
			s.commit(rest[:n], bytes)
			in.mu.Lock()
			in.bytes -= bytes
			in.room.Broadcast()
			in.mu.Unlock()
			for i := range rest[:n] {
				rest[i].done(rest[i].result, rest[i].err)
			}
			rest = rest[n:]
		}
		in.gather(len(taken))
		clear(taken)
	}
}

// gather lets those that were just answered hand over their next batches before
// the next group is closed: one sync for all of them, not one for the first.
func (in *intake) gather(last int) {
	const rounds = 8
	for before, i := 0, 0; last > 1 && i < rounds; i++ {
		runtime.Gosched()
		in.mu.Lock()
		now := len(in.queue)
		in.mu.Unlock()
		if now == before || now >= last {
			return
		}
		before = now
	}
}

// groupSize returns how many of ps are written together, at least one.
func (s *Store) groupSize(ps []pending) (n, bytes int) {
	for n < len(ps) && (n == 0 || bytes+len(ps[n].batch) <= s.groupBytes) {
		bytes += len(ps[n].batch)
		n++
	}
	return n, bytes
}

// commit writes one group and sets result and err of each batch.
func (s *Store) commit(group []pending, bytes int) {
	w := &s.w
	if err := s.prepare(bytes); err != nil {
		for i := range group {
			group[i].err = err
		}
		return
	}
	now := max(s.o.Now().UnixMilli(), w.lastTime)
	w.lastTime = now

	s.chain(group)
	k := s.cache.next(w.seg.id, w.pos, bytes)
	n := k.n
	for _, q := range w.group {
		for i := q.head; i >= 0; i = group[i].next {
			n = s.place(&group[i], k, n, now)
		}
	}
	if n > k.n {
		if err := s.write(k, n); err != nil {
			s.undo(group, err)
			return
		}
	}
	s.publish(k, n)
	for i := range group {
		p := &group[i]
		if p.err == nil && !p.result.Duplicate {
			s.noteKeys(p)
		}
	}
}

// chain links the batches of each queue, so that they are written side by side.
func (s *Store) chain(group []pending) {
	w := &s.w
	w.group = w.group[:0]
	for i := range group {
		p := &group[i]
		p.next = -1
		q := p.queue
		if q.gone { // only the committer changes it
			p.err = fmt.Errorf("%w: %s/%d", ErrNoQueue, q.id.Topic, q.id.ID)
			continue
		}
		if q.head < 0 {
			q.head = i
			q.fresh = q.fresh[:0]
			w.group = append(w.group, q)
		} else {
			group[q.tail].next = i
		}
		q.tail = i
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
func (s *Store) undo(group []pending, err error) {
	w := &s.w
	for i := range group {
		p := &group[i]
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
		q.head = -1
		q.fresh = q.fresh[:0]
	}
}

// publish shows the group to readers and wakes those that wait.
func (s *Store) publish(k *chunk, n int) {
	w := &s.w
	if n > k.n {
		s.cache.extend(k, n)
		s.activeEnd.Store(w.pos)
		s.activeLast.Store(w.lastTime)
	}
	w.wake = w.wake[:0]
	for _, q := range w.group {
		q.head = -1
		if len(q.fresh) == 0 {
			continue
		}
		w.wake = q.publish(w.seg, w.wake)
	}
	for _, waiter := range w.wake {
		waiter.Wake()
	}
	clear(w.wake)
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

// prepare makes sure that the segment can take another group of so many bytes.
func (s *Store) prepare(bytes int) error {
	w := &s.w
	if w.abandon {
		if err := s.leave(); err != nil {
			return s.writeFailed(fmt.Errorf("leave segment %s: %w", w.seg.name, err))
		}
	} else if w.pos > 0 && w.pos+int64(bytes) > s.o.SegmentBytes {
		if err := s.roll(); err != nil {
			return s.writeFailed(fmt.Errorf("begin a segment after %s: %w", w.seg.name, err))
		}
	}
	return s.checkSpace(bytes)
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
