package consumer

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

const (
	// sweepEvery is how often slow handlers are looked at.
	sweepEvery = 250 * time.Millisecond
	// goodbyeTime is how long a stop may take beyond the drain limit when brokers
	// do not answer.
	goodbyeTime = 2 * time.Second
)

// member is what a push and a lite pull consumer have in common: one member of a
// consumer group. One goroutine, the loop, owns the engine and the connections;
// the table of process queues has a lock, since handlers, fetches and the loop
// all work on it.
type member struct {
	cfg        config
	retryTopic string
	log        *zap.Logger
	met        *metrics
	cluster    client.Cluster
	watch      client.Watch
	local      *localOffsets // of a broadcasting member
	decoders   sync.Pool     // of *batch.Decoder
	inbox      *inbox
	timers     timers
	backs      *backs
	telling    tellings
	// schedule is called under the lock when there may be something to hand out.
	schedule func()

	// base is the context of calls and handlers: it outlives the one of Run, whose
	// end begins a graceful leave.
	base   context.Context //nolint:containedctx // the member's life, made and ended by Run
	finish context.CancelFunc

	background sync.WaitGroup // ends by itself once base has
	goodbyes   sync.WaitGroup // sessions that are closed and still write
	handlers   sync.WaitGroup // user code: Run does not wait for ever

	// Owned by the loop.
	engine   *rebalance.Engine // nil if queues are assigned by hand
	wanted   []allocate.Queue  // those assigned by hand
	conns    map[string]*conn
	wakeAt   time.Time
	leases   map[string]*leaseClock
	commitAt time.Time
	sweepAt  time.Time
	levels   levels
	settling settling
	losses   map[string]*loss // by topic: queues lost a moment ago, not yet said
	left     bool
	// suspending is set by suspend: of a static member, brokers keep the leases, and
	// what they still say of them is for its successor.
	suspending bool
	failure    error

	routed  atomic.Bool  // routes have changed
	stopped atomic.Bool  // Run has ended or must not begin
	open    atomic.Int32 // session streams

	mu         sync.Mutex
	subs       map[string]*filter
	queues     map[allocate.Queue]*processQueue
	lingering  map[allocate.Queue]*processQueue // gone, with handlers still running
	keeping    map[*processQueue]bool           // of a member being suspended: not done with yet, and whether the lease stays
	ready      line
	starved    []*processQueue
	tasks      map[*task]struct{}
	committing map[string]bool
	askers     map[string]*asker    // by topic: who finds out where to begin
	ever       map[string]bool      // topics on which the group is known to have committed
	looked     map[string]bool      // topics of which this member knows whether the group is new
	fresh      map[string]freshly   // by topic: where the group began, if this member found it new
	storeAt    map[string]time.Time // by topic: from when on beginnings are stored
	warnings   warnings             // of failed messages
	stuck      warnings             // of queues that cannot be read
	missing    map[string]bool      // subscribed topics that do not exist
	paused     bool
	ended      bool
	stalled    bool
	progress   time.Time // when a handler last ended, or the first began; a Poll began or ended
	byPoll     bool      // messages are handed out by Poll alone
	polls      int       // under way
	// beginningsAt is when storeBeginnings is due next.
	beginningsAt time.Time
	workers      int
	hatching     int // workers that have not yet looked for work
	waiting      int // messages to be handed out
	running      int // messages with handlers
	cached       int64
	reserved     int64
}

func newMember(cfg config, cluster client.Cluster) (*member, error) {
	m := &member{
		cfg: cfg, cluster: cluster, retryTopic: message.RetryTopic(cfg.group), inbox: newInbox(),
		log:   cfg.log.With(zap.String("group", cfg.group), zap.String("client_id", cfg.clientID)),
		conns: make(map[string]*conn), leases: make(map[string]*leaseClock),
		subs: make(map[string]*filter), queues: make(map[allocate.Queue]*processQueue),
		lingering: make(map[allocate.Queue]*processQueue),
		tasks:     make(map[*task]struct{}), committing: make(map[string]bool),
		askers: make(map[string]*asker), ever: make(map[string]bool), looked: make(map[string]bool), fresh: make(map[string]freshly), storeAt: make(map[string]time.Time),
		settling: newSettling(), losses: make(map[string]*loss),
		schedule: func() {},
	}
	m.decoders.New = func() any { return new(batch.Decoder) }
	m.backs = newBacks(&m.background)
	m.base, m.finish = context.WithCancel(context.Background())
	var err error
	if m.met, err = newMetrics(cfg.reg, cfg.group); err != nil {
		return nil, err
	}
	if cfg.mode == session.Broadcasting {
		m.local = openLocalOffsets(cfg.offsetFile, cfg.group, m.log)
	}
	for _, s := range m.subscriptions(cfg.topics) {
		m.subs[s.Topic] = newFilter(s.Filter)
	}
	return m, nil
}

