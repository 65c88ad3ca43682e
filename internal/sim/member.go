package sim

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/session"
)

// Member is a consumer process: the real engine, and a model of the shell that
// dispatches messages to a handler.
type Member struct {
	node
	w        *World
	group    string
	clientID string
	instance string
	topics   []string

	program program // in place of the engine, if the model has another
	engine  engine
	routes  *observer
	wake    int
	conns   map[string]*connection
	until   map[string]time.Time
	procs   map[allocate.Queue]*process
	leaving bool
	left    bool
	stalled bool
	suspend bool      // it stops, and its leases stay
	since   time.Time // when it began to take part as it does now
	failed  session.Reason
	misfit  string                             // in what it differs from its group: mode, strategy or filter
	slow    time.Duration                      // longest handler; zero is the usual
	last    map[allocate.Queue]session.Release // what was released last
}

// engine decides for a member.
type engine interface {
	Step(now time.Time, ev rebalance.Event) []rebalance.Effect
}

// connection is what the shell keeps for one broker: at most one stream, dialled
// again with backoff until Disconnect.
type connection struct {
	stream  *stream
	wanted  bool
	dialing bool
	backoff time.Duration
}

// process is a process queue: one queue under one lease.
type process struct {
	queue    allocate.Queue
	epoch    session.Epoch
	next     int64 // to dispatch
	done     int64 // all below are handled
	end      int64 // fetched up to here
	floor    int64 // progress of the group when the lease was granted
	shown    bool  // as its owner, to Watch
	claimed  bool  // at its broker; of the coordinated model
	fetching bool
	busy     bool
	revoking bool
	dead     bool
	revoked  time.Time
}

func (w *World) addMember(name, groupName, clientID, instance string, topics ...string) *Member {
	m := &Member{node: node{name: name}, w: w, group: groupName, clientID: clientID, instance: instance, topics: topics}
	w.members = append(w.members, m)
	return m
}

func (m *Member) start() {
	w := m.w
	m.life++
	m.up, m.leaving, m.left, m.stalled, m.suspend, m.failed, m.since = true, false, false, false, false, 0, w.now
	m.wake = 0
	if w.opt.Watch != nil {
		m.turned = m.showAll
	}
	m.conns = map[string]*connection{}
	m.until = map[string]time.Time{}
	m.procs = map[allocate.Queue]*process{}
	m.last = map[allocate.Queue]session.Release{}
	if m.program = w.opt.Model.program(m); m.program != nil {
		w.logf("%-8s starts", m.name)
		m.program.start()
		return
	}
	strategies := w.opt.Strategies
	if strategies == nil {
		strategies = []allocate.Strategy{allocate.Sticky{}}
	}
	mode := w.opt.Mode
	switch m.misfit {
	case "mode":
		mode = session.Immediate
	case "strategy":
		strategies = []allocate.Strategy{allocate.Averagely{}}
	}
	id := m.clientID
	if id == "" {
		id = m.name
	}
	cfg := rebalance.Config{
		Group: m.group, ClientID: id, Instance: m.instance,
		Incarnation:    session.Incarnation{Counter: 1, Random: w.rng.Uint64()},
		Mode:           mode,
		Strategies:     strategies,
		Subscriptions:  m.subscriptions(),
		Tick:           w.opt.Tick,
		Heartbeat:      w.opt.Heartbeat,
		SessionTimeout: w.opt.SessionTimeout,
		Jitter:         w.rng.Float64,
		Broken:         w.opt.MemberBroken,
	}
	engine, err := rebalance.New(cfg)
	if err != nil {
		w.check.fail("start", "%s: %v", m.name, err)
		return
	}
	m.engine = engine
	w.logf("%-8s starts as %s", m.name, id)
	m.routes = newObserver(w, &m.node, m.readRoutes)
	m.pollRoutes()
	m.startCommits()
}

func (m *Member) subscriptions() []session.Subscription {
	filter := "*"
	if m.misfit == "filter" {
		filter = "red"
	}
	subs := make([]session.Subscription, 0, len(m.topics))
	for _, t := range m.topics {
		subs = append(subs, session.Subscription{Topic: t, Filter: filter})
	}
	return subs
}

