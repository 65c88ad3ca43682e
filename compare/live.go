package compare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/internal/tempdir"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/nameserver"
	"github.com/tacitmq/tacit/session"
)

// Limits of live runs: all members and brokers share one process.
const (
	MaxLiveMembers = 200
	MaxLiveQueues  = busyQueues
	MaxLiveBrokers = 16
)

const (
	// usualHandler is how long a handler takes at most, as in the simulation.
	usualHandler = 20 * time.Millisecond
	// commitEvery is how often members store their progress, as in the simulation.
	commitEvery = time.Second
	// startLimit bounds the start of servers and changes of the topic.
	startLimit = 30 * time.Second
	// stopLimit bounds how long the end of a run waits for members.
	stopLimit = 20 * time.Second
)

// errGone is the error of what a dead member dials.
var errGone = errors.New("the host of this member is gone")

// live is a stage of servers on loopback sockets with disks in a temporary directory, and
// of consumers of the SDK in this process, each with connections of its own. What they
// tell waits, with its time, until the play lets time pass: nobody waits for the
// instruments.
type live struct {
	ctx         context.Context //nolint:containedctx // the life of the run, which all members share
	begun       time.Time
	play        *play
	c           *cluster.Cluster
	options     func() []consumer.Option // of the model
	coordinated bool
	size        Size
	members     map[string]*liveMember // the latest of each name
	all         []*liveMember
	hosted      map[string]int // queues by broker
	down        map[string]bool
	used        *frames
	total       atomic.Int64 // queues, for the rate of the producer

	mu    sync.Mutex
	told  []observation
	wake  chan struct{} // of capacity 1
	fault error
}

// observation is what a member, a handler or the producer tells.
type observation struct {
	at     time.Duration
	kind   observed
	member string
	queues []allocate.Queue
	offset int64
}

type observed uint8

const (
	took observed = iota
	gaveUp
	wasHanded
	wasHandled
	wasStored
	lagDue
)

// liveMember is one consumer.
type liveMember struct {
	name  string
	net   *cluster.Net
	gone  atomic.Bool  // dead: nobody hears of it any more
	slow  atomic.Int64 // nanoseconds a handler takes at most
	leave context.CancelFunc
	done  chan struct{}
}

// playLive plays a scenario on real servers and clients.
func playLive(ctx context.Context, m model, sc Scenario, size Size, timers Timers, phase Phase, seed uint64) (run Run, err error) {
	set := m.settings(timers)
	run = Run{
		Model: m.Name, Scenario: sc.Name, Way: Live, Timers: timers, Phase: phase,
		Members: size.Members, Queues: size.Queues, Brokers: size.Brokers, Seed: seed, Settings: set.list(),
	}
	dir, err := tempdir.New("tacit-compare-")
	if err != nil {
		return run, fmt.Errorf("live run: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Remove()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p := newPlay(size, set.timing())
	l := &live{
		ctx: ctx, begun: time.Now(), play: p, size: size, options: m.consumer(set), coordinated: m.Coordinated,
		members: make(map[string]*liveMember), hosted: make(map[string]int), down: make(map[string]bool),
		used: &frames{}, wake: make(chan struct{}, 1),
	}
	p.stage, p.static, p.tally.sideBySide = l, sc.static, true
	if err := l.setUp(dir.Path); err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, l.c.Stop()) }()
	defer l.stopMembers()
	stopProducer, err := l.startProducer()
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, stopProducer()) }()
	rng := rand.New(rand.NewPCG(seed, 0x1ab)) //nolint:gosec // the same for all models
	if !sc.started {
		if err := p.gather(phase, set, min(set.calm(), 2*set.heartbeat), rng); err != nil {
			return run, err
		}
	}
	if err := sc.script(p); err != nil {
		return run, err
	}
	run.Chart = p.chart()
	// What seemed lost at the end of an event may only have begun later than its successor.
	if err := p.pass(p.now()+commitEvery, nil); err != nil {
		return run, err
	}
	lost := p.tally.counts().lost
	for i := range p.events {
		p.events[i].Lost = min(p.events[i].Lost, lost)
	}
	run.Events = p.events
	return run, nil
}

