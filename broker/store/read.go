package store

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/tacitmq/tacit/internal/batch"
)

// Result is what Read found. The zero value is ready; it may be used again after
// Release.
type Result struct {
	// Batches in order, stamped and whole: the first may begin before the
	// offset asked for. They must not be changed, and are valid until Release.
	Batches [][]byte
	// Next is the offset to read from next: past the last batch, and past
	// batches that the filter left out.
	Next int64
	// Min is the offset of the oldest message in the queue, Max the one that
	// the next message will get.
	Min, Max int64

	store  *Store
	chunks []*chunk
	bufs   [][]byte
	plan   []planned
}

// planned is a batch that Read wants.
type planned struct {
	seg  *segment
	base int64
	pos  uint32
	size uint32
}

// Release gives the memory of the batches back. It may be called more than once.
func (r *Result) Release() {
	if s := r.store; s != nil {
		if len(r.chunks) > 0 {
			s.cache.release(r.chunks)
		}
		for _, b := range r.bufs {
			s.bufs.put(b)
		}
		r.store = nil
	}
	clear(r.Batches)
	clear(r.chunks)
	clear(r.bufs)
	clear(r.plan)
	r.Batches, r.chunks, r.bufs, r.plan = r.Batches[:0], r.chunks[:0], r.bufs[:0], r.plan[:0]
}

const (
	// maxPlanned bounds the batches of one Read.
	maxPlanned = 1024
	// maxSpans bounds the segments one Read looks at.
	maxSpans = 64
)

// Read reads batches of q from offset on, up to maxBytes but at least one. If
// filter is not empty, batches that hold no tag with such a hash (see
// batch.Hash) are left out. At the end of the queue it returns no batches and no
// error; it may also return none, but with a greater Next, where the filter left
// out much or stored data is damaged. An offset outside of [Min, Max] is
// ErrOffsetRange, with Min and Max set. res is released first.
func (s *Store) Read(res *Result, q Queue, offset int64, maxBytes int, filter []uint64) error {
	res.Release()
	res.store = s
	qu := s.find(q)
	if qu == nil {
		return fmt.Errorf("%w: %s/%d", ErrNoQueue, q.Topic, q.ID)
	}
	if err := s.makePlan(res, qu, offset, maxBytes, filter); err != nil {
		return err
	}
	s.readAhead(res, qu, offset)
	return s.fetch(res, qu, offset, filter)
}

// makePlan chooses the batches to read.
func (s *Store) makePlan(res *Result, q *queue, offset int64, maxBytes int, filter []uint64) error {
	tags := allTags
	if len(filter) > 0 {
		tags = 0
		for _, f := range filter {
			tags |= tagBit(f)
		}
	}
	p := planner{res: res, left: maxBytes, tags: tags, offset: offset}
	from := offset
	for spans := 0; ; spans++ {
		sp, active, err := q.at(from, res, &p)
		if err != nil || active {
			return err
		}
		if sp.seg == nil || p.full || spans == maxSpans {
			return nil
		}
		entries := sp.entries
		if entries == nil {
			if entries, err = s.entries(q, &sp); err != nil {
				return err
			}
			p.take(sp.seg, sp.base, sp.next, entries)
		}
		if from = sp.next; p.full {
			return nil
		}
	}
}

// at looks for the part of the queue that holds offset. What is in memory it
// plans itself, while the entries cannot change.
func (q *queue) at(offset int64, res *Result, p *planner) (sp span, active bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		return sp, false, fmt.Errorf("%w: %s/%d", ErrNoQueue, q.id.Topic, q.id.ID)
	}
	res.Min, res.Max = q.minLocked(), q.next
	if offset == p.offset {
		res.Next = offset
		if offset < res.Min || offset > res.Max {
			return sp, false, fmt.Errorf("%w: %d of %s/%d, which holds %d to %d", ErrOffsetRange, offset, q.id.Topic, q.id.ID, res.Min, res.Max)
		}
	}
	if offset >= q.next {
		return sp, false, nil
	}
	if i := q.spanAt(offset); i < len(q.spans) {
		sp = q.spans[i]
		if sp.entries != nil {
			p.take(sp.seg, sp.base, sp.next, sp.entries)
		}
		return sp, false, nil
	}
	if len(q.active) > 0 {
		p.take(q.seg, q.base, q.next, q.active)
	} else {
		res.Next = q.next
	}
	return sp, true, nil
}

// spanAt returns the place of the last span that begins at or before offset, or of
// the first one; past the end if offset is behind all.
func (q *queue) spanAt(offset int64) int {
	return sort.Search(len(q.spans), func(i int) bool { return q.spans[i].next > offset })
}

// planner chooses batches until it is full.
type planner struct {
	res    *Result
	left   int // bytes
	tags   uint32
	offset int64
	full   bool
}

// take chooses from entries, which end at next.
func (p *planner) take(seg *segment, base, next int64, entries []entry) {
	i := 0
	if p.offset > base {
		i = find(entries, p.offset-base)
	}
	for ; i < len(entries); i++ {
		e := &entries[i]
		at := base + int64(e.delta)
		if e.tags&p.tags == 0 && p.tags != allTags {
			p.res.Next = max(p.res.Next, at)
			continue
		}
		if len(p.res.plan) > 0 && int(e.size) > p.left || len(p.res.plan) == maxPlanned {
			p.full = true
			p.res.Next = at
			return
		}
		p.left -= int(e.size)
		p.res.plan = append(p.res.plan, planned{seg: seg, base: at, pos: e.pos, size: e.size})
	}
	p.res.Next = next
}

