package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// LitePullConsumer hands messages out to a loop of the user's own:
//
//	c, err := consumer.NewLitePull(nameServers, "group", consumer.WithTopic("topic", "*"))
//	...
//	defer c.Close(ctx)
//	for {
//		msgs, err := c.Poll(ctx)
//		...
//	}
//
// It is a member of the group and shares the queues of the topics it subscribes
// to, or it is given queues with [LitePullConsumer.Assign] and takes part in
// nothing: one or the other. With auto-commit, on unless switched off, the next
// Poll confirms what the one before returned; what was returned by the last Poll
// is never stored before.
//
// Poll, Commit and the others may be called from different goroutines; Polls wait
// for each other, and messages are confirmed by whichever comes next.
type LitePullConsumer struct {
	m    *member
	wake chan struct{} // capacity 1: there may be something to return

	turn     chan struct{} // capacity 1, full while a Poll is under way; guards the two below
	out      []*task       // what the last Poll returned
	spare    []*task
	assigned atomic.Bool // by hand
	// returned are the queues of messages that a Poll returned since the last Commit,
	// if progress is committed by hand. Guarded by member.mu.
	returned map[allocate.Queue]*processQueue

	start  sync.Once
	stop   context.CancelFunc
	ended  chan struct{} // closed when the member has ended
	err    error         // why, before ended is closed
	closed atomic.Bool
}

// NewLitePull returns a consumer of the group. If a topic is given it joins the
// group at once; otherwise with the first Subscribe, or never with Assign.
func NewLitePull(nameServers []string, group string, opts ...Option) (*LitePullConsumer, error) {
	cfg := defaults(group)
	for _, o := range opts {
		o(&cfg)
	}
	cfg.handler = Handler{size: 1}
	m, err := prepare(cfg, nil)
	if err != nil {
		return nil, err
	}
	if err := m.newEngine(); err != nil { // to check the settings: it is made anew by whoever joins
		m.finish()
		return nil, fmt.Errorf("consumer of group %q: %w", group, err)
	}
	m.engine = nil
	if err := m.openClient(client.Config{NameServers: nameServers, Dialer: cfg.dialer, Logger: cfg.log}); err != nil {
		m.finish()
		return nil, err
	}
	c := &LitePullConsumer{m: m, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), ended: make(chan struct{}), returned: make(map[allocate.Queue]*processQueue)}
	m.byPoll = true
	m.schedule = func() {
		if !m.ready.empty() {
			c.kick()
		}
	}
	if len(cfg.topics) > 0 {
		if err := c.join(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *LitePullConsumer) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// join starts the member, once.
func (c *LitePullConsumer) join() (err error) {
	c.start.Do(func() {
		if !c.assigned.Load() {
			err = c.m.newEngine()
		}
		ctx, cancel := context.WithCancel(context.Background())
		c.stop = cancel
		if err != nil {
			c.err = err
			c.m.abandon()
			close(c.ended)
			return
		}
		go func() { // Close waits for it
			c.err = c.m.run(ctx)
			close(c.ended)
		}()
	})
	return err
}

// Subscribe adds a topic to share in. The filter of a topic subscribed to cannot be
// changed, since all members of the group have the same. See [WithTopic].
func (c *LitePullConsumer) Subscribe(topic, filter string) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if c.assigned.Load() {
		return errors.New("subscribe: queues are assigned by hand")
	}
	if err := c.m.subscribe(topic, filter); err != nil {
		return fmt.Errorf("subscribe to topic %q: %w", topic, err)
	}
	return c.join()
}

// Unsubscribe takes a topic away: its queues are drained and released.
func (c *LitePullConsumer) Unsubscribe(topic string) { c.m.unsubscribe(topic) }

// Assign makes the consumer read just these queues, without a share and without
// leases; commits are accepted only while no member of the group holds them. It
// replaces the queues assigned before: those are let go when the next Poll has
// confirmed their messages, at the latest at the drain limit, and one that is
// assigned again meanwhile is read again after that.
func (c *LitePullConsumer) Assign(queues ...allocate.Queue) error {
	if c.closed.Load() {
		return ErrClosed
	}
	for _, q := range queues {
		if err := message.CheckTopic(q.Topic); err != nil {
			return fmt.Errorf("assign: %w", err)
		}
	}
	c.m.mu.Lock()
	subscribed := len(c.m.subs) > 0
	c.m.mu.Unlock()
	if subscribed && !c.assigned.Load() {
		return errors.New("assign: the consumer subscribes to topics")
	}
	c.assigned.Store(true)
	if err := c.join(); err != nil {
		return err
	}
	done := make(chan struct{})
	c.m.inbox.put(item{do: func() {
		c.m.assignByHand(queues)
		close(done)
	}})
	select {
	case <-done:
		return nil
	case <-c.ended:
		return ErrClosed
	}
}

