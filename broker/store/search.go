package store

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/tacitmq/tacit/internal/batch"
)

// Bounds returns the offset of the oldest message of q and the one that the next
// message will get.
func (s *Store) Bounds(q Queue) (minOffset, maxOffset int64, err error) {
	if qu := s.find(q); qu != nil {
		if lo, hi, ok := qu.bounds(); ok {
			return lo, hi, nil
		}
	}
	return 0, 0, fmt.Errorf("%w: %s/%d", ErrNoQueue, q.Topic, q.ID)
}

// HasRoom returns ErrNoSpace if so many bytes more would take what is kept free on
// the disk for offsets and leases. Appends look themselves; it is for large values
// of the state.
func (s *Store) HasRoom(bytes int) error {
	free, err := s.fs.Free(s.logDir)
	if err != nil {
		return nil //nolint:nilerr // not known: the write will tell
	}
	if free-int64(bytes) < s.o.MinFreeBytes {
		return fmt.Errorf("%w: %d bytes free, %d are kept", ErrNoSpace, free, s.o.MinFreeBytes)
	}
	return nil
}

// endOf returns the end of a queue for the state, which refuses offsets beyond.
func (s *Store) endOf(q Queue) (int64, bool) {
	qu := s.find(q)
	if qu == nil {
		return 0, false
	}
	_, end, ok := qu.bounds()
	return end, ok
}

// SearchByTime returns the offset of the first batch of q that was stored at or
// after the given time in Unix milliseconds, or the end of the queue.
func (s *Store) SearchByTime(q Queue, unixMilli int64) (int64, error) {
	qu := s.find(q)
	if qu == nil {
		return 0, fmt.Errorf("%w: %s/%d", ErrNoQueue, q.Topic, q.ID)
	}
	for {
		offset, err := s.searchByTime(qu, unixMilli)
		// What retention drops meanwhile is searched no more.
		if !errors.Is(err, ErrOffsetRange) {
			return offset, err
		}
	}
}