// crash ends the process; silent: nobody closes its connections.
func (m *Member) crash(silent bool) {
	m.w.logf("%-8s crashes (silent %v)", m.name, silent)
	if !silent {
		if m.program != nil {
			m.program.hangUp()
		}
		for _, b := range slices.Sorted(maps.Keys(m.conns)) {
			if s := m.conns[b].stream; s != nil {
				s.closeByMember()
			}
		}
	}
	m.end()
}

func (m *Member) end() {
	m.up, m.paused, m.waiting = false, false, nil
	for _, c := range m.conns {
		if c.stream != nil {
			c.stream.memberOpen = false
		}
	}
	for _, p := range m.procs {
		p.dead = true
	}
	m.showAll()
	m.w.check.changed()
}

func (m *Member) leave() {
	m.w.logf("%-8s leaves", m.name)
	m.leaving = true
	if m.program != nil {
		m.program.leave()
		return
	}
	m.step(rebalance.Leave{})
}

// echo sends releases again that were answered long ago, as a confused client or a
// retry gone wrong would. Somebody holds each of the queues anew.
func (m *Member) echo() {
	for _, q := range slices.SortedFunc(maps.Keys(m.last), session.CompareQueues) {
		r := m.last[q]
		if p := m.procs[q]; p != nil && p.epoch == r.Epoch {
			continue // not answered yet: it counts
		}
		if c := m.conns[q.Broker]; c != nil && c.stream != nil {
			m.w.logf("%-8s echoes %+v", m.name, r)
			c.stream.sendToBroker(session.Released{Leases: []session.Release{r}})
		}
	}
}

// takesPart reports whether the member has a share of its topics once all is settled.
func (m *Member) takesPart() bool { return m.up && !m.leaving && !m.stalled && m.misfit == "" }

func (m *Member) stall() {
	m.w.logf("%-8s stalls", m.name)
	m.stalled = true
	m.step(rebalance.Stalled{})
}

func (m *Member) revive() {
	if m.leaving {
		return
	}
	m.w.logf("%-8s recovers", m.name)
	m.stalled, m.since = false, m.w.now
	m.step(rebalance.Recovered{})
}

func (m *Member) subscribe(topics ...string) {
	m.topics, m.since = topics, m.w.now
	m.w.logf("%-8s subscribes %v", m.name, topics)
	m.step(rebalance.SetSubscriptions{Subscriptions: m.subscriptions()})
	m.routes.askAll()
}

func (m *Member) pollRoutes() {
	life := m.life
	m.routes.askAll()
	m.w.after(m.w.between(m.w.opt.Tick*9/10, m.w.opt.Tick), func() { m.do(life, m.pollRoutes) })
}

func (m *Member) readRoutes() {
	var topics []rebalance.Topic
	for _, t := range m.topics {
		switch r, absent := m.routes.known(t); {
		case len(r.Hosts) > 0:
			topics = append(topics, rebalance.Topic{Name: t, Brokers: r.Brokers(), Queues: r.Readable()})
		case absent:
			topics = append(topics, rebalance.Topic{Name: t})
		}
	}
	m.step(rebalance.Routes{Topics: topics})
}

func (m *Member) received(s *stream, f session.ToMember) {
	c := m.conns[s.broker.name]
	if c == nil || c.stream != s {
		return
	}
	m.step(rebalance.Received{Broker: s.broker.name, Frame: f})
}

func (m *Member) disconnected(s *stream) {
	if m.program != nil {
		m.program.disconnected(s)
		return
	}
	c := m.conns[s.broker.name]
	if c == nil || c.stream != s {
		return
	}
	c.stream = nil
	m.redial(s.broker.name, c)
	m.step(rebalance.Disconnected{Broker: s.broker.name})
}

func (m *Member) step(ev rebalance.Event) {
	if m.w.opt.KeepTrace {
		if _, isWake := ev.(rebalance.Wake); !isWake {
			m.w.logf("%-8s <- %s", m.name, show(ev))
		}
	}
	for _, eff := range m.engine.Step(m.w.now, ev) {
		if m.w.opt.KeepTrace {
			if _, isWake := eff.(rebalance.WakeAt); !isWake {
				m.w.logf("%-8s -> %s", m.name, show(eff))
			}
		}
		m.perform(eff)
		if !m.up {
			return
		}
	}
}