// setUp starts the servers, with the defaults of their programs, and makes the topic.
func (l *live) setUp(dir string) error {
	ctx, cancel := context.WithTimeout(l.ctx, startLimit)
	defer cancel()
	var err error
	l.c, err = cluster.Start(ctx, cluster.Config{
		Dir: dir, Brokers: l.size.Brokers,
		NameServer: func(cfg *nameserver.Config) {
			listen := cfg.Listen
			*cfg = nameserver.Default()
			cfg.Listen = listen
		},
		Broker: func(cfg *broker.Config) {
			def := broker.Default()
			cfg.SessionTimeoutMin, cfg.RegisterInterval = def.SessionTimeoutMin, def.RegisterInterval
		},
		BrokerOptions: func(string) []broker.Option {
			return []broker.Option{broker.WithServerOptions(grpc.StatsHandler(l.used))}
		},
	})
	if err != nil {
		return fmt.Errorf("start servers: %w", err)
	}
	if err := l.spread(ctx, l.size.Queues); err != nil {
		return errors.Join(err, l.c.Stop())
	}
	return nil
}

// spread sets the number of queues over all brokers.
func (l *live) spread(ctx context.Context, queues int) error {
	names := l.c.Brokers()
	for i, name := range names {
		n := share(queues, len(names), i)
		if n > 0 {
			if err := l.c.PutTopic(ctx, topic, n, name); err != nil {
				return fmt.Errorf("set the queues of %s: %w", name, err)
			}
		}
		l.hosted[name] = int(n)
	}
	l.total.Store(int64(queues))
	return nil
}

// tell keeps what was observed, with the time of now.
func (l *live) tell(o observation) {
	l.mu.Lock()
	o.at = l.now()
	l.told = append(l.told, o)
	l.mu.Unlock()
	if o.kind == took || o.kind == gaveUp {
		l.rouse()
	}
}

func (l *live) rouse() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// fail ends the run at the next opportunity.
func (l *live) fail(err error) {
	if err == nil {
		return
	}
	l.mu.Lock()
	l.fault = errors.Join(l.fault, err)
	l.mu.Unlock()
	l.rouse()
}

// catchUp gives the play all that was told.
func (l *live) catchUp() error {
	l.mu.Lock()
	told, fault := l.told, l.fault
	l.told = nil
	l.mu.Unlock()
	p := l.play
	for _, o := range told {
		for _, q := range o.queues {
			switch o.kind {
			case took, gaveUp:
				p.owns(o.at, o.member, q, o.kind == took)
			case wasHanded:
				p.handedOut(o.member, q, o.offset)
			case wasHandled:
				p.handled(o.member, q, o.offset)
			case wasStored:
				p.tally.stored(q, o.offset)
			case lagDue:
			}
		}
		if o.kind == lagDue {
			// A handler may be quicker than the answer to the producer.
			p.lags = append(p.lags, LagPoint{ms(o.at), max(0, p.tally.lag())})
		}
	}
	return fault
}

func (l *live) now() time.Duration { return time.Since(l.begun) }

func (l *live) pass(t time.Duration, stop func() bool) error {
	timer := time.NewTimer(t - l.now())
	defer timer.Stop()
	for {
		if err := l.catchUp(); err != nil {
			return err
		}
		if stop != nil && stop() {
			return nil
		}
		select {
		case <-l.wake:
		case <-timer.C:
			return l.catchUp()
		case <-l.ctx.Done():
			return context.Cause(l.ctx)
		}
	}
}

func (l *live) start(names []string, static bool) {
	for _, name := range names {
		if was := l.members[name]; was != nil { // one comes after the other, as processes do
			select {
			case <-was.done:
			case <-l.ctx.Done():
				return
			}
		}
		m, err := l.join(name, static)
		if err != nil {
			l.fail(fmt.Errorf("start %s: %w", name, err))
			return
		}
		l.members[name] = m
		l.all = append(l.all, m)
	}
}

