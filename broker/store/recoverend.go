package store

import (
	"fmt"
)

// finish makes the store ready to be written.
func (r *recovery) finish() error {
	s := r.s
	if r.last != nil { // all segments have indexes: none is active
		if err := r.windows(); err != nil {
			s.o.Report(Event{Kind: Damaged, File: indexName(s.logDir, r.last.id), Err: err})
		}
	}
	r.lost = r.lost || r.blind
	for name, n := range r.found {
		t, known := s.topics[name]
		if known && t.Queues >= n {
			continue
		}
		t.Name, t.Queues = name, n
		s.o.Report(Event{Kind: TopicFound, Detail: fmt.Sprintf("%s with %d queues", name, n)})
		if err := s.state.changeTopic(name, &t, nil, nil); err != nil {
			return err
		}
		s.topics[name] = t
		for id := range n {
			if q := (Queue{Topic: name, ID: id}); s.queues[q] == nil {
				s.queues[q] = newQueue(q)
			}
		}
	}
	if err := r.bury(); err != nil {
		return err
	}
	if s.w.seg != nil {
		s.w.graves = s.state.gravesIn(s.w.seg.id)
	}
	// The state may be older than the log: an id that the log knows would make it
	// take the next scheduled batch for one that was delivered.
	for _, id := range s.w.dedup.order {
		s.state.schedule.Store(max(s.state.schedule.Load(), id))
	}
	// An offset that was committed is never given to another message, even if
	// the message it belonged to is gone.
	s.state.eachOffset(func(q Queue, offset int64) {
		if q := s.queues[q]; q != nil && q.next < offset {
			s.o.Report(Event{Kind: Damaged, Detail: fmt.Sprintf("%s/%d ends at %d, but %d is committed: going on there", q.id.Topic, q.id.ID, q.next, offset), Err: ErrDamaged})
			q.next = offset
		}
	})
	r.skip()
	for _, q := range s.queues {
		q.assign = q.next
	}
	if err := r.active(); err != nil {
		return err
	}
	for _, g := range s.segs {
		if x := g.index.Load(); x != nil {
			x.directory, x.wins = nil, nil // read again if needed
		}
	}
	s.activeEnd.Store(s.w.pos)
	s.activeLast.Store(s.w.lastTime)
	s.kick()
	return nil
}

// active makes sure that there is a segment to write that was not left before, for its
// index would not know, and that nothing is written to it at a place before a grave, where it would be taken for dead: a log that
// was not synced may have lost what lay before the grave.
func (r *recovery) active() error {
	s := r.s
	id, dead := s.ghost, len(s.segs) == 0 || r.left
	for _, at := range r.graves {
		id = max(id, at.seg)
		dead = dead || !at.before(address{s.w.seg.id, s.w.pos + 1})
	}
	for _, at := range r.missing {
		id, dead = max(id, at), true
	}
	switch {
	case len(s.segs) == 0:
		g, size, err := s.begin(id + 1)
		if err != nil {
			return err
		}
		s.attach(g, size)
	case dead:
		if err := s.rollTo(max(id, s.w.seg.id) + 1); err != nil {
			return err
		}
	}
	if r.skipped || len(r.missing) > 0 {
		// Its index says where queues go on. There are two, for one may be damaged later.
		for range 2 {
			if err := s.leave(); err != nil {
				return fmt.Errorf("leave segment %s: %w", s.w.seg.name, err)
			}
		}
	}
	for _, id := range r.missing {
		if err := s.fs.Remove(indexName(s.logDir, id)); err != nil {
			return fmt.Errorf("remove index of a missing segment: %w", err)
		}
	}
	return nil
}