// fetch reads the planned batches: from memory if they are there.
func (s *Store) fetch(res *Result, q *queue, offset int64, filter []uint64) error {
	if len(res.plan) == 0 {
		return nil
	}
	cold := 0
	s.cache.mu.Lock()
	for i := range res.plan {
		p := &res.plan[i]
		var k *chunk
		if n := len(res.chunks); n > 0 && res.chunks[n-1].holds(p) {
			k = res.chunks[n-1]
		} else if k = s.cache.find(p.seg.id, int64(p.pos), int(p.size)); k != nil {
			k.refs++
			res.chunks = append(res.chunks, k)
		}
		if k == nil {
			cold += int(p.size)
			res.Batches = append(res.Batches, nil)
			continue
		}
		at := int64(p.pos) - k.start
		res.Batches = append(res.Batches, k.buf[at:at+int64(p.size):at+int64(p.size)])
	}
	s.cache.mu.Unlock()
	if cold > 0 {
		if err := s.fetchCold(res, q, cold); err != nil {
			return err
		}
	}
	return res.sift(offset, filter)
}

func (k *chunk) holds(p *planned) bool {
	return k.seg == p.seg.id && int64(p.pos) >= k.start && int64(p.pos)+int64(p.size) <= k.start+int64(k.n)
}

// fetchCold reads what is not in memory, adjacent batches at once.
func (s *Store) fetchCold(res *Result, q *queue, size int) error {
	buf := s.bufs.get(size)
	res.bufs = append(res.bufs, buf)
	runs := 0
	res.eachRun(func(int, int) bool { runs++; return true })
	if runs > 2 {
		res.eachRun(func(i, j int) bool {
			first, last := &res.plan[i], &res.plan[j-1]
			first.seg.file.Prefetch(int64(first.pos), int(last.pos+last.size-first.pos))
			return true
		})
	}
	var failed error
	stop := 0 // the batch that failed
	at := 0
	res.eachRun(func(i, j int) bool {
		first, last := &res.plan[i], &res.plan[j-1]
		n := int(last.pos + last.size - first.pos)
		b := buf[at : at+n]
		at += n
		got, err := first.seg.file.ReadAt(b, int64(first.pos))
		clear(b[got:])
		for ; i < j; i++ {
			p := &res.plan[i]
			one := b[p.pos-first.pos:][:p.size:p.size]
			bad := checkStored(one, p)
			if bad == nil {
				res.Batches[i] = one
				continue
			}
			switch {
			case !s.holds(q, p):
				failed = fmt.Errorf("%w: %d of %s/%d was dropped just now", ErrOffsetRange, p.base, q.id.Topic, q.id.ID)
				return false
			case err != nil && !errors.Is(err, io.EOF):
				lost, err := s.readAgain(p, one)
				if err != nil && !lost {
					failed, stop = err, i
					return false
				}
				if bad = checkStored(one, p); err == nil && bad == nil {
					res.Batches[i] = one
					continue
				}
				if err != nil {
					bad = fmt.Errorf("%w: %w", ErrDamaged, err)
				}
			}
			p.seg.reportDamage(s.o.Report, int64(p.pos), int64(p.size), bad)
		}
		return true
	})
	if stop > 0 { // what is before it can be read
		res.Next, failed = res.plan[stop].base, nil
		clear(res.Batches[stop:])
		res.plan, res.Batches = res.plan[:stop], res.Batches[:stop]
	}
	return failed
}

// eachRun calls f with the ranges of planned batches that are adjacent in a file
// and not in memory.
func (r *Result) eachRun(f func(i, j int) bool) {
	for i := 0; i < len(r.plan); {
		if r.Batches[i] != nil {
			i++
			continue
		}
		j := i + 1
		for j < len(r.plan) && r.Batches[j] == nil && r.plan[j].seg == r.plan[i].seg && r.plan[j].pos == r.plan[j-1].pos+r.plan[j-1].size {
			j++
		}
		if !f(i, j) {
			return
		}
		i = j
	}
}

// checkStored checks a batch read from disk.
func checkStored(b []byte, p *planned) error {
	h, err := batch.Parse(b)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err := batch.Verify(b, &h); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if h.Length != int(p.size) || h.Stamp.BaseOffset != p.base || h.Stamp.Segment != p.seg.id || h.Stamp.Position != p.pos {
		return fmt.Errorf("%w: another batch is in its place", ErrDamaged)
	}
	return nil
}

// holds reports whether the segment of p is still part of the log: retention may
// drop it, and the file be written anew, while it is being read.
func (s *Store) holds(q *queue, p *planned) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.gone && p.base >= q.minLocked()
}

// sift removes batches that are damaged or not wanted.
func (r *Result) sift(offset int64, filter []uint64) error {
	kept := r.Batches[:0]
	for _, b := range r.Batches {
		if b == nil {
			continue
		}
		h, err := batch.Parse(b)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if h.NextOffset() > offset && h.MayMatch(filter) {
			kept = append(kept, b)
		}
	}
	clear(r.Batches[len(kept):])
	r.Batches = kept
	return nil
}

// find returns a queue, or nil.
func (s *Store) find(q Queue) *queue {
	s.qmu.RLock()
	defer s.qmu.RUnlock()
	return s.queues[q]
}

// lookup is find without making a string.
func (s *Store) lookup(topic []byte, id int32) *queue {
	s.qmu.RLock()
	defer s.qmu.RUnlock()
	return s.queues[Queue{Topic: string(topic), ID: id}]
}