// assignByHand replaces the queues of a member without an engine.
func (m *member) assignByHand(queues []allocate.Queue) {
	m.wanted = slices.Clone(queues)
	var gone []*processQueue
	m.mu.Lock()
	for q, pq := range m.queues {
		if !slices.Contains(queues, q) && pq.phase < draining {
			gone = append(gone, pq)
		}
	}
	topics := make(map[string]bool)
	for _, q := range queues {
		topics[q.Topic] = true
		if m.subs[q.Topic] == nil {
			m.subs[q.Topic] = newFilter("*")
		}
	}
	maps.DeleteFunc(m.subs, func(t string, _ *filter) bool { return !topics[t] })
	m.mu.Unlock()
	m.watch.SetTopics(m.topics())
	if len(gone) > 0 {
		m.revoke(gone)
	}
	m.takeWanted()
}

// takeWanted takes the queues assigned by hand that the member does not have. One
// that is still on its way out is taken when it has gone: progress must be stored
// before anybody asks where to begin.
func (m *member) takeWanted() {
	var fresh []*processQueue
	for _, q := range m.wanted {
		if m.find(q, session.Epoch{}) != nil {
			continue
		}
		pq := m.newQueue(q, session.Epoch{})
		m.mu.Lock()
		m.queues[q] = pq
		m.met.owned(1)
		m.mu.Unlock()
		fresh = append(fresh, pq)
	}
	if len(fresh) > 0 {
		m.assigned(fresh)
	}
}

// Poll returns messages that were not returned before, as soon as there are any,
// or the error of ctx when it ends. It confirms the messages that the Poll before
// returned. When the group refuses the member, the error says why.
func (c *LitePullConsumer) Poll(ctx context.Context) ([]*message.Message, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ended:
		return nil, c.end()
	}
	if c.closed.Load() {
		return nil, ErrClosed
	}
	c.m.polling(1)
	defer c.m.polling(-1)
	c.confirm()
	for {
		if msgs := c.collect(); len(msgs) > 0 {
			return msgs, nil
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.ended:
			return nil, c.end()
		}
	}
}

// end says why the member has ended.
func (c *LitePullConsumer) end() error {
	if c.err != nil {
		return fmt.Errorf("consumer of group %q: %w", c.m.cfg.group, c.err)
	}
	return ErrClosed
}

// polling counts the Polls under way: a member that is not polled makes no progress.
func (m *member) polling(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.polls += n
	m.progress = time.Now()
	m.recovered()
}

// confirm ends what the last Poll returned.
func (c *LitePullConsumer) confirm() {
	m := c.m
	if len(c.out) == 0 {
		return
	}
	m.mu.Lock()
	var calls []*client.FetchCall
	for _, t := range c.out {
		for range t.msgs {
			t.end(nil)
		}
		calls = append(calls, m.finished(t)...)
	}
	m.mu.Unlock()
	m.start(calls)
	c.spare, c.out = append(c.spare, c.out...), c.out[:0]
}

// collect takes what waits, fairly from all queues.
func (c *LitePullConsumer) collect() []*message.Message {
	m := c.m
	var out []*message.Message
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for len(out) < m.cfg.pollMessages {
		t := new(task)
		if n := len(c.spare); n > 0 {
			t, c.spare = c.spare[n-1], c.spare[:n-1]
		}
		if !m.hand(t, m.cfg.pollMessages-len(out), now) {
			c.spare = append(c.spare, t)
			break
		}
		t.claimed.Store(int64(len(t.msgs)))
		out = append(out, t.msgs...)
		c.out = append(c.out, t)
		if m.cfg.manualCommit {
			c.returned[t.pq.queue] = t.pq
		}
	}
	return out
}

