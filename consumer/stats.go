package consumer

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Stats is what a consumer has and does at one moment.
type Stats struct {
	ClientID string
	Queues   []QueueStats // sorted by queue
	// Running counts the messages with handlers, Waiting those fetched ahead.
	Running, Waiting int
	CachedBytes      int64
	Stalled, Paused  bool
	// Oldest is how long the longest handler has been running.
	Oldest time.Duration
}

// QueueStats describes one queue of a consumer.
type QueueStats struct {
	Queue allocate.Queue
	Epoch session.Epoch
	// Next is the offset of the next message to be handed out, Unfinished the
	// lowest that is not finished, Committed the last stored; -1 if not known.
	Next, Unfinished, Committed int64
	// Min and Max are the bounds of the queue as last heard: Max - Unfinished is
	// the lag.
	Min, Max         int64
	Running, Waiting int
	Paused, Draining bool
}

func (m *member) stats(now time.Time) Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := Stats{
		ClientID: m.cfg.clientID, Running: m.running, Waiting: m.waiting, CachedBytes: m.cached,
		Stalled: m.stalled, Paused: m.paused, Queues: make([]QueueStats, 0, len(m.queues)),
	}
	for t := range m.tasks {
		s.Oldest = max(s.Oldest, now.Sub(t.started))
	}
	for _, pq := range m.queues {
		s.Queues = append(s.Queues, QueueStats{
			Queue: pq.queue, Epoch: pq.epoch, Min: pq.min, Max: pq.max, Running: pq.running, Waiting: pq.waitingSlots(),
			Next: orUnknown(pq.position()), Unfinished: orUnknown(pq.finished()), Committed: orUnknown(pq.committed, pq.hasCommitted),
			Paused: pq.paused, Draining: pq.phase == draining,
		})
	}
	slices.SortFunc(s.Queues, func(a, b QueueStats) int { return a.Queue.Compare(b.Queue) })
	return s
}

func orUnknown(offset int64, ok bool) int64 {
	if !ok {
		return -1
	}
	return offset
}
