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

// PutTopic creates a topic, or changes its queue count and configuration. A
// lower count deletes the queues above it with their messages and offsets.
func (s *Store) PutTopic(t Topic) error {
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
		if err := s.bury(t.Name, t.Queues, old.Queues, &t); err != nil {
			return err
		}
	} else if err := s.state.putTopic(t, nil); err != nil {
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

// DeleteTopic deletes a topic with its messages, offsets and leases. One created
// later under the same name starts afresh. Deleting what is not there is no error.
func (s *Store) DeleteTopic(name string) error {
	s.topicMu.Lock()
	defer s.topicMu.Unlock()
	s.qmu.RLock()
	old, ok := s.topics[name]
	s.qmu.RUnlock()
	if !ok {
		return nil
	}
	if err := s.bury(name, 0, old.Queues, nil); err != nil {
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
func (s *Store) bury(topic string, from, to int32, t *Topic) error {
	var qs []*queue
	s.qmu.Lock()
	for id := from; id < to; id++ {
		q := Queue{Topic: topic, ID: id}
		if qu := s.queues[q]; qu != nil {
			qs = append(qs, qu)
			delete(s.queues, q)
		}
	}
	s.qmu.Unlock()
	var at address
	var wake []*Waiter
	err := s.onCommitter(func() {
		at = address{s.w.seg.id, s.w.pos}
		for _, q := range qs {
			q.mu.Lock()
			q.gone = true
			wake = q.takeWaiters(wake)
			q.mu.Unlock()
			s.w.dedup.dropQueue(q)
		}
	})
	if err != nil {
		return err
	}
	for _, w := range wake {
		w.Wake()
	}
	graves := map[Queue]address{}
	for _, q := range qs {
		graves[q.id] = at
	}
	if t == nil {
		err = s.state.deleteTopic(topic, graves)
	} else {
		err = s.state.putTopic(*t, graves)
	}
	if err != nil {
		return fmt.Errorf("delete queues of topic %s: %w", topic, err)
	}
	return nil
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
