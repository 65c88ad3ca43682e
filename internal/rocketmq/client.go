package rocketmq

import (
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Config of a client.
type Config struct {
	Group, ClientID string
	// Topics the application subscribes to; the retry topic is added.
	Topics []string
	Timers Timers
	// Choose returns an even number from 0 to n-1.
	Choose func(n int) int
	// Idle clients pull nothing, so that no queue goes stale for want of pulls.
	Idle bool
}

// Client is one client instance with one push consumer.
//
// Its threads are chains of calls: the rebalance thread does one pass at a time, the timer
// thread one task; each waits for the answer of a call before it goes on.
type Client struct {
	cfg    Config
	topics []string // subscribed, with the retry topic

	now   time.Time
	out   []Effect
	ended bool

	calls  map[uint64]func(Answer) // what goes on then; nil: it failed
	nextID uint64

	routes  map[string]Route
	brokers map[string]bool              // addresses known
	table   map[allocate.Queue]time.Time // held queues, with their last pull
	beating bool                         // the lock of heartbeats is taken

	// The rebalance thread.
	rebalancing bool
	notified    bool
	due         time.Time // when its wait is over
	passEnded   time.Time // or when the client was built

	// The timer thread.
	tasks []*task
	busy  bool

	stopping bool
	woken    time.Time // last WakeAt
}

// task runs at a fixed rate, as of scheduleAtFixedRate: what was missed is made up for.
type task struct {
	due    time.Time
	period time.Duration
	run    func(done func())
}

// NewClient returns a client that waits for Start.
func NewClient(cfg Config) *Client {
	topics := append(slices.Clone(cfg.Topics), RetryTopic(cfg.Group))
	slices.SortFunc(topics, allocate.CompareStrings)
	return &Client{
		cfg: cfg, topics: topics,
		calls:   make(map[uint64]func(Answer)),
		routes:  make(map[string]Route),
		brokers: make(map[string]bool),
		table:   make(map[allocate.Queue]time.Time),
	}
}

// Step applies ev at now. Equal histories give equal effects, in equal order.
func (c *Client) Step(now time.Time, ev Event) []Effect {
	if c.ended {
		return nil
	}
	c.now, c.out = now, nil
	switch ev := ev.(type) {
	case Start:
		c.start()
	case Wake:
		c.woken = time.Time{}
	case Answered:
		c.goOn(ev.ID, ev.Answer)
	case Failed:
		c.goOn(ev.ID, nil)
	case Notified:
		c.notified = true
	case Connected:
		c.connected(ev.Broker)
	case Pulled:
		if _, ok := c.table[ev.Queue]; ok {
			c.table[ev.Queue] = now
		}
		return nil
	case Shutdown:
		c.shutdown()
	}
	c.turn()
	return c.out
}

// Held returns the queues in the table, sorted.
func (c *Client) Held() []allocate.Queue {
	return slices.SortedFunc(maps.Keys(c.table), allocate.Queue.Compare)
}

func (c *Client) emit(e Effect) { c.out = append(c.out, e) }

// call sends a request; then is called with its answer, or with nil.
func (c *Client) call(to string, r Request, then func(Answer)) {
	c.nextID++
	c.calls[c.nextID] = then
	c.emit(Call{ID: c.nextID, To: to, Request: r})
}

func (c *Client) goOn(id uint64, a Answer) {
	if then := c.calls[id]; then != nil {
		delete(c.calls, id)
		then(a)
	}
}

// start is that of the consumer: the client instance with its timers, then, in the
// application's thread, the routes, a round of heartbeats and the first wake-up.
func (c *Client) start() {
	c.passEnded = c.now
	c.due = c.now.Add(c.cfg.Timers.Rebalance)
	c.tasks = []*task{
		{c.now.Add(firstRoutePoll), c.cfg.Timers.RoutePoll, c.pollRoutes},
		{c.now.Add(firstHeartbeat), c.cfg.Timers.Heartbeat, func(done func()) {
			c.forget()
			c.heartbeatAll(func(bool) { done() })
		}},
		{c.now.Add(firstSave), saveInterval, func(done func()) {
			c.saveAll()
			done()
		}},
	}
	c.pollRoutes(func() {
		c.heartbeatAll(func(sent bool) { c.notified = c.notified || sent })
	})
}

// turn lets the threads go on that may, and asks to be woken for the next time.
func (c *Client) turn() {
	if c.stopping {
		return
	}
	for c.rebalance() || c.runTask() {
		continue
	}
	next := time.Time{}
	if !c.rebalancing {
		next = c.due
	}
	if !c.busy {
		for _, t := range c.tasks {
			if next.IsZero() || t.due.Before(next) {
				next = t.due
			}
		}
	}
	if !next.IsZero() && !next.Equal(c.woken) {
		c.woken = next
		c.emit(WakeAt{next})
	}
}

// runTask runs the task that is due the longest; it reports whether it did.
func (c *Client) runTask() bool {
	if c.busy || len(c.tasks) == 0 {
		return false
	}
	t := slices.MinFunc(c.tasks, func(a, b *task) int { return a.due.Compare(b.due) })
	if t.due.After(c.now) {
		return false
	}
	c.busy = true
	t.due = t.due.Add(t.period)
	t.run(func() { c.busy = false })
	return true
}

// each calls do for one after another and then goes on.
func each[T any](all []T, do func(v T, next func()), then func()) {
	if len(all) == 0 {
		then()
		return
	}
	do(all[0], func() { each(all[1:], do, then) })
}

func (c *Client) pollRoutes(then func()) {
	each(c.topics, c.readRoute, then)
}

// readRoute asks for a route. One that the name server has not, or that cannot be read,
// leaves what is known as it is.
func (c *Client) readRoute(topic string, then func()) {
	c.call("", RouteQuery{topic}, func(a Answer) {
		if a, ok := a.(Routed); ok {
			c.routes[topic] = a.Route
			for _, b := range a.Route.Brokers {
				c.brokers[b] = true
			}
		}
		then()
	})
}

// forget drops the addresses that no route mentions.
func (c *Client) forget() {
	for b := range c.brokers {
		mentioned := false
		for _, r := range c.routes {
			mentioned = mentioned || slices.Contains(r.Brokers, b)
		}
		if !mentioned {
			delete(c.brokers, b)
		}
	}
}

func (c *Client) addresses() []string { return slices.Sorted(maps.Keys(c.brokers)) }

// heartbeatAll sends heartbeats to all brokers, one after another, unless another thread
// does just now. It tells whether it was done; it is even if every single one failed.
func (c *Client) heartbeatAll(then func(sent bool)) {
	all := c.addresses()
	if c.beating || len(all) == 0 {
		then(false)
		return
	}
	c.beating = true
	each(all, c.heartbeat, func() {
		c.beating = false
		then(true)
	})
}

func (c *Client) heartbeat(broker string, then func()) {
	c.call(broker, Heartbeat{c.cfg.ClientID, c.cfg.Group, c.topics}, func(Answer) { then() })
}

// connected sends a heartbeat to the broker, and wakes the rebalance thread.
func (c *Client) connected(broker string) {
	if c.stopping || c.beating || !c.brokers[broker] {
		return
	}
	c.beating = true
	c.heartbeat(broker, func() {
		c.beating = false
		c.notified = true
	})
}

func (c *Client) saveAll() {
	for _, q := range c.Held() {
		c.emit(Save{q})
	}
}

// shutdown saves, unregisters everywhere and drops all queues.
func (c *Client) shutdown() {
	if c.stopping {
		return
	}
	c.stopping = true
	c.emit(Halt{})
	c.saveAll()
	unregister := func(producer bool) func(string, func()) {
		return func(broker string, next func()) {
			c.call(broker, Unregister{c.cfg.ClientID, c.cfg.Group, producer}, func(Answer) { next() })
		}
	}
	each(c.addresses(), unregister(false), func() {
		each(c.addresses(), unregister(true), func() {
			for _, q := range c.Held() {
				delete(c.table, q)
				c.emit(Drop{q})
			}
			c.ended = true
			c.emit(Stopped{})
		})
	})
}
