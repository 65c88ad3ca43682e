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

// newcomerTime is after what time offsets at which queues began are stored if nothing
// else stores them before. Those that the start policy chose are stored before the
// queue is read: whoever gets it next must not choose a later beginning.
const newcomerTime = time.Second

// asker finds out where to begin on the queues of one topic that were assigned
// without an offset. Queues that come while brokers are being asked are asked
// about together afterwards: what a thousand queues cost is a few calls to each
// broker. Guarded by member.mu.
type asker struct {
	pqs  []*processQueue
	look bool          // whether the group is new is to be found out even without any
	more chan struct{} // capacity 1: there are others than when it looked last
}

// begin begins on a queue just assigned, or has its topic's asker find out where.
// Called under the lock, once pq is in the table.
func (m *member) begin(pq *processQueue) {
	if m.beginUnasked(pq) {
		return
	}
	a := m.asker(pq.queue.Topic)
	a.pqs = append(a.pqs, pq)
	a.wake()
}

// asker returns the asker of a topic. Called under the lock.
func (m *member) asker(topic string) *asker {
	a := m.askers[topic]
	if a == nil {
		a = &asker{more: make(chan struct{}, 1)}
		m.askers[topic] = a
		m.background.Go(func() { m.ask(m.base, topic, a) }) // Run waits for it; ends with base
	}
	return a
}

func (a *asker) wake() {
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
	if _, ok := m.fresh[pq.queue.Topic][pq.queue]; ok {
		return false // it is to be stored first
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
// saw the group begin. That the group has an offset on another queue says nothing
// before this member has looked: another one may be storing the beginnings just now.
func (m *member) fromFirst(topic string) bool {
	return m.cfg.start.kind == startFirst || strings.HasPrefix(topic, message.RetryPrefix) || m.ever[topic] && m.looked[topic] || m.fresh[topic] != nil ||
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
		pqs, fresh, look := m.unknown(topic, a)
		var err error
		switch {
		case len(fresh) > 0:
			err = m.beginStored(ctx, topic, fresh)
		case len(pqs) > 0:
			err = m.askOnce(ctx, topic, pqs)
		case look:
			err = m.look(ctx, topic, a)
		default:
			return
		}
		if err == nil {
			failures = 0
			continue
		}
		if ctx.Err() != nil {
			return
		}
		failures++
		m.log.Warn("where to begin is not known yet, trying again", zap.String("topic", topic), zap.Int("queues", len(pqs)+len(fresh)), zap.Error(err))
		m.watch.Refresh()
		select {
		case <-time.After(backoff(failures, retryBase, retryMax)):
		case <-a.more:
		case <-ctx.Done():
			return
		}
	}
}

// unknown returns the asker's queues that are to be asked about, those on which the
// group is to begin where this member found that, and whether there is to be looked
// without any. It takes the asker away when there is nothing to do.
func (m *member) unknown(topic string, a *asker) (pqs []*processQueue, fresh []beginning, look bool) {
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
	for _, pq := range a.pqs {
		// Without a lease others may have committed since, which only the broker knows.
		if offset, ok := m.fresh[topic][pq.queue]; ok && !pq.epoch.IsZero() {
			fresh = append(fresh, beginning{pq, offset})
		} else {
			pqs = append(pqs, pq)
		}
	}
	if look = a.look && !m.looked[topic]; len(a.pqs) == 0 && !look {
		delete(m.askers, topic)
	}
	select {
	case <-a.more: // it was for these
	default:
	}
	calls := m.opened(begun)
	m.mu.Unlock()
	m.start(calls)
	return pqs, fresh, look
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

// answer is what a broker said of the queues it was asked about.
type answer struct {
	broker string
	got    client.Committed
	err    error
}

// askAll asks brokers at once, with one call each. There are as many answers as
// questions.
func (m *member) askAll(ctx context.Context, questions map[string][]allocate.Queue) <-chan answer {
	answers := make(chan answer, len(questions))
	for broker, queues := range questions {
		m.background.Go(func() { // Run waits for it; each ends within the call timeout
			got, err := m.cluster.Committed(ctx, broker, m.cfg.group, queues, m.cfg.start.at)
			answers <- answer{broker, got, err}
		})
	}
	return answers
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
	answers := m.askAll(ctx, questions)
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
	if !first {
		m.learn(topic, ever, err == nil, offsets)
	}
	if ever || first || err == nil {
		return errors.Join(err, m.beginNew(ctx, topic, none, first || ever))
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

// beginNew begins on queues on which the group never committed. What the start
// policy chooses for a member of a group is stored first.
func (m *member) beginNew(ctx context.Context, topic string, none []told, first bool) error {
	var begun []*processQueue
	var chosen []beginning
	m.mu.Lock()
	for _, t := range none {
		if t.pq.known || t.pq.phase >= draining { // sought meanwhile, or gone
			continue
		}
		t.pq.min, t.pq.max = t.Min, t.Max
		began, fresh := m.fresh[topic][t.pq.queue]
		at := t.Max
		switch {
		case fresh:
			at = began
		case first:
			at = 0
		case m.cfg.start.kind == startAt:
			at = t.AtTime
		}
		if !m.alone() && (fresh || !first) {
			chosen = append(chosen, beginning{t.pq, at})
			continue
		}
		t.pq.begin(at, false)
		t.pq.located = fresh || !first
		begun = append(begun, t.pq)
	}
	calls := m.opened(begun)
	m.mu.Unlock()
	m.start(calls)
	return m.beginStored(ctx, topic, chosen)
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