func (m *Member) perform(eff rebalance.Effect) {
	w := m.w
	switch eff := eff.(type) {
	case rebalance.WakeAt:
		m.wake++
		n, life := m.wake, m.life
		w.at(eff.At, func() {
			m.do(life, func() {
				if m.wake == n {
					m.step(rebalance.Wake{})
				}
			})
		})
	case rebalance.Connect:
		c := m.conns[eff.Broker]
		if c == nil {
			c = &connection{}
			m.conns[eff.Broker] = c
		}
		c.wanted = true
		m.redial(eff.Broker, c)
	case rebalance.Disconnect:
		if c := m.conns[eff.Broker]; c != nil {
			c.wanted = false
			if c.stream != nil {
				c.stream.closeByMember()
				c.stream = nil
			}
		}
	case rebalance.Send:
		if c := m.conns[eff.Broker]; c != nil && c.stream != nil {
			if f, ok := eff.Frame.(session.Released); ok {
				for _, r := range f.Leases {
					m.last[r.Queue] = r
				}
			}
			c.stream.sendToBroker(eff.Frame)
		}
	case rebalance.Extend:
		m.until[eff.Broker] = eff.Until
		for _, q := range m.sorted() {
			if q.queue.Broker == eff.Broker {
				m.show(q)
				m.pump(q)
			}
		}
		m.showLater(eff.Until)
	case rebalance.Assign:
		if old := m.procs[eff.Queue]; old != nil {
			if w.opt.MemberBroken.KeepStaleQueue { // the variant: the old process queue goes on under the new epoch
				old.epoch, old.floor = eff.Epoch, eff.Offset
				return
			}
			w.check.fail("engine", "%s: %v assigned while held", m.name, eff.Queue)
		}
		p := &process{queue: eff.Queue, epoch: eff.Epoch, next: eff.Offset, done: eff.Offset, end: eff.Offset, floor: eff.Offset}
		m.procs[eff.Queue] = p
		w.check.assigned(m, p)
		m.show(p)
		switch c, coordinated := m.program.(*coordMember); {
		case coordinated:
			c.claim(p)
		case w.opt.Watch != nil && !eff.HasOffset:
			m.locate(p)
		default:
			m.pump(p)
		}
	case rebalance.Revoke:
		p := m.procs[eff.Queue]
		if p == nil || p.epoch != eff.Epoch {
			w.check.fail("engine", "%s: revoke of %v, which it does not hold under %v", m.name, eff.Queue, eff.Epoch)
			return
		}
		p.revoking, p.revoked = true, w.now
		w.check.revoked(m, p)
		m.show(p)
		life := m.life
		w.after(w.opt.DrainLimit, func() { m.do(life, func() { m.drained(p) }) })
		if !p.busy {
			w.after(0, func() { m.do(life, func() { m.drained(p) }) })
		}
	case rebalance.Lose:
		if p := m.procs[eff.Queue]; p != nil && !w.opt.MemberBroken.KeepStaleQueue {
			p.dead = true
			m.show(p)
			delete(m.procs, eff.Queue)
			w.check.lost()
		}
	case rebalance.Left:
		m.left = true
		w.logf("%-8s left", m.name)
		if m.program != nil {
			m.program.hangUp()
		}
		m.end()
	case rebalance.Failed:
		m.failed = eff.Reason
		w.check.refused(m)
		w.logf("%-8s failed: %v %s", m.name, eff.Reason, eff.Text)
		m.crash(false)
	case rebalance.RefreshRoutes:
		life := m.life
		w.after(0, func() { m.do(life, m.routes.askAll) })
	case rebalance.FindCoordinator, rebalance.Ask, rebalance.WatchTopics:
		m.program.(*coordMember).perform(eff)
	case rebalance.Passed: // in the trace
	}
}

