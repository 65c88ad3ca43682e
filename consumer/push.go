package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// PushConsumer is a member of a consumer group that calls a handler with the
// messages of its share of the queues.
type PushConsumer struct {
	m    *member
	open func() error // the connections
}

// New returns a consumer of the group; [PushConsumer.Run] starts it, and before it
// nothing runs. name servers are host:port addresses.
func New(nameServers []string, group string, handler Handler, opts ...Option) (*PushConsumer, error) {
	cfg := defaults(group)
	for _, o := range opts {
		o(&cfg)
	}
	cfg.handler = handler
	cfg.manualCommit = false
	var bad error
	switch {
	case handler.handle == nil:
		bad = errors.New("handler is missing")
	case handler.size < 1 || handler.size > maxHandlerSize:
		bad = fmt.Errorf("batch size %d of the handler: must be 1 to %d", handler.size, maxHandlerSize)
	}
	servers := client.Config{NameServers: slices.Clone(nameServers), Dialer: cfg.dialer, Logger: cfg.log}
	m, err := prepare(cfg, bad)
	if err != nil {
		return nil, err
	}
	m.schedule = m.spawn
	if cfg.client == nil {
		err = servers.Check()
	}
	if err == nil {
		err = m.newEngine()
	}
	if err != nil {
		m.finish()
		return nil, fmt.Errorf("consumer of group %q: %w", group, err)
	}
	return &PushConsumer{m: m, open: func() error { return m.openClient(servers) }}, nil
}

// prepare makes a member of settings; openClient makes it ready to run.
func prepare(cfg config, bad error) (*member, error) {
	if err := errors.Join(bad, cfg.validate()); err != nil {
		return nil, fmt.Errorf("consumer of group %q: %w", cfg.group, err)
	}
	return newMember(cfg, cfg.client)
}

// openClient opens the member's connections, unless it was given some.
func (m *member) openClient(servers client.Config) error {
	if m.cluster != nil {
		return nil
	}
	c, err := client.Open(servers)
	if err != nil {
		return fmt.Errorf("consumer of group %q: %w", m.cfg.group, err)
	}
	m.cluster, m.cfg.ownClient = c, true
	return nil
}

// abandon gives up a member that never ran.
func (m *member) abandon() {
	m.finish()
	if m.cfg.ownClient {
		m.cluster.Close()
	}
}

// Run consumes until ctx ends, and then leaves: it hands out nothing more, waits
// for running handlers up to the drain limit, stores progress, releases its
// queues and returns nil. It returns an error when the group refuses the member
// and repeating cannot help. A consumer runs once.
func (c *PushConsumer) Run(ctx context.Context) error {
	if c.m.stopped.Swap(true) {
		return ErrClosed
	}
	if err := c.open(); err != nil {
		return err
	}
	if err := c.m.run(ctx); err != nil {
		return fmt.Errorf("consumer of group %q: %w", c.m.cfg.group, err)
	}
	return nil
}

// ClientID returns the consumer's client id.
func (c *PushConsumer) ClientID() string { return c.m.cfg.clientID }

// Subscribe adds a topic. The filter of a topic subscribed to cannot be changed, since
// all members of the group have the same. See [WithTopic].
func (c *PushConsumer) Subscribe(topic, filter string) error { return c.m.subscribe(topic, filter) }

// Unsubscribe takes a topic away: its queues are drained and released.
func (c *PushConsumer) Unsubscribe(topic string) { c.m.unsubscribe(topic) }

// Pause stops handing out messages of some queues, or of all with none named;
// handlers that run go on. The queues stay the member's. A pause of a queue ends
// with its ownership, one of all only with [PushConsumer.Resume].
func (c *PushConsumer) Pause(queues ...allocate.Queue) { c.m.pause(true, queues) }

// Resume undoes [PushConsumer.Pause]; with none named, all pauses.
func (c *PushConsumer) Resume(queues ...allocate.Queue) { c.m.pause(false, queues) }

// Ready returns nil while the consumer is connected to a broker of its topics, and
// what keeps it otherwise: no name server answers, the topics do not exist, or no
// broker is reached.
func (c *PushConsumer) Ready() error {
	if c.m.open.Load() > 0 {
		return nil
	}
	c.m.mu.Lock()
	missing, watch := slices.Sorted(maps.Keys(c.m.missing)), c.m.watch
	c.m.mu.Unlock()
	if len(missing) > 0 {
		return fmt.Errorf("topics %q: %w", missing, ErrTopicNotFound)
	}
	if watch != nil {
		if err := watch.Ready(); err != nil {
			return err
		}
	}
	return errors.New("no session with any broker of the topics")
}

// Stats returns what the consumer has and does at this moment.
func (c *PushConsumer) Stats() Stats { return c.m.stats(time.Now()) }

// newFilter makes a filter of its one form.
func newFilter(text string) *filter {
	f := &filter{text: text}
	if text == "*" {
		return f
	}
	f.tags = splitFilter(text)
	for _, t := range f.tags {
		f.hashes = append(f.hashes, batch.Hash(t))
	}
	return f
}

func (m *member) subscribe(topic, filter string) error {
	if err := message.CheckTopic(topic); err != nil {
		return err
	}
	filter, err := parseFilter(filter)
	if err != nil {
		return err
	}
	m.mu.Lock()
	if s := m.subs[topic]; s != nil && s.text != filter {
		m.mu.Unlock()
		return fmt.Errorf("filter %q: it is %q, and all members of the group must have the same", filter, s.text)
	}
	m.subs[topic] = newFilter(filter)
	for _, pq := range m.queues {
		if pq.queue.Topic == topic {
			pq.filter = m.subs[topic]
		}
	}
	m.mu.Unlock()
	m.resubscribe()
	return nil
}

func (m *member) unsubscribe(topic string) {
	m.mu.Lock()
	delete(m.subs, topic)
	m.mu.Unlock()
	m.resubscribe()
}

// resubscribe tells the engine of the subscriptions as they are by then.
func (m *member) resubscribe() {
	m.inbox.put(item{do: func() {
		m.mu.Lock()
		delete(m.subs, m.retryTopic)
		subs := make([]session.Subscription, 0, len(m.subs)+1)
		for t, f := range m.subs {
			subs = append(subs, session.Subscription{Topic: t, Filter: f.text})
		}
		subs = m.subscriptions(subs)
		for _, s := range subs {
			if m.subs[s.Topic] == nil {
				m.subs[s.Topic] = newFilter(s.Filter)
			}
		}
		m.mu.Unlock()
		slices.SortFunc(subs, func(a, b session.Subscription) int { return allocate.CompareStrings(a.Topic, b.Topic) })
		m.watch.SetTopics(m.topics())
		m.step(rebalance.SetSubscriptions{Subscriptions: subs})
	}})
}

func (m *member) pause(on bool, queues []allocate.Queue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var calls []*client.FetchCall
	defer func() {
		if len(calls) > 0 { // started by the loop, which holds no lock
			m.inbox.put(item{do: func() { m.start(calls) }})
		}
	}()
	set := func(pq *processQueue) {
		if pq.phase >= draining {
			return
		}
		pq.paused = on
		if !on {
			m.enqueue(pq)
			calls = append(calls, m.pump(pq)...)
		}
	}
	if len(queues) == 0 {
		m.paused = on
		if !on {
			for _, pq := range m.queues {
				set(pq)
			}
		}
	}
	for _, q := range queues {
		if pq := m.queues[q]; pq != nil {
			set(pq)
		}
	}
	m.schedule()
}