func (l *live) join(name string, static bool) (*liveMember, error) {
	m := &liveMember{name: name, net: cluster.NewNet(), done: make(chan struct{})}
	m.slow.Store(int64(usualHandler))
	own := func(kind observed) func(context.Context, []allocate.Queue) {
		return func(_ context.Context, queues []allocate.Queue) {
			if !m.gone.Load() {
				l.tell(observation{kind: kind, member: name, queues: slices.Clone(queues)})
			}
		}
	}
	opts := append(
		l.options(),
		consumer.WithTopic(topic, "*"), consumer.WithClientID(name), consumer.WithStart(consumer.First()), consumer.WithCommitInterval(commitEvery),
		consumer.WithDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if m.gone.Load() {
				return nil, errGone
			}
			return m.net.Dial(ctx, address)
		}),
		consumer.WithListener(consumer.ListenerFuncs{Assigned: own(took), Revoked: own(gaveUp), Lost: own(gaveUp)}),
	)
	if static {
		opts = append(opts, consumer.WithInstanceID(name))
	}
	c, err := consumer.New(l.c.NameServers(), group, consumer.Each(func(ctx context.Context, msg *message.Message) error {
		return l.handle(ctx, m, msg)
	}), opts...)
	if err != nil {
		return nil, err //nolint:wrapcheck // start says which
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.ctx))
	m.leave = cancel
	go func() { // stopMembers waits for it
		defer close(m.done)
		if err := c.Run(ctx); err != nil && !m.gone.Load() {
			l.fail(fmt.Errorf("member %s: %w", name, err))
		}
	}()
	return m, nil
}

// handle is what the handlers do: wait for a random time.
func (l *live) handle(ctx context.Context, m *liveMember, msg *message.Message) error {
	if m.gone.Load() {
		return errGone
	}
	queue := []allocate.Queue{msg.Queue}
	l.tell(observation{kind: wasHanded, member: m.name, queues: queue, offset: msg.Offset})
	work := time.NewTimer(rand.N(time.Duration(m.slow.Load()))) //nolint:gosec // any time will do
	defer work.Stop()
	select {
	case <-work.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !m.gone.Load() {
		l.tell(observation{kind: wasHandled, member: m.name, queues: queue, offset: msg.Offset})
	}
	return nil
}

func (l *live) leave(names []string) {
	for _, name := range names {
		l.members[name].leave()
	}
}

func (l *live) crash(name string, silent bool) {
	m := l.members[name]
	m.gone.Store(true)
	l.fail(l.catchUp()) // what it told while it lived
	if silent {
		m.net.All((*cluster.Link).Swallow)
		return
	}
	m.net.All((*cluster.Link).Cut)
	m.leave()
}

// pause is impossible where members share a process: see [simulatedOnly].
func (l *live) pause(name string, _ time.Duration) {
	l.fail(fmt.Errorf("pause %s: %s", name, simulatedOnly["pause"]))
}

func (l *live) slow(name string, d time.Duration) {
	if d == 0 {
		d = usualHandler
	}
	l.members[name].slow.Store(int64(d))
}

func (l *live) grow(queues int) {
	ctx, cancel := context.WithTimeout(l.ctx, startLimit)
	defer cancel()
	l.fail(l.spread(ctx, queues))
}

func (l *live) brokers() []string { return l.c.Brokers() }

func (l *live) stopBroker(name string) {
	l.down[name] = true
	l.fail(l.c.Broker(name).Kill())
}

func (l *live) startBroker(name string) {
	l.fail(l.c.Broker(name).Start())
	l.down[name] = false
}

func (l *live) coordinator() string {
	if l.coordinated {
		return coordination.Host(group, l.brokers())
	}
	return session.RankBrokers(group, topic, l.brokers())[0]
}

func (l *live) stopNameServer() { l.fail(l.c.NameServer(0).Kill()) }

func (l *live) startNameServer() { l.fail(l.c.NameServer(0).Start()) }

// cut lets everything vanish: nobody says that the other cannot be reached.
func (l *live) cut(member, broker string) { l.link(member, broker).Swallow() }

func (l *live) heal(member, broker string) { l.link(member, broker).Heal() }

func (l *live) link(member, broker string) *cluster.Link {
	return l.members[member].net.Link(l.c.Broker(broker).Address())
}

func (l *live) queues() []allocate.Queue {
	var out []allocate.Queue
	for _, b := range l.brokers() {
		if l.down[b] {
			continue
		}
		for i := range l.hosted[b] {
			out = append(out, allocate.Queue{Topic: topic, Broker: b, ID: int32(i)}) //nolint:gosec // within MaxLiveQueues
		}
	}
	return out
}

func (l *live) wire() Wire { return l.used.wire() }

func (l *live) cpu() time.Duration { return processTime() }

// stopMembers ends all members at once. The dead ones find no host, so that they end
// without a word.
func (l *live) stopMembers() {
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	for _, m := range l.all {
		if m.gone.Load() {
			m.net.All((*cluster.Link).Cut)
		}
		m.leave()
	}
	for _, m := range l.all {
		select {
		case <-m.done:
		case <-limit.C:
			return // they end when their servers do
		}
	}
}
