package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/consumer/coordinated"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
)

// Coordination are the settings of the coordinated model.
type Coordination struct {
	// Assignors of the classic protocol; none for the consumer protocol.
	Assignors []coordinated.Assignor
	// RebalanceTimeout is how long members wait for each other.
	RebalanceTimeout time.Duration
	// Stagger draws each member's heartbeat interval from that part below the usual one,
	// in [0,1): members that begin in step drift apart.
	Stagger float64
	// InitialDelay is how long the first gathering waits for more members.
	InitialDelay time.Duration
}

// Frames of the coordinated model that are no requests to a coordinator.
type (
	// Lookup asks a broker who coordinates the group.
	Lookup struct{ Group string }
	// LookedUp is the answer.
	LookedUp struct{ Broker string }
	// Claim tells the broker of queues that they are the member's from a generation on.
	Claim struct {
		Group, Member string
		Queues        []allocate.Queue
		Generation    coordination.Generation
	}
	// Claimed answers which it may use.
	Claimed struct{ Answers []ClaimAnswer }
	// ClaimAnswer has where the group is in the queue, or the greater generation that
	// has claimed it.
	ClaimAnswer struct {
		Queue   allocate.Queue
		Refused bool
		Seen    coordination.Generation
		Offset  int64
	}
)

const (
	callTimeout = time.Second
	// claimRetry is after how long a claim that nobody answered is repeated.
	claimRetry = 200 * time.Millisecond
)

// coordMember is a member of a coordinated group: the engine of package coordinated,
// in a process like that of the other engine.
type coordMember struct {
	m     *Member
	w     *World
	lines map[string]*coordLine
	asks  map[uint64]*coordLine // without an answer yet
	// claims are to be sent, by broker.
	claims map[string][]*process
}

// coordLine is a connection to a broker, made when it is needed.
type coordLine struct {
	broker  string
	stream  *stream
	dialing bool
	waiting []rebalance.Ask
}

func newCoordMember(m *Member) *coordMember {
	return &coordMember{
		m: m, w: m.w,
		lines: map[string]*coordLine{}, asks: map[uint64]*coordLine{}, claims: map[string][]*process{},
	}
}

func (c *coordMember) start() {
	m, opt := c.m, c.w.opt
	heartbeat := opt.Heartbeat
	if s := opt.Coordination.Stagger; s > 0 {
		heartbeat = c.w.between(time.Duration((1-s)*float64(heartbeat)), heartbeat)
	}
	e, err := coordinated.New(coordinated.Config{
		Group: m.group, ClientID: cmp.Or(m.clientID, m.name), Instance: m.instance, Topics: m.topics,
		Assignors: opt.Coordination.Assignors, ServerSide: len(opt.Coordination.Assignors) == 0,
		SessionTimeout: opt.SessionTimeout, Heartbeat: heartbeat, RebalanceTimeout: opt.Coordination.RebalanceTimeout,
		Jitter: c.w.rng.Float64,
	})
	if err != nil {
		c.w.check.fail("start", "%s: %v", m.name, err)
		return
	}
	m.engine = e
	m.routes = newObserver(c.w, &m.node, m.readRoutes)
	m.pollRoutes()
	m.startCommits()
	m.step(rebalance.Wake{})
}

func (c *coordMember) leave() { c.m.step(rebalance.Leave{}) }

func (c *coordMember) show() {} // its queues are the member's

func (c *coordMember) after(d time.Duration, fn func()) {
	life := c.m.life
	c.w.after(d, func() { c.m.do(life, fn) })
}

func (c *coordMember) hangUp() {
	for _, b := range sortedKeys(c.lines) {
		if s := c.lines[b].stream; s != nil && s.memberOpen {
			s.closeByMember()
		}
	}
}

func (c *coordMember) disconnected(s *stream) {
	if l := c.lines[s.broker.name]; l != nil && l.stream == s {
		c.broken(l)
	}
}

// broken fails all that waits for an answer over the connection.
func (c *coordMember) broken(l *coordLine) {
	l.stream = nil
	for _, id := range sortedKeys(c.asks) {
		if c.asks[id] == l {
			c.fail(id)
		}
	}
}

func (c *coordMember) fail(id uint64) {
	delete(c.asks, id)
	c.after(0, func() { c.m.step(rebalance.AskFailed{ID: id}) })
}

// perform does what the other engine never asks for.
func (c *coordMember) perform(eff rebalance.Effect) {
	switch eff := eff.(type) {
	case rebalance.FindCoordinator:
		c.find(0, c.w.rng.IntN(max(1, len(c.w.brokers))))
	case rebalance.Ask:
		c.ask(eff)
	case rebalance.WatchTopics: // all members here subscribe to the same
	default:
	}
}

// find asks one broker after another who coordinates.
func (c *coordMember) find(tried, from int) {
	if tried >= len(c.w.brokers) {
		c.after(0, func() { c.m.step(rebalance.Coordinator{}) })
		return
	}
	b := c.w.brokers[(from+tried)%len(c.w.brokers)]
	answered := false
	end := func(fn func()) {
		if !answered {
			answered = true
			fn()
		}
	}
	next := func() { c.find(tried+1, from) }
	c.after(callTimeout, func() { end(next) })
	c.w.sees(Lookup{c.m.group})
	life := c.m.life
	back := func(fn func()) {
		c.w.transit(b.name, c.m.name, c.w.now, func() { c.m.do(life, func() { end(fn) }) })
	}
	c.w.transit(c.m.name, b.name, c.w.now, func() {
		if !b.up {
			back(next)
			return
		}
		b.do(b.life, func() {
			host := coordOf(b).host(c.m.group)
			c.w.sees(LookedUp{host})
			back(func() { c.m.step(rebalance.Coordinator{Broker: host}) })
		})
	})
}

