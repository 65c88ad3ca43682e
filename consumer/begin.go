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
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// newcomerTime is how long the first offsets of a queue are kept back when the
// start policy chose them. Members of a new group that come within this time all
// find that the group never committed, and all begin where the policy says. Then
// they are stored at once: a successor must not choose a later beginning.
const newcomerTime = time.Second

// asker finds out where to begin on the queues of one topic that were assigned
// without an offset. Queues that come while brokers are being asked are asked
// about together afterwards: what a thousand queues cost is a few calls to each
// broker. Guarded by member.mu.
type asker struct {
	pqs  []*processQueue
	more chan struct{} // capacity 1: there are others than when it looked last
}

// begin begins on a queue just assigned, or has its topic's asker find out where.
// Called under the lock, once pq is in the table.
func (m *member) begin(pq *processQueue) {
	if m.beginUnasked(pq) {
		return
	}
	topic := pq.queue.Topic
	a := m.askers[topic]
	if a == nil {
		a = &asker{more: make(chan struct{}, 1)}
		m.askers[topic] = a
		m.background.Go(func() { m.ask(m.base, topic, a) }) // Run waits for it; ends with base
	}
	a.pqs = append(a.pqs, pq)
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// beginUnasked begins where that is known without asking any broker. With a lease
// the grant has said that there is no offset.
func (m *member) beginUnasked(pq *processQueue) bool {
	if pq.known {
		return true
	}
	if m.cfg.mode == session.Broadcasting {
		if offset, ok := m.local.get(pq.queue); ok {
			pq.begin(offset, true)
			return true
		}
	}
	if m.cfg.mode != session.Broadcasting && pq.epoch.IsZero() {
		return false
	}
	if offset, ok := m.fresh[pq.queue.Topic][pq.queue]; ok {
		pq.begin(offset, false)
		pq.located = true
		return true
	}
	if m.fromFirst(pq.queue.Topic) {
		pq.begin(0, false)
		return true
	}
	return false
}

// fromFirst tells whether a queue without an offset is to be read from its first
// message on: by the start policy, because what was sent back is never skipped, or
// because the queue is new to a group that is not, or to a topic on which this member
// saw the group begin.
func (m *member) fromFirst(topic string) bool {
	return m.cfg.start.kind == startFirst || strings.HasPrefix(topic, message.RetryPrefix) || m.ever[topic] || m.fresh[topic] != nil ||
		m.cfg.mode == session.Broadcasting && m.local.any(topic)
}

// begin sets where to begin. Called under the lock.
func (pq *processQueue) begin(offset int64, stored bool) {
	pq.offset, pq.known = offset, true
	pq.manual, pq.hasManual = offset, pq.m.engine != nil // a reader of given queues leaves no trace
	if stored {
		pq.committed, pq.hasCommitted = offset, true
	} else {
		pq.commitAfter = time.Now().Add(newcomerTime)
		pq.m.storeBeginnings(newcomerTime)
	}
}

// storeBeginnings has progress committed after a while, and again at growing
// intervals up to that of commits for as long as a queue is without a stored offset.
// Called under the lock.
func (m *member) storeBeginnings(wait time.Duration) {
	at := time.Now().Add(wait)
	if !m.beginningsAt.IsZero() && !at.Before(m.beginningsAt) {
		return
	}
	m.beginningsAt = at
	m.after(wait, func() {
		m.commitAll()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.beginningsAt = time.Time{}
		for _, pq := range m.queues {
			if !pq.hasCommitted && !pq.commitAfter.IsZero() && pq.phase < draining && m.cfg.mode != session.Broadcasting {
				m.storeBeginnings(min(2*wait, max(m.cfg.commitEvery, newcomerTime)))
				return
			}
		}
	})
}

// ask asks until the beginning of each of the topic's queues is known, for as long
// as it takes: an error is never taken for "no offset". It is the asker's goroutine
// and ends when it has none left.
func (m *member) ask(ctx context.Context, topic string, a *asker) {
	for failures := 0; ; {
		pqs := m.unknown(topic, a)
		if len(pqs) == 0 {
			return
		}
		err := m.askOnce(ctx, topic, pqs)
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		m.log.Warn("where to begin is not known yet, trying again", zap.String("topic", topic), zap.Int("queues", len(pqs)), zap.Error(err))
		m.watch.Refresh()
		select {
		case <-time.After(backoff(failures, retryBase, retryMax)):
		case <-a.more:
		case <-ctx.Done():
			return
		}
	}
}

// unknown returns the asker's queues that are to be asked about, and takes the
// asker away when there are none.
func (m *member) unknown(topic string, a *asker) []*processQueue {
	m.mu.Lock()
	var begun []*processQueue
	a.pqs = slices.DeleteFunc(a.pqs, func(pq *processQueue) bool {
		if pq.phase >= draining || pq.known {
			return true
		}
		if !m.beginUnasked(pq) {
			return false
		}
		begun = append(begun, pq)
		return true
	})
	out := slices.Clone(a.pqs)
	if len(out) == 0 {
		delete(m.askers, topic)
	}
	select {
	case <-a.more: // it was for these
	default:
	}
	calls := m.opened(begun)
	m.mu.Unlock()
	m.start(calls)
	return out
}

// opened takes queues whose beginning is known now into use. Called under the
// lock; the caller starts the fetches it returns.
func (m *member) opened(pqs []*processQueue) (calls []*client.FetchCall) {
	for _, pq := range pqs {
		calls = append(calls, m.pump(pq)...)
		m.enqueue(pq)
	}
	m.schedule()
	return calls
}

// told is what a broker said of one queue.
type told struct {
	pq *processQueue
	client.CommittedOffset
}

// askOnce asks, at once and with one call each, the brokers of the queues, and all
// others of the topic if they matter: a member with no offset begins where its
// start policy says only if the group has none on any queue of the topic.
func (m *member) askOnce(ctx context.Context, topic string, pqs []*processQueue) error {
	byBroker := make(map[string][]*processQueue)
	questions := make(map[string][]allocate.Queue)
	named := make(map[allocate.Queue]bool, len(pqs))
	for _, pq := range pqs {
		named[pq.queue] = true
		b := pq.queue.Broker
		byBroker[b] = append(byBroker[b], pq)
		questions[b] = append(questions[b], pq.queue)
	}
	m.mu.Lock()
	first := m.fromFirst(topic)
	m.mu.Unlock()
	if !first && m.cfg.mode != session.Broadcasting { // which is every member for itself
		for _, t := range m.watch.Routes() {
			if t.Name != topic {
				continue
			}
			if !m.alone() { // of all queues, should the group be new
				for _, q := range t.Readable() {
					if !named[q] {
						questions[q.Broker] = append(questions[q.Broker], q)
					}
				}
			}
			for _, b := range t.Brokers() {
				if questions[b] == nil { // a queue of another broker names the topic
					questions[b] = []allocate.Queue{pqs[0].queue}
				}
			}
		}
	}
	type answer struct {
		broker string
		got    client.Committed
		err    error
	}
	answers := make(chan answer, len(questions))
	for broker, queues := range questions {
		m.background.Go(func() { // Run waits for it; each ends within the call timeout
			got, err := m.cluster.Committed(ctx, broker, m.cfg.group, queues, m.cfg.start.at)
			answers <- answer{broker, got, err}
		})
	}
	var none []told // without an offset, at brokers that have answered
	var offsets []client.CommittedOffset
	var errs []error
	ever := false
	for range questions {
		a := <-answers
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		ever = ever || a.got.Ever && m.cfg.mode != session.Broadcasting
		rest, err := m.resume(byBroker[a.broker], a.got)
		none, errs = append(none, rest...), append(errs, err)
		offsets = append(offsets, a.got.Offsets...)
	}
	err := errors.Join(errs...)
	if !ever && !first && err == nil {
		m.mu.Lock()
		m.beganNew(topic, offsets)
		m.mu.Unlock()
	}
	if ever || first || err == nil {
		m.beginNew(topic, none, ever, first || ever)
	}
	return err
}

// resume begins where the group has committed, by the word of the queues' broker,
// and returns the queues on which it never did.
func (m *member) resume(pqs []*processQueue, got client.Committed) (none []told, err error) {
	said := make(map[allocate.Queue]client.CommittedOffset, len(got.Offsets))
	for _, o := range got.Offsets {
		said[o.Queue] = o
	}
	var begun []*processQueue
	m.mu.Lock()
	for _, pq := range pqs {
		o, ok := said[pq.queue]
		switch {
		case !ok:
			err = fmt.Errorf("broker %s told nothing of queue %s/%d", pq.queue.Broker, pq.queue.Topic, pq.queue.ID)
		case !o.HasOffset || m.cfg.mode == session.Broadcasting:
			none = append(none, told{pq, o})
		case !pq.known && pq.phase < draining:
			pq.begin(o.Offset, true)
			begun = append(begun, pq)
		}
	}
	calls := m.opened(begun)
	m.mu.Unlock()
	m.start(calls)
	return none, err
}

// beginNew begins on queues on which the group never committed.
func (m *member) beginNew(topic string, none []told, ever, first bool) {
	var begun []*processQueue
	m.mu.Lock()
	if ever {
		m.ever[topic] = true
	}
	for _, t := range none {
		if t.pq.known || t.pq.phase >= draining { // sought meanwhile, or gone
			continue
		}
		began, fresh := m.fresh[topic][t.pq.queue]
		switch {
		case fresh:
			t.pq.begin(began, false)
			t.pq.located = true
		case first:
			t.pq.begin(0, false)
		case m.cfg.start.kind == startAt:
			t.pq.begin(t.AtTime, false)
			t.pq.located = true
		default:
			t.pq.begin(t.Max, false)
			t.pq.located = true
		}
		t.pq.min, t.pq.max = t.Min, t.Max
		begun = append(begun, t.pq)
	}
	calls := m.opened(begun)
	m.mu.Unlock()
	m.start(calls)
}

// assign makes the process queue of a queue given to the member.
func (m *member) assign(a rebalance.Assign) *processQueue {
	pq := m.newQueue(a.Queue, a.Epoch)
	if a.HasOffset {
		pq.begin(a.Offset, true)
	}
	if !a.Epoch.IsZero() {
		pq.lease = m.lease(a.Queue.Broker)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.HasOffset {
		m.ever[a.Queue.Topic] = true
	}
	if old := m.queues[a.Queue]; old != nil { // the engine lost it without saying so
		old.stop.Store(true)
		m.forget(old)
	}
	m.queues[a.Queue] = pq
	m.met.owned(1)
	return pq
}

func (m *member) newQueue(q allocate.Queue, e session.Epoch) *processQueue {
	pq := &processQueue{m: m, queue: q, epoch: e}
	pq.ctx, pq.cancel = context.WithCancel(m.base)
	m.mu.Lock()
	if pq.filter = m.subs[q.Topic]; pq.filter == nil {
		pq.filter = newFilter("*") // unsubscribed a moment ago: it will be revoked
	}
	m.mu.Unlock()
	pq.call = client.FetchCall{Queue: q, Group: m.cfg.group, Epoch: e, Done: pq.fetched}
	return pq
}

// assigned begins with queues just assigned: the fetches at once, handing out
// when the listener has been told.
func (m *member) assigned(pqs []*processQueue) {
	var queues []allocate.Queue
	var calls []*client.FetchCall
	m.mu.Lock()
	for _, pq := range pqs {
		if pq.phase == gone {
			continue
		}
		queues = append(queues, pq.queue)
		pq.told = m.cfg.listener != nil
		m.begin(pq)
		calls = append(calls, m.pump(pq)...)
	}
	m.mu.Unlock()
	m.start(calls)
	open := func() { m.openUp(pqs) }
	if m.cfg.listener == nil || len(queues) == 0 {
		open()
		return
	}
	m.tell(func() {
		defer open()
		m.cfg.listener.OnAssigned(m.base, queues)
	})
}
