package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/internal/batch"
)

// maxQueues bounds the queues of one topic.
const maxQueues = 1 << 16

// PutTopic creates a topic, or changes its queue count and configuration, and
// applies the updates together with that. A lower count deletes the queues above
// it with their messages and offsets. If it fails nothing has changed.
func (s *Store) PutTopic(t Topic, with ...*Update) error {
	if t.Name == "" || len(t.Name) > batch.MaxTopic || strings.ContainsRune(t.Name, 0) {
		return fmt.Errorf("topic name %q: must be 1 to %d bytes without NUL", t.Name, batch.MaxTopic)
	}
	if t.Queues < 0 || t.Queues > maxQueues {
		return fmt.Errorf("topic %s: %d queues: must be 0 to %d", t.Name, t.Queues, maxQueues)
	}
	t.Config = slices.Clone(t.Config)
	s.topicMu.Lock()
	defer s.topicMu.Unlock()
	s.qmu.RLock()
	old := s.topics[t.Name]
	s.qmu.RUnlock()
	if t.Queues < old.Queues {
		if err := s.bury(t.Name, t.Queues, old.Queues, &t, with); err != nil {
			return err
		}
	} else if err := s.state.changeTopic(t.Name, &t, nil, with); err != nil {
		return fmt.Errorf("store topic %s: %w", t.Name, err)
	}
	s.qmu.Lock()
	defer s.qmu.Unlock()
	s.topics[t.Name] = t
	for id := old.Queues; id < t.Queues; id++ {
		q := Queue{Topic: t.Name, ID: id}
		s.queues[q] = newQueue(q)
	}
	return nil
}

// DeleteTopic deletes a topic with its messages, offsets and leases, and applies
// the updates together with that. One created later under the same name starts
// afresh. Deleting what is not there is no error. If it fails the topic is as it was.
func (s *Store) DeleteTopic(name string, with ...*Update) error {
	s.topicMu.Lock()
	defer s.topicMu.Unlock()
	s.qmu.RLock()
	old, ok := s.topics[name]
	s.qmu.RUnlock()
	if !ok {
		return nil
	}
	if err := s.bury(name, 0, old.Queues, nil, with); err != nil {
		return err
	}
	s.qmu.Lock()
	defer s.qmu.Unlock()
	delete(s.topics, name)
	return nil
}

// bury deletes the queues from <= id < to of a topic and stores t, or deletes the
// topic if that is nil. What the log holds of them is dead from here on, which a
// grave with the place in the log remembers until the segments are gone.
//
// The committer waits for the state: nothing may be written to the queues between
// the place in the grave and their end, and if the state refuses they go on.
func (s *Store) bury(topic string, from, to int32, t *Topic, with []*Update) error {
	graves := make(map[Queue]address, to-from)
	var wake []*Waiter
	var failed error
	err := s.onCommitter(func() {
		at := address{s.w.seg.id, s.w.pos}
		for id := from; id < to; id++ {
			graves[Queue{Topic: topic, ID: id}] = at
		}
		if failed = s.state.changeTopic(topic, t, graves, with); failed == nil {
			wake = s.forget(graves)
			maps.Copy(s.w.graves, graves)
		}
	})
	s.state.buried(graves, err == nil && failed == nil)
	if err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("delete queues of topic %s: %w", topic, failed)
	}
	for _, w := range wake {
		w.Wake(false)
	}
	return nil
}

// dead returns what an index says of deleted queues.
func dead(graves map[Queue]address) []queueState {
	out := make([]queueState, 0, len(graves))
	for q, at := range graves {
		out = append(out, queueState{id: q, dead: true, span: span{next: at.pos}})
	}
	slices.SortFunc(out, func(a, b queueState) int { return compareQueues(a.id, b.id) })
	return out
}

// forget takes deleted queues out of memory. It is the committer's.
func (s *Store) forget(graves map[Queue]address) (wake []*Waiter) {
	var qs []*queue
	s.qmu.Lock()
	for q := range graves {
		if qu := s.queues[q]; qu != nil {
			qs = append(qs, qu)
			delete(s.queues, q)
		}
	}
	s.qmu.Unlock()
	for _, q := range qs {
		q.mu.Lock()
		q.gone = true
		wake = q.takeWaiters(wake)
		q.mu.Unlock()
		s.w.dedup.dropQueue(q)
	}
	return wake
}

// Topics returns all topics, sorted by name. Config must not be changed.
func (s *Store) Topics() []Topic {
	s.qmu.RLock()
	defer s.qmu.RUnlock()
	out := make([]Topic, 0, len(s.topics))
	for _, name := range slices.Sorted(maps.Keys(s.topics)) {
		out = append(out, s.topics[name])
	}
	return out
}

// Topic returns one topic.
func (s *Store) Topic(name string) (Topic, bool) {
	s.qmu.RLock()
	defer s.qmu.RUnlock()
	t, ok := s.topics[name]
	return t, ok
}

// State returns the small mutable state.
func (s *Store) State() *State { return s.state }