func (s *Store) searchByTime(qu *queue, unixMilli int64) (int64, error) {
	sp, end, err := qu.spanByTime(unixMilli)
	if err != nil {
		return 0, err
	}
	if sp.seg == nil {
		return end, nil
	}
	entries := sp.entries
	if entries == nil {
		if entries, err = s.entries(qu, &sp); err != nil {
			return 0, err
		}
	}
	lo, hi := 0, len(entries)
	for lo < hi {
		mid := (lo + hi) / 2
		t, err := s.storeTime(qu, &sp, &entries[mid])
		if err != nil {
			return 0, err
		}
		if t < unixMilli {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(entries) {
		return sp.next, nil
	}
	return sp.base + int64(entries[lo].delta), nil
}

// spanByTime returns the part of the queue in which the time is, with a copy of
// entries in memory; no segment means that all is older.
func (q *queue) spanByTime(unixMilli int64) (sp span, end int64, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		return sp, 0, fmt.Errorf("%w: %s/%d", ErrNoQueue, q.id.Topic, q.id.ID)
	}
	for i := range q.spans {
		if q.spans[i].last >= unixMilli {
			sp = q.spans[i]
			sp.entries = append([]entry(nil), sp.entries...)
			return sp, q.next, nil
		}
	}
	if len(q.active) > 0 && q.last >= unixMilli {
		return span{
			seg: q.seg, base: q.base, next: q.next, first: q.first, last: q.last,
			entries: append([]entry(nil), q.active...),
		}, q.next, nil
	}
	return sp, q.next, nil
}

// storeTime reads the store time of one batch.
func (s *Store) storeTime(q *queue, sp *span, e *entry) (int64, error) {
	var res Result
	defer res.Release()
	res.store = s
	res.plan = append(res.plan, planned{seg: sp.seg, base: sp.base + int64(e.delta), pos: e.pos, size: e.size})
	if err := s.fetch(&res, q, math.MinInt64, nil); err != nil {
		return 0, err
	}
	if len(res.Batches) == 0 {
		return sp.first, nil // damaged, and reported: any time between will do
	}
	h, err := batch.Parse(res.Batches[0])
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return h.Stamp.StoreTime, nil
}

// LookupKey returns where messages of topic with a key of the given hash (see
// batch.Hash) are, newest segment first, at most limit. Batches that do not list
// their keys are returned as well if they may hold one.
func (s *Store) LookupKey(topic string, keyHash uint64, limit int) ([]Location, error) {
	var out []Location
	add := func(q *queue, offset int64) error {
		loc, ok, err := s.confirm(q, topic, keyHash, offset)
		if ok && !slices.Contains(out, loc) {
			out = append(out, loc)
		}
		return err
	}
	for _, k := range s.activeKeys(topic, keyHash) {
		if err := add(k.queue, k.offset); err != nil || len(out) >= limit {
			return out, err
		}
	}
	s.segMu.RLock()
	segs := append([]*segment(nil), s.segs...)
	s.segMu.RUnlock()
	for i := len(segs) - 1; i >= 0 && len(out) < limit; i-- {
		hits, err := s.keysOf(segs[i], topic, keyHash)
		if err != nil && s.dropped(segs[i]) {
			break // by retention, just now, as are all before it
		}
		if err != nil {
			return out, err
		}
		for j := len(hits) - 1; j >= 0 && len(out) < limit; j-- {
			if err := add(hits[j].queue, hits[j].offset); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// keysAtOnce bounds how long a lookup keeps the committer waiting.
const keysAtOnce = 1 << 13

// activeKeys returns the hits in the active segment, newest first. Those of a
// segment that is left meanwhile may be missing.
func (s *Store) activeKeys(topic string, hash uint64) (hits []keyEntry) {
	for end, more := -1, true; more; {
		s.keysMu.Lock()
		keys := s.w.keys
		if end < 0 {
			end = len(keys)
		}
		if more = end <= len(keys); more {
			from := max(0, end-keysAtOnce)
			for _, k := range slices.Backward(keys[from:end]) {
				if (k.hash == hash || k.hash == anyKey) && k.queue.id.Topic == topic {
					hits = append(hits, k)
				}
			}
			end, more = from, from > 0
		}
		s.keysMu.Unlock()
	}
	return hits
}

// dropped reports whether retention dropped a segment.
func (s *Store) dropped(g *segment) bool {
	s.segMu.RLock()
	defer s.segMu.RUnlock()
	return !slices.Contains(s.segs, g)
}

// keysOf returns the hits in a segment that was left.
func (s *Store) keysOf(g *segment, topic string, hash uint64) (hits []keyEntry, err error) {
	if hits, ok := g.unindexedKeys(topic, hash); ok {
		return hits, nil
	}
	x := g.index.Load()
	if x == nil {
		return nil, nil // the active segment
	}
	var states []queueState
	for _, h := range []uint64{anyKey, hash} {
		err := x.lookup(h, func(i, delta uint32) {
			if states == nil {
				if states, err = x.queues(); err != nil {
					return
				}
			}
			if int(i) < len(states) && states[i].id.Topic == topic {
				if q := s.find(states[i].id); q != nil {
					hits = append(hits, keyEntry{hash: h, queue: q, offset: states[i].span.base + int64(delta)})
				}
			}
		})
		if err != nil {
			return nil, fmt.Errorf("keys of %s: %w", g.name, err)
		}
	}
	return hits, nil
}

// unindexedKeys returns the hits in a segment whose index is not written yet.
func (g *segment) unindexedKeys(topic string, hash uint64) (hits []keyEntry, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seal == nil {
		return nil, false
	}
	for _, k := range g.seal.keys {
		if (k.hash == hash || k.hash == anyKey) && k.queue.id.Topic == topic {
			hits = append(hits, k)
		}
	}
	return hits, true
}

// confirm checks that the batch at offset may hold the key.
func (s *Store) confirm(q *queue, topic string, hash uint64, offset int64) (Location, bool, error) {
	var res Result
	defer res.Release()
	err := s.Read(&res, q.id, offset, 0, nil)
	switch {
	case errors.Is(err, ErrOffsetRange), errors.Is(err, ErrNoQueue):
		return Location{}, false, nil // dropped since
	case err != nil:
		return Location{}, false, err
	case len(res.Batches) == 0:
		return Location{}, false, nil
	}
	h, err := batch.Parse(res.Batches[0])
	if err != nil || string(h.Topic) != topic || h.Stamp.BaseOffset != offset {
		return Location{}, false, nil
	}
	found := h.Flags&batch.FlagManyKeys != 0
	for i := range h.Keys() {
		found = found || h.Key(i) == hash
	}
	return Location{Queue: q.id, Offset: offset, Time: h.Stamp.StoreTime}, found, nil
}

// Snapshot describes all queues, sorted by topic and id.
func (s *Store) Snapshot() []QueueInfo {
	s.qmu.RLock()
	qs := make([]*queue, 0, len(s.queues))
	for _, q := range s.queues {
		qs = append(qs, q)
	}
	s.qmu.RUnlock()
	sortQueues(qs)
	out := make([]QueueInfo, len(qs))
	for i, q := range qs {
		out[i] = q.info()
	}
	return out
}