// Commit stores, and waits until it is stored, what may be: with auto-commit the
// progress that earlier polls confirmed; without it everything that was returned. The
// error names what is not stored; it is [ErrNotAssigned] for messages, returned since
// the Commit before, whose queues have gone to other members meanwhile: those get them
// again.
func (c *LitePullConsumer) Commit(ctx context.Context) error {
	results, errs, err := c.commits()
	if err != nil {
		return err
	}
	for range cap(results) {
		select {
		case err := <-results:
			errs = append(errs, err)
		case <-ctx.Done():
			return fmt.Errorf("commit: %w", ctx.Err())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// commits begins to commit, at all brokers at once. It returns what cannot be
// committed, and where the brokers' answers will be, as many as there is room for.
func (c *LitePullConsumer) commits() (results chan error, errs []error, err error) {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || c.closed.Load() {
		return nil, nil, ErrClosed
	}
	for q, pq := range c.returned {
		if m.queues[q] != pq {
			errs = append(errs, fmt.Errorf("queue %s/%s/%d: %w", q.Topic, q.Broker, q.ID, ErrNotAssigned))
			delete(c.returned, q)
		}
	}
	byBroker := make(map[string][]*processQueue)
	for _, pq := range m.queues {
		if m.cfg.manualCommit {
			if offset, ok := pq.position(); ok {
				pq.manual, pq.hasManual = max(pq.manual, offset), true
			}
		}
		if _, ok := pq.progress(); ok {
			byBroker[pq.queue.Broker] = append(byBroker[pq.queue.Broker], pq)
		}
	}
	if m.cfg.mode == session.Broadcasting {
		results = make(chan error, 1)
		m.background.Go(func() { results <- m.saveLocal() }) // Close waits for it
		clear(c.returned)
		return results, errs, nil
	}
	results = make(chan error, len(byBroker))
	for broker, pqs := range byBroker {
		m.background.Go(func() { // Close waits for it; ends within the call timeout
			err := m.commit(broker, pqs)
			if err == nil {
				m.mu.Lock()
				for _, pq := range pqs {
					if at, ok := pq.position(); ok && at <= pq.committed && c.returned[pq.queue] == pq {
						delete(c.returned, pq.queue)
					}
				}
				m.mu.Unlock()
			}
			results <- err
		})
	}
	return results, errs, nil
}

// Seek makes offset the next one that Poll returns of the queue; beyond the queue's
// ends it is the nearest that there is. What was fetched before is dropped. Stored
// progress does not go back.
func (c *LitePullConsumer) Seek(q allocate.Queue, offset int64) error {
	if offset < 0 {
		return fmt.Errorf("seek %s/%s/%d: offset %d is negative", q.Topic, q.Broker, q.ID, offset)
	}
	m := c.m
	m.mu.Lock()
	pq := m.queues[q]
	if pq == nil || pq.phase >= draining {
		m.mu.Unlock()
		return fmt.Errorf("seek %s/%s/%d: %w", q.Topic, q.Broker, q.ID, ErrNotAssigned)
	}
	pq.drop()
	pq.offset, pq.known, pq.located, pq.idle = offset, true, false, false
	pq.sought = true
	// A seek past what is not committed commits nothing, nor does one of a reader of given queues.
	if m.engine != nil && (!pq.hasManual || offset < pq.manual) {
		pq.manual, pq.hasManual = offset, true
	}
	pq.discard = pq.fetching
	calls := m.pump(pq)
	m.mu.Unlock()
	m.start(calls)
	m.cancelFetch(pq)
	return nil
}

// SeekToBegin seeks to the oldest message stored.
func (c *LitePullConsumer) SeekToBegin(ctx context.Context, queues ...allocate.Queue) error {
	return c.seekAll(ctx, queues, time.Time{}, func(b client.Bounds) int64 { return b.Min })
}

// SeekToEnd seeks past the newest message stored.
func (c *LitePullConsumer) SeekToEnd(ctx context.Context, queues ...allocate.Queue) error {
	return c.seekAll(ctx, queues, time.Time{}, func(b client.Bounds) int64 { return b.Max })
}

// SeekToTime seeks to the first message stored at or after t.
func (c *LitePullConsumer) SeekToTime(ctx context.Context, t time.Time, queues ...allocate.Queue) error {
	return c.seekAll(ctx, queues, t, func(b client.Bounds) int64 { return b.Offset })
}

// seekAll seeks in the queues named, or in all, to where the broker says.
func (c *LitePullConsumer) seekAll(ctx context.Context, queues []allocate.Queue, t time.Time, where func(client.Bounds) int64) error {
	if len(queues) == 0 {
		queues = c.Assignment()
	}
	for _, q := range queues {
		if err := c.find(ctx, q.Topic); err != nil {
			return err
		}
		b, err := c.m.cluster.FindOffset(ctx, q, t)
		if err == nil {
			err = c.Seek(q, where(b))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// find waits until the route of a topic is known, since only then its brokers can
// be asked.
func (c *LitePullConsumer) find(ctx context.Context, topic string) error {
	news := make(chan struct{}, 1)
	if c.closed.Load() {
		return ErrClosed
	}
	w := c.m.cluster.Watch(func() {
		select {
		case news <- struct{}{}:
		default:
		}
	})
	defer w.Close()
	w.SetTopics([]string{topic})
	for {
		for _, t := range w.Routes() {
			switch {
			case t.Name != topic:
			case len(t.Hosts) == 0:
				return fmt.Errorf("topic %q: %w", topic, ErrTopicNotFound)
			default:
				return nil
			}
		}
		select {
		case <-news:
		case <-c.ended:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("find the brokers of topic %q: %w", topic, ctx.Err())
		}
	}
}

// Assignment returns the queues that the consumer reads now, sorted.
func (c *LitePullConsumer) Assignment() []allocate.Queue {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	out := make([]allocate.Queue, 0, len(c.m.queues))
	for q, pq := range c.m.queues {
		if pq.phase < draining {
			out = append(out, q)
		}
	}
	slices.SortFunc(out, allocate.Queue.Compare)
	return out
}

// Position returns the offset of the next message that Poll returns of the queue.
func (c *LitePullConsumer) Position(q allocate.Queue) (int64, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	if pq := c.m.queues[q]; pq != nil {
		if offset, ok := pq.position(); ok {
			return offset, nil
		}
	}
	return 0, fmt.Errorf("position of %s/%s/%d: %w", q.Topic, q.Broker, q.ID, ErrNotAssigned)
}

// Committed returns the offset that the group has stored for the queue. ok is
// false if it never stored one.
func (c *LitePullConsumer) Committed(ctx context.Context, q allocate.Queue) (offset int64, ok bool, err error) {
	if c.m.cfg.mode == session.Broadcasting {
		offset, ok = c.m.local.get(q)
		return offset, ok, nil
	}
	if err := c.find(ctx, q.Topic); err != nil {
		return 0, false, err
	}
	got, err := c.m.cluster.Committed(ctx, q.Broker, c.m.cfg.group, []allocate.Queue{q}, time.Time{})
	if err != nil {
		return 0, false, err
	}
	for _, o := range got.Offsets {
		if o.Queue == q {
			return o.Offset, o.HasOffset, nil
		}
	}
	return 0, false, fmt.Errorf("committed offset of %s/%s/%d: broker told nothing", q.Topic, q.Broker, q.ID)
}

// Pause stops returning messages of the queues, or of all with none named. A
// pause of a queue ends with its ownership.
func (c *LitePullConsumer) Pause(queues ...allocate.Queue) { c.m.pause(true, queues) }

// Resume undoes Pause; with none named, all pauses.
func (c *LitePullConsumer) Resume(queues ...allocate.Queue) { c.m.pause(false, queues) }

// ClientID returns the consumer's client id.
func (c *LitePullConsumer) ClientID() string { return c.m.cfg.clientID }

// Stats returns what the consumer has and does at this moment.
func (c *LitePullConsumer) Stats() Stats { return c.m.stats(time.Now()) }

// Close confirms what the last Poll returned, if auto-commit is on, stores
// progress, leaves the group and ends everything; a Poll under way returns
// [ErrClosed]. It returns the error of ctx if that ends before. A ctx that has ended
// already, as that of the loop it follows, sets no limit: brokers that do not answer
// then keep it for the drain limit and some seconds at most. Closing again does nothing.
func (c *LitePullConsumer) Close(ctx context.Context) error {
	if ctx.Err() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	if c.closed.Swap(true) {
		return nil
	}
	ran := true
	c.start.Do(func() { ran = false })
	if !ran {
		close(c.ended)
		c.m.abandon()
		return nil
	}
	select {
	case c.turn <- struct{}{}: // no Poll under way: what was returned has been worked off
		c.confirm()
		<-c.turn
	default:
	}
	c.stop()
	select {
	case <-c.ended:
		return c.err
	case <-ctx.Done():
		return fmt.Errorf("close consumer: %w", ctx.Err())
	}
}
