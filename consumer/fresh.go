package consumer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// togetherTime is how long a member that finds its group new keeps that to itself.
// Members that start together all find it new, then; one that asked while the first
// beginnings were being stored would take them for progress of a group that has been
// there for long. No message is handed out before its queue's beginning is stored.
const togetherTime = 100 * time.Millisecond

// freshly is where a group that was new began on each queue of a topic, by the word
// of all brokers at one time, until that is known to be stored. A member that found a
// group new goes by it: what is stored a moment later is where the group began, and
// must not be taken for progress when a broker's queues come late. A queue that has
// no stored offset once its beginning was stored, or that was gone meanwhile, has been
// made anew: all of it is new.
type freshly map[allocate.Queue]int64

// stillFresh forgets where the group began on queues that are no more. A broker that
// is not known now has not told that. Called under the lock.
func (m *member) stillFresh(t route.Topic) {
	all := m.fresh[t.Name]
	if len(all) == 0 {
		return
	}
	brokers, queues := t.Brokers(), t.Readable()
	maps.DeleteFunc(all, func(q allocate.Queue, _ int64) bool {
		return len(t.Hosts) == 0 || slices.Contains(brokers, q.Broker) && !slices.Contains(queues, q)
	})
}

// alone tells whether a member has no group whose beginnings it could find out for
// others: a reader of given queues, and one that reads everything.
func (m *member) alone() bool { return m.engine == nil || m.cfg.mode == session.Broadcasting }

// lookAt has found out soon, before leases come, whether the group is new on topics
// whose brokers are known now. Of members that come to a new group together each then
// knows the beginnings from before the first one stored them; a broker's answers from
// after that would look like those of a group that has been there for long.
func (m *member) lookAt(topics []route.Topic) {
	if m.alone() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range topics {
		m.stillFresh(t)
		if m.subs[t.Name] == nil || m.looked[t.Name] || m.fromFirst(t.Name) || len(t.Readable()) == 0 {
			continue
		}
		if a := m.asker(t.Name); !a.look {
			a.look = true
			a.wake()
		}
	}
}