func (m *Member) redial(broker string, c *connection) {
	if c.dialing || !c.wanted || c.stream != nil {
		return
	}
	c.dialing = true
	life := m.life
	wait := c.backoff
	c.backoff = min(max(2*c.backoff, 20*time.Millisecond), time.Second)
	m.w.after(wait, func() {
		m.do(life, func() {
			b := m.w.broker(broker)
			if !c.wanted || b == nil {
				c.dialing = false
				return
			}
			m.w.dial(m, b, time.Second, func(s *stream) {
				c.dialing = false
				switch {
				case s == nil:
					m.redial(broker, c)
					if c.wanted {
						m.step(rebalance.Disconnected{Broker: broker})
					}
				case !c.wanted:
					s.closeByMember()
				default:
					c.stream, c.backoff = s, 0
					m.step(rebalance.Connected{Broker: broker})
				}
			})
		})
	})
}

// may reports whether the dispatcher may hand out messages of p: the gate that
// the shell checks against its own clock before every message.
func (m *Member) may(p *process) bool {
	if p.dead || p.revoking || !m.up {
		return false
	}
	if m.w.opt.Model == Coordinated {
		return p.claimed
	}
	return m.w.opt.Mode == session.Immediate || m.w.opt.MemberBroken.NoSendingClock || m.w.now.Before(m.until[p.queue.Broker])
}

// pump fetches and dispatches as far as p can.
func (m *Member) pump(p *process) {
	if p.busy || p.dead || p.revoking || !m.up {
		return
	}
	if p.next < p.end {
		if !m.may(p) {
			return // Extend pumps again
		}
		p.busy = true
		offset := p.next
		p.next++
		m.w.check.dispatched(m, p, offset)
		if watch := m.w.opt.Watch; watch != nil {
			watch.HandedOut(m.w.now, m.name, p.queue, offset)
		}
		life := m.life
		d := m.w.between(0, usualHandler)
		if m.slow > 0 {
			d = m.w.between(0, m.slow)
		}
		m.w.after(d, func() {
			m.do(life, func() {
				p.busy = false
				if watch := m.w.opt.Watch; watch != nil {
					watch.Handled(m.w.now, m.name, p.queue, offset)
				}
				if p.dead {
					return
				}
				p.done = offset + 1
				m.w.check.handled(m, p, offset)
				if p.revoking {
					m.drained(p)
					return
				}
				m.pump(p)
			})
		})
		return
	}
	m.fetch(p)
}

// stopForNow stops a static member whose leases stay for its next life: what is being
// handled is finished and stored, then it hangs up without a goodbye.
func (m *Member) stopForNow() {
	m.w.logf("%-8s suspends", m.name)
	m.suspend = true
	for _, p := range m.sorted() {
		p.revoking = true
		m.show(p)
	}
	m.mayHangUp()
}

func (m *Member) mayHangUp() {
	procs := m.sorted()
	if slices.ContainsFunc(procs, func(p *process) bool { return p.busy }) {
		return
	}
	life, open := m.life, 1
	stored := func() {
		if open--; open == 0 && m.up && m.life == life {
			m.crash(false)
		}
	}
	m.w.after(time.Second, func() { m.do(life, func() { m.crash(false) }) }) // what cannot be stored
	for _, p := range procs {
		if p.done == p.floor {
			continue
		}
		b, key, epoch, done := m.w.broker(p.queue.Broker), lease.Key{Group: m.group, Queue: p.queue}, p.epoch, p.done
		open++
		m.w.transit(m.name, b.name, m.w.now, func() {
			b.do(b.life, func() {
				b.commit(key, epoch, done, func(error) {
					m.w.transit(b.name, m.name, m.w.now, func() { m.do(life, stored) })
				})
			})
		})
	}
	stored()
}

func (m *Member) drained(p *process) {
	if m.suspend {
		m.mayHangUp()
		return
	}
	if p.dead || !p.revoking {
		return
	}
	p.dead = true
	delete(m.procs, p.queue)
	m.w.check.changed()
	if c, coordinated := m.program.(*coordMember); coordinated {
		c.drained(p)
		return
	}
	m.step(rebalance.Drained{Queue: p.queue, Epoch: p.epoch, Offset: p.done, HasOffset: true})
}