// newEngine makes the engine of a member that shares queues.
func (m *member) newEngine() error {
	var err error
	m.engine, err = rebalance.New(rebalance.Config{
		Group: m.cfg.group, ClientID: m.cfg.clientID, Instance: m.cfg.instance, Incarnation: newIncarnation(), Mode: m.cfg.mode,
		Strategies: m.cfg.strategies, Data: m.cfg.data, Subscriptions: m.subscriptions(m.cfg.topics),
		Tick: m.cfg.tick, Heartbeat: m.cfg.heartbeat, SessionTimeout: m.cfg.sessionTimeout, Jitter: rand.Float64,
	})
	return err
}

// subscriptions adds the group's retry topic, where there is one.
func (m *member) subscriptions(topics []session.Subscription) []session.Subscription {
	out := append([]session.Subscription(nil), topics...)
	if m.cfg.mode != session.Broadcasting && len(out) > 0 {
		out = append(out, session.Subscription{Topic: m.retryTopic, Filter: "*"})
	}
	return out
}

// run is the loop. The end of ctx begins a graceful leave.
func (m *member) run(ctx context.Context) error {
	watch := m.cluster.Watch(func() {
		m.routed.Store(true)
		m.inbox.kick()
	})
	m.mu.Lock() // Ready may be called at any time
	m.watch = watch
	m.mu.Unlock()
	m.watch.SetTopics(m.topics())
	m.commitAt = time.Now().Add(m.cfg.commitEvery)
	m.sweepAt = time.Now().Add(sweepEvery)
	m.mu.Lock()
	m.progress = time.Now()
	m.mu.Unlock()
	m.step(rebalance.Wake{})
	timer := time.NewTimer(0)
	defer timer.Stop()
	stop := ctx.Done()
	var forceAt time.Time
	var items []item
	for !m.left && m.failure == nil {
		timer.Reset(time.Until(m.nextWake(forceAt)))
		select {
		case <-stop:
			stop = nil
			forceAt = time.Now().Add(m.cfg.drainLimit + goodbyeTime)
			m.goAway()
		case <-timer.C:
		case <-m.inbox.wake:
		}
		items = m.inbox.take(items)
		for i := range items {
			m.receive(items[i])
			items[i] = item{}
		}
		if m.routed.Swap(false) {
			m.route()
		}
		now := time.Now()
		fns, _ := m.timers.due(now)
		for _, f := range fns {
			f()
		}
		if !m.wakeAt.IsZero() && !now.Before(m.wakeAt) {
			m.wakeAt = time.Time{}
			m.step(rebalance.Wake{})
		}
		m.regular(now)
		if !forceAt.IsZero() && !now.Before(forceAt) {
			m.log.Warn("leaving without the goodbyes of all brokers", zap.Int("queues", m.held()))
			break
		}
	}
	m.sayLost()
	m.close()
	if forceAt.IsZero() {
		forceAt = time.Now().Add(m.cfg.drainLimit)
	}
	m.await(forceAt.Add(-goodbyeTime))
	return m.failure
}

func (m *member) held() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.queues)
}

// nextWake is the next moment at which the loop has something to do.
func (m *member) nextWake(also time.Time) time.Time {
	at := m.commitAt
	earlier := func(t time.Time) {
		if !t.IsZero() && t.Before(at) {
			at = t
		}
	}
	earlier(m.sweepAt)
	earlier(m.wakeAt)
	earlier(also)
	_, next := m.timers.due(time.Time{})
	earlier(next)
	return at
}

// after has f called by the loop. f must not block.
func (m *member) after(d time.Duration, f func()) {
	m.timers.add(time.Now().Add(d), f)
	m.inbox.kick()
}

// regular does what is done at intervals.
func (m *member) regular(now time.Time) {
	if !now.Before(m.commitAt) {
		m.commitAt = now.Add(m.cfg.commitEvery)
		m.commitAll()
	}
	if !now.Before(m.sweepAt) {
		m.mu.Lock()
		calls := m.steal(now)
		inHand := m.running > 0 || m.byPoll && m.polls == 0 && m.engine != nil
		stalled := !m.stalled && inHand && now.Sub(m.progress) >= m.cfg.stall
		if stalled {
			m.stalled = true
		}
		busy := m.running > 0
		m.schedule()
		m.mu.Unlock()
		m.start(calls)
		m.met.level(&m.levels, m.measure())
		m.sweepAt = now.Add(sweepEvery)
		if !busy { // nothing to look at: be quiet
			m.sweepAt = now.Add(time.Second)
		}
		if stalled {
			m.met.stalled(1)
			m.log.Error("handlers make no progress, giving the queues up until they do", zap.Duration("for", m.cfg.stall))
			m.step(rebalance.Stalled{})
		}
	}
}