// look asks all brokers of a topic whether the group has an offset there, and if none
// has, where all queues end. A group that has been there for long costs one small
// question to each broker.
func (m *member) look(ctx context.Context, topic string, a *asker) error {
	for _, whole := range []bool{false, true} {
		questions := make(map[string][]allocate.Queue)
		for _, t := range m.watch.Routes() {
			if t.Name != topic {
				continue
			}
			for _, q := range t.Readable() {
				if whole || questions[q.Broker] == nil {
					questions[q.Broker] = append(questions[q.Broker], q)
				}
			}
		}
		if len(questions) == 0 { // they have gone; lookAt comes back to it
			m.mu.Lock()
			a.look = false
			m.mu.Unlock()
			return nil
		}
		answers := m.askAll(ctx, questions)
		var offsets []client.CommittedOffset
		var errs []error
		ever := false
		for range questions {
			a := <-answers
			errs = append(errs, a.err)
			ever = ever || a.got.Ever
			offsets = append(offsets, a.got.Offsets...)
		}
		err := errors.Join(errs...)
		if ever || whole && err == nil {
			m.learn(topic, ever, true, offsets)
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// learn takes note of what brokers said: that the group has an offset on a topic, or, if
// all have answered, that it has none, and what is its beginning then.
func (m *member) learn(topic string, ever, all bool, offsets []client.CommittedOffset) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ever {
		m.ever[topic] = true
	} else if all {
		m.beganNew(topic, offsets)
	}
	if ever || all {
		m.looked[topic] = true
	}
}

// beganNew takes note of where the group begins on all queues of a topic on which it
// never committed, and has it stored. Called under the lock.
func (m *member) beganNew(topic string, offsets []client.CommittedOffset) {
	if m.fresh[topic] != nil || m.alone() {
		return
	}
	all := make(freshly, len(offsets))
	for _, o := range offsets {
		all[o.Queue] = o.Max
		if m.cfg.start.kind == startAt {
			all[o.Queue] = o.AtTime
		}
	}
	m.fresh[topic], m.storeAt[topic] = all, time.Now().Add(togetherTime)
	m.background.Go(func() { m.storeFresh(m.base, topic) }) // Run waits for it; ends with base
}

// beginning is where to begin on a queue.
type beginning struct {
	pq     *processQueue
	offset int64
}

// beginStored stores beginnings, with one call to each broker, and then begins: before
// a message of a queue is handed out, whoever may get the queue next finds it there.
func (m *member) beginStored(ctx context.Context, topic string, all []beginning) error {
	if len(all) == 0 {
		return nil
	}
	m.mu.Lock()
	at := m.storeAt[topic]
	m.mu.Unlock()
	if !sleep(ctx, time.Until(at)) {
		return ctx.Err()
	}
	byBroker := make(map[string][]beginning)
	for _, b := range all {
		byBroker[b.pq.queue.Broker] = append(byBroker[b.pq.queue.Broker], b)
	}
	errs := make(chan error, len(byBroker))
	for broker, some := range byBroker {
		m.background.Go(func() { errs <- m.beginStoredAt(ctx, topic, broker, some) }) // Run waits for it; each ends within the call timeout
	}
	var err error
	for range byBroker {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (m *member) beginStoredAt(ctx context.Context, topic, broker string, all []beginning) error {
	req := client.CommitRequest{Group: m.cfg.group, ClientID: m.cfg.clientID, Offsets: make([]client.OffsetCommit, len(all))}
	for i, b := range all {
		req.Offsets[i] = client.OffsetCommit{Queue: b.pq.queue, Offset: b.offset, Epoch: b.pq.epoch}
	}
	results, err := m.cluster.Commit(ctx, broker, req)
	m.met.committed(err)
	if err != nil {
		return err
	}
	var begun []*processQueue
	m.mu.Lock()
	for i, e := range results {
		pq := all[i].pq
		if e == nil || errors.Is(e, rpcerr.ErrOffsetOutOfRange) { // made anew: its first fetch finds out
			delete(m.fresh[topic], pq.queue)
		}
		switch {
		case errors.Is(e, rpcerr.ErrStaleEpoch):
			m.inbox.put(item{ev: rebalance.Refused{Queue: pq.queue, Epoch: pq.epoch}})
			err = cmp.Or(err, e)
		case e != nil && !errors.Is(e, rpcerr.ErrOffsetOutOfRange):
			err = cmp.Or(err, e)
		case !pq.known && pq.phase < draining:
			pq.begin(all[i].offset, e == nil)
			pq.located = true
			begun = append(begun, pq)
		}
	}
	calls := m.opened(begun)
	m.mu.Unlock()
	m.start(calls)
	return err
}

// storeFresh stores where the group began also on queues that this member does not
// have, until that is stored of all: members that come later find an offset, or would
// begin at the first message. Of queues that others hold they store it themselves.
func (m *member) storeFresh(ctx context.Context, topic string) {
	if !sleep(ctx, togetherTime) {
		return
	}
	for wait := retryBase; ; wait = min(2*wait, max(m.cfg.commitEvery, newcomerTime)) {
		byBroker := make(map[string][]allocate.Queue)
		m.mu.Lock()
		left := len(m.fresh[topic])
		for q := range m.fresh[topic] {
			if pq := m.queues[q]; pq == nil || pq.known { // else it is about to be stored
				byBroker[q.Broker] = append(byBroker[q.Broker], q)
			}
		}
		m.mu.Unlock()
		if left == 0 {
			return
		}
		for broker, queues := range byBroker {
			if err := m.storeFreshAt(ctx, topic, broker, queues); err != nil && ctx.Err() == nil {
				m.log.Debug("where the group began is not stored yet, trying again", zap.String("broker", broker), zap.Error(err))
			}
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// sleep waits and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// storeFreshAt stores beginnings at one broker. Offsets do not move back there, and
// without a lease only those of queues that nobody holds are taken.
func (m *member) storeFreshAt(ctx context.Context, topic, broker string, queues []allocate.Queue) error {
	got, err := m.cluster.Committed(ctx, broker, m.cfg.group, queues, time.Time{})
	if err != nil {
		return err
	}
	req := client.CommitRequest{Group: m.cfg.group, ClientID: m.cfg.clientID}
	m.mu.Lock()
	for _, o := range got.Offsets {
		at, ok := m.fresh[topic][o.Queue]
		switch {
		case !ok:
		case o.HasOffset:
			delete(m.fresh[topic], o.Queue)
		default:
			req.Offsets = append(req.Offsets, client.OffsetCommit{Queue: o.Queue, Offset: at})
		}
	}
	m.mu.Unlock()
	if len(req.Offsets) == 0 {
		return nil
	}
	results, err := m.cluster.Commit(ctx, broker, req)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, e := range results {
		switch {
		case e == nil, errors.Is(e, rpcerr.ErrOffsetOutOfRange): // made anew
			delete(m.fresh[topic], req.Offsets[i].Queue)
		case !errors.Is(e, rpcerr.ErrLeaseHeld):
			err = cmp.Or(err, e)
		}
	}
	return err
}
