package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// newcomerTime is how long the first offsets of a queue are kept back when the
// start policy chose them. Members of a new group that come within this time all
// find that the group never committed, and all begin where the policy says.
const newcomerTime = time.Second

// begin finds out where to begin on queues just assigned, for as long as it
// takes: an error is never taken for "no offset". It ends with the queues.
func (m *member) begin(ctx context.Context, pqs []*processQueue) {
	for failures := 1; ; failures++ {
		m.mu.Lock()
		pqs = slices.DeleteFunc(pqs, func(pq *processQueue) bool { return pq.known || pq.phase >= draining })
		m.mu.Unlock()
		if len(pqs) == 0 || ctx.Err() != nil {
			return
		}
		err := m.beginOnce(ctx, slices.Clone(pqs))
		if err == nil {
			return
		}
		m.log.Warn("where to begin is not known yet, trying again", zap.Int("queues", len(pqs)), zap.Error(err))
		m.watch.Refresh()
		select {
		case <-time.After(backoff(failures, retryBase, retryMax)):
		case <-ctx.Done():
		}
	}
}

func (m *member) beginOnce(ctx context.Context, pqs []*processQueue) error {
	pqs, err := m.beginCommitted(ctx, pqs)
	errs := []error{err}
	byTopic := make(map[string][]*processQueue)
	for _, pq := range pqs {
		// What was sent back is never skipped.
		if t := pq.queue.Topic; m.cfg.start.kind == startFirst || strings.HasPrefix(t, message.RetryPrefix) {
			m.beginAt(pq, 0, false)
		} else {
			byTopic[t] = append(byTopic[t], pq)
		}
	}
	for topic, of := range byTopic {
		errs = append(errs, m.beginNew(ctx, topic, of))
	}
	return errors.Join(errs...)
}

// beginCommitted begins where the group has committed and returns the queues on
// which it never did. With a lease the grant has said so already.
func (m *member) beginCommitted(ctx context.Context, pqs []*processQueue) ([]*processQueue, error) {
	if m.cfg.mode == session.Broadcasting {
		return slices.DeleteFunc(pqs, func(pq *processQueue) bool {
			offset, ok := m.local.get(pq.queue)
			if ok {
				m.beginAt(pq, offset, true)
			}
			return ok
		}), nil
	}
	byBroker := make(map[string][]*processQueue)
	var rest []*processQueue
	for _, pq := range pqs {
		if pq.epoch.IsZero() {
			byBroker[pq.queue.Broker] = append(byBroker[pq.queue.Broker], pq)
		} else {
			rest = append(rest, pq)
		}
	}
	var errs []error
	for broker, of := range byBroker {
		queues := make([]allocate.Queue, len(of))
		for i, pq := range of {
			queues[i] = pq.queue
		}
		got, err := m.cluster.Committed(ctx, broker, m.cfg.group, queues)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, pq := range of {
			i := slices.IndexFunc(got.Offsets, func(o client.CommittedOffset) bool { return o.Queue == pq.queue })
			switch {
			case i < 0:
				errs = append(errs, fmt.Errorf("broker %s told nothing of queue %s/%d", broker, pq.queue.Topic, pq.queue.ID))
			case got.Offsets[i].HasOffset:
				m.beginAt(pq, got.Offsets[i].Offset, true)
			default:
				rest = append(rest, pq)
			}
		}
	}
	return rest, errors.Join(errs...)
}

// beginNew begins on queues of a topic on which the group never committed. If it
// has committed on any other queue of the topic, at any broker, these are new to
// a running group, which must not skip what they hold.
func (m *member) beginNew(ctx context.Context, topic string, pqs []*processQueue) error {
	ever, bounds, err := m.everCommitted(ctx, topic, pqs)
	if err != nil {
		return err
	}
	for _, pq := range pqs {
		switch b, ok := bounds[pq.queue]; {
		case ever:
			m.beginAt(pq, 0, false)
		case m.cfg.start.kind == startAt:
			found, err := m.cluster.FindOffset(ctx, pq.queue, m.cfg.start.at)
			if err != nil {
				return err
			}
			m.beginAt(pq, found.Offset, false)
		case !ok:
			found, err := m.cluster.FindOffset(ctx, pq.queue, time.Time{})
			if err != nil {
				return err
			}
			m.beginAt(pq, found.Max, false)
		default:
			m.beginAt(pq, b, false)
		}
	}
	return nil
}

// everCommitted asks all brokers of the topic, at once. It also returns the ends
// of the queues.
func (m *member) everCommitted(ctx context.Context, topic string, pqs []*processQueue) (ever bool, ends map[allocate.Queue]int64, err error) {
	ends = make(map[allocate.Queue]int64)
	if m.cfg.mode == session.Broadcasting { // every member for itself
		return m.local.any(topic), ends, nil
	}
	byBroker := make(map[string][]allocate.Queue)
	for _, t := range m.watch.Routes() {
		if t.Name == topic {
			for _, q := range t.Readable() {
				byBroker[q.Broker] = append(byBroker[q.Broker], q)
			}
		}
	}
	for _, pq := range pqs {
		if !slices.Contains(byBroker[pq.queue.Broker], pq.queue) {
			byBroker[pq.queue.Broker] = append(byBroker[pq.queue.Broker], pq.queue)
		}
	}
	type answer struct {
		ever bool
		ends []client.CommittedOffset
		err  error
	}
	answers := make(chan answer, len(byBroker))
	for broker, queues := range byBroker {
		m.background.Go(func() { // Run waits for it; each ends within the call timeout
			got, err := m.cluster.Committed(ctx, broker, m.cfg.group, queues)
			answers <- answer{ever: got.Ever, ends: got.Offsets, err: err}
		})
	}
	for range byBroker {
		a := <-answers
		err = errors.Join(err, a.err)
		ever = ever || a.ever
		for _, o := range a.ends {
			ends[o.Queue] = o.Max
		}
	}
	return ever, ends, err
}

// beginAt begins to fetch at an offset.
func (m *member) beginAt(pq *processQueue, offset int64, stored bool) {
	m.mu.Lock()
	if pq.known {
		m.mu.Unlock()
		return
	}
	pq.offset, pq.known = offset, true
	if stored {
		pq.committed, pq.hasCommitted = offset, true
	} else {
		pq.commitAfter = time.Now().Add(newcomerTime)
	}
	calls := m.pump(pq)
	m.enqueue(pq)
	m.schedule()
	m.mu.Unlock()
	m.start(calls)
}