func (c *coordMember) ask(a rebalance.Ask) {
	l := c.lines[a.Broker]
	if l == nil {
		l = &coordLine{broker: a.Broker}
		c.lines[a.Broker] = l
	}
	c.asks[a.ID] = l
	if l.stream != nil {
		c.send(l, a)
		return
	}
	l.waiting = append(l.waiting, a)
	if l.dialing {
		return
	}
	b := c.w.broker(a.Broker)
	if b == nil {
		l.waiting = nil
		c.fail(a.ID)
		return
	}
	l.dialing = true
	c.w.dial(c.m, b, callTimeout, func(s *stream) {
		l.dialing, l.stream = false, s
		waiting := l.waiting
		l.waiting = nil
		for _, a := range waiting {
			if s == nil {
				c.fail(a.ID)
			} else {
				c.send(l, a)
			}
		}
	})
}

func (c *coordMember) send(l *coordLine, a rebalance.Ask) {
	s := l.stream
	c.w.sees(a.Request)
	s.carryToBroker(func() {
		coordOf(s.broker).received(s, a.Request, func(ans coordination.Answer) {
			if !s.brokerOpen {
				return
			}
			c.w.sees(ans)
			s.carryToMember(func() {
				if c.asks[a.ID] == l {
					delete(c.asks, a.ID)
					c.m.step(rebalance.Answered{ID: a.ID, Answer: ans})
				}
			})
		})
	})
}

// claim has p claimed, together with the others of its broker.
func (c *coordMember) claim(p *process) {
	b := p.queue.Broker
	c.claims[b] = append(c.claims[b], p)
	if len(c.claims[b]) == 1 {
		c.after(0, func() { c.sendClaims(b) })
	}
}

func (c *coordMember) sendClaims(broker string) {
	ps := slices.DeleteFunc(c.claims[broker], func(p *process) bool { return p.dead || p.revoking || p.claimed })
	delete(c.claims, broker)
	b := c.w.broker(broker)
	byGeneration := map[coordination.Generation][]*process{}
	for _, p := range ps {
		byGeneration[p.epoch] = append(byGeneration[p.epoch], p)
	}
	generations := slices.SortedFunc(maps.Keys(byGeneration), coordination.Generation.Compare)
	for _, g := range generations {
		c.sendClaim(b, g, byGeneration[g])
	}
}

func (c *coordMember) sendClaim(b *Broker, g coordination.Generation, ps []*process) {
	queues := make([]allocate.Queue, len(ps))
	for i, p := range ps {
		queues[i] = p.queue
	}
	req := Claim{Group: c.m.group, Member: c.m.name, Queues: queues, Generation: g}
	answered := false
	retry := func() {
		if !answered {
			answered = true
			c.after(claimRetry, func() {
				for _, p := range ps {
					if !p.dead && !p.revoking && !p.claimed {
						c.claim(p)
					}
				}
			})
		}
	}
	c.after(callTimeout, retry)
	c.w.sees(req)
	life := c.m.life
	c.w.transit(c.m.name, b.name, c.w.now, func() {
		if !b.up {
			c.w.transit(b.name, c.m.name, c.w.now, func() { c.m.do(life, retry) })
			return
		}
		b.do(b.life, func() {
			coordOf(b).claim(req, func(answers []ClaimAnswer) {
				c.w.sees(Claimed{answers})
				c.w.transit(b.name, c.m.name, c.w.now, func() {
					c.m.do(life, func() {
						if !answered {
							answered = true
							c.claimed(ps, answers)
						}
					})
				})
			})
		})
	})
}

func (c *coordMember) claimed(ps []*process, answers []ClaimAnswer) {
	for i, p := range ps {
		a := answers[i]
		switch {
		case c.m.procs[p.queue] != p || p.dead || p.revoking:
		case a.Refused:
			c.m.step(rebalance.Refused{Queue: p.queue, Epoch: p.epoch, Seen: a.Seen})
		default:
			p.claimed = true
			p.next, p.done, p.end, p.floor = a.Offset, a.Offset, a.Offset, a.Offset
			c.m.show(p)
			c.m.pump(p)
		}
		if !c.m.up {
			return
		}
	}
}

// drained stores how far the member came, and tells the engine when that is done or
// cannot be.
func (c *coordMember) drained(p *process) {
	m, w := c.m, c.w
	tell := func() { m.step(rebalance.Drained{Queue: p.queue, Epoch: p.epoch}) }
	if !p.claimed || w.opt.Idle {
		tell()
		return
	}
	told := false
	once := func() {
		if !told {
			told = true
			tell()
		}
	}
	c.after(callTimeout, once)
	b, life := w.broker(p.queue.Broker), m.life
	w.transit(m.name, b.name, w.now, func() {
		if !b.up {
			w.transit(b.name, m.name, w.now, func() { m.do(life, once) })
			return
		}
		b.do(b.life, func() {
			coordOf(b).commit(lease.Key{Group: m.group, Queue: p.queue}, p.epoch, p.done, func(error) {
				w.transit(b.name, m.name, w.now, func() { m.do(life, once) })
			})
		})
	})
}