// locate asks the broker where the group is, before anything is read.
func (m *Member) locate(p *process) {
	w, life := m.w, m.life
	b := w.broker(p.queue.Broker)
	key := lease.Key{Group: m.group, Queue: p.queue}
	known := false
	w.after(time.Second, func() { // request timeout
		m.do(life, func() {
			if !known && !p.dead && !p.revoking {
				m.locate(p)
			}
		})
	})
	w.transit(m.name, b.name, w.now, func() {
		b.do(b.life, func() {
			offset := b.offsets[key]
			w.transit(b.name, m.name, w.now, func() {
				m.do(life, func() {
					if !known {
						known = true
						p.next, p.done, p.end, p.floor = offset, offset, offset, offset
						m.pump(p)
					}
				})
			})
		})
	})
}

// usualHandler is how long a handler takes at most.
const usualHandler = 20 * time.Millisecond

// poll is when an empty answer is asked for again.
const poll = 200 * time.Millisecond

// fetch asks the broker for messages from p.end on; empty answers are repeated
// after a while, standing for a long poll.
func (m *Member) fetch(p *process) {
	if p.fetching || m.w.opt.Idle {
		return
	}
	p.fetching = true
	w, life := m.w, m.life
	b := w.broker(p.queue.Broker)
	key := lease.Key{Group: m.group, Queue: p.queue}
	again := func(d time.Duration) {
		w.after(d, func() {
			m.do(life, func() {
				p.fetching = false
				if !p.dead && !p.revoking {
					m.pump(p)
				}
			})
		})
	}
	epoch, offset := p.epoch, p.end
	gave := false
	giveUp := func() {
		if !gave {
			gave = true
			again(poll)
		}
	}
	w.after(time.Second, func() { m.do(life, giveUp) }) // request timeout
	if b == nil {
		return
	}
	w.transit(m.name, b.name, w.now, func() {
		b.do(b.life, func() {
			n, err := b.fetch(key, epoch, offset)
			w.transit(b.name, m.name, w.now, func() {
				m.do(life, func() {
					if gave {
						return
					}
					gave = true
					switch {
					case p.dead || p.revoking:
					case err != nil:
						if m.procs[p.queue] == p && p.epoch == epoch {
							m.step(rebalance.Refused{Queue: p.queue, Epoch: epoch, Seen: seen(err)})
						}
						again(poll)
					case n == 0:
						again(poll)
					default:
						p.fetching = false
						p.end = offset + n
						m.pump(p)
					}
				})
			})
		})
	})
}

// startCommits begins to store progress; where a laboratory watches, members do so at
// times of their own, so that no event of its script always comes just after.
func (m *Member) startCommits() {
	if m.w.opt.Watch == nil {
		m.commitLoop()
		return
	}
	life := m.life
	m.w.after(m.w.between(0, time.Second), func() { m.do(life, m.commitLoop) })
}

// commitLoop stores progress every second.
func (m *Member) commitLoop() {
	if m.w.opt.Idle {
		return
	}
	life := m.life
	for _, p := range m.sorted() {
		if m.may(p) || m.w.opt.Model != Coordinated {
			m.commit(p)
		}
	}
	m.w.after(time.Second, func() { m.do(life, m.commitLoop) })
}

func (m *Member) commit(p *process) {
	w := m.w
	b := w.broker(p.queue.Broker)
	if b == nil {
		return
	}
	key, epoch, done, life := lease.Key{Group: m.group, Queue: p.queue}, p.epoch, p.done, m.life
	w.transit(m.name, b.name, w.now, func() {
		b.do(b.life, func() {
			b.commit(key, epoch, done, func(err error) {
				if err == nil {
					return
				}
				w.transit(b.name, m.name, w.now, func() {
					m.do(life, func() {
						if m.procs[p.queue] == p && !p.revoking {
							m.step(rebalance.Refused{Queue: p.queue, Epoch: epoch, Seen: seen(err)})
						}
					})
				})
			})
		})
	})
}

// seen is the generation that a refusal names.
func seen(err error) coordination.Generation {
	var o outdated
	_ = errors.As(err, &o)
	return o.seen
}

func (m *Member) sorted() []*process {
	out := make([]*process, 0, len(m.procs))
	for _, p := range m.procs {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *process) int { return session.CompareQueues(a.queue, b.queue) })
	return out
}

func (w *World) broker(name string) *Broker {
	for _, b := range w.brokers {
		if b.name == name {
			return b
		}
	}
	return nil
}