// measure returns what the member adds to the gauges of its group.
func (m *member) measure() levels {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := levels{cached: float64(m.cached), waiting: float64(m.waiting), running: float64(m.running), lag: make(map[string]float64)}
	for _, pq := range m.queues {
		if offset, ok := pq.finished(); ok && pq.located {
			l.lag[pq.queue.Topic] += float64(max(0, pq.max-offset))
		}
	}
	return l
}

// recovered takes note of progress after a stall. Called under the lock.
func (m *member) recovered() {
	if m.stalled {
		m.stalled = false
		m.met.stalled(-1)
		m.log.Info("handlers make progress again")
		m.inbox.put(item{ev: rebalance.Recovered{}})
	}
}

func (m *member) receive(it item) {
	switch {
	case it.conn != nil && m.conns[it.conn.broker] != it.conn:
	case it.do != nil:
		it.do()
	case it.ev != nil:
		m.step(it.ev)
	}
}

// goAway begins the graceful leave: nothing more is handed out.
func (m *member) goAway() {
	m.log.Info("leaving")
	m.mu.Lock()
	m.paused = true
	m.mu.Unlock()
	switch {
	case m.engine == nil:
		m.suspend()
	case m.cfg.instance != "" && m.cfg.mode == session.Exclusive && !m.cfg.leaveOnStop:
		m.suspend()
	default:
		m.step(rebalance.Leave{})
	}
}

// topics returns the subscribed topics.
func (m *member) topics() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]string, 0, len(m.subs))
	for t := range m.subs {
		out = append(out, t)
	}
	return out
}

// route tells the engine of the routes.
func (m *member) route() {
	routes := m.watch.Routes()
	m.checkTopics(routes)
	m.lookAt(routes)
	ev := rebalance.Routes{Topics: make([]rebalance.Topic, len(routes))}
	for i, t := range routes {
		ev.Topics[i] = rebalance.Topic{Name: t.Name, Brokers: t.Brokers(), Queues: t.Readable()}
	}
	m.step(ev)
}

func (m *member) lease(broker string) *leaseClock {
	l := m.leases[broker]
	if l == nil {
		l = new(leaseClock)
		m.leases[broker] = l
	}
	return l
}

// find returns the process queue of a lease.
func (m *member) find(q allocate.Queue, e session.Epoch) *processQueue {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pq := m.queues[q]; pq != nil && pq.epoch == e {
		return pq
	}
	return nil
}

// openUp lets queues be handed out.
func (m *member) openUp(pqs []*processQueue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, pq := range pqs {
		if pq.phase != starting {
			continue
		}
		// One handler at a time per queue, also where the one before the queue
		// was lost still runs.
		if old := m.lingering[pq.queue]; old != nil && m.cfg.handler.orderly {
			pq.busy = true
			old.idleFn = append(old.idleFn, func() {
				pq.busy = false
				m.enqueue(pq)
				m.schedule()
			})
		}
		pq.phase = running
		m.enqueue(pq)
	}
	m.schedule()
}

// close ends everything the member started, but for user code that hangs.
func (m *member) close() {
	m.mu.Lock()
	m.ended = true
	rest := make([]*processQueue, 0, len(m.queues))
	for _, pq := range m.queues {
		rest = append(rest, pq)
	}
	m.mu.Unlock()
	m.lose(rest)
	m.watch.Close()
	for broker := range m.conns {
		m.disconnect(broker)
	}
	m.goodbyes.Wait() // finish would cut off what they still write: releases with their offsets
	m.finish()
	m.backs.close()
	m.background.Wait()
	m.met.level(&m.levels, levels{})
	m.met.missing(-len(m.missing))
	if m.cfg.ownClient {
		m.cluster.Close()
	}
}

// await waits until handlers and listener have ended, until the deadline.
func (m *member) await(deadline time.Time) {
	ended := make(chan struct{})
	go func() { // ends with the last handler; if one hangs, so does this
		m.handlers.Wait()
		close(ended)
	}()
	if !wait(ended, deadline) {
		m.mu.Lock()
		n := m.running
		m.mu.Unlock()
		m.log.Warn("handlers still run, their messages will be handed out again", zap.Int("messages", n))
	}
}
