package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/session"
)

// Options is everything a history depends on.
type Options struct {
	Seed uint64
	Mode session.Mode
	// Strategies of every member; Sticky if nil.
	Strategies     []allocate.Strategy
	Tick           time.Duration
	Heartbeat      time.Duration
	SessionTimeout time.Duration
	DrainLimit     time.Duration
	// Calm leaves out every failure: members join and leave gracefully, queues
	// and subscriptions change.
	Calm bool
	// Still injects only what must move nothing: name servers that come and go,
	// brokers that restart or freeze for less than a session timeout.
	Still bool
	// Storm lets many changes come within milliseconds of each other, while
	// handlers are slow.
	Storm bool
	// Faults, 0 for a seeded number.
	Faults int
	// Only restricts the kinds of faults, by name.
	Only         []string
	MemberBroken rebalance.Broken
	BrokerBroken group.Broken
	KeepTrace    bool
}

// DefaultOptions are the product's defaults.
func DefaultOptions(seed uint64) Options {
	return Options{
		Seed:           seed,
		Tick:           20 * time.Second,
		Heartbeat:      3 * time.Second,
		SessionTimeout: 10 * time.Second,
		DrainLimit:     5 * time.Second,
	}
}

// Result is what one history showed.
type Result struct {
	Violation  *Violation
	Trace      []string
	Hash       uint64
	Steps      int
	Moved      int
	Duplicates int
	// Settle is the time from the end of the last fault until the group was
	// settled for good.
	Settle time.Duration
	Faults []string
}

// scenario is one seeded history in the making.
type scenario struct {
	*World
	faults  []string
	nextID  int
	lastEnd time.Time
	statics bool
}

// Run plays one history to its end or to the first broken promise.
func Run(opt Options) Result {
	w := newWorld(opt)
	s := &scenario{World: w, lastEnd: w.now}
	s.setUp()
	w.run(w.now.Add(w.between(3*time.Second, 5*time.Second)))
	w.check.still = opt.Still

	n := opt.Faults
	if n == 0 {
		n = 2 + w.rng.IntN(8)
	}
	at := w.now
	lo, hi := 50*time.Millisecond, 6*time.Second
	if opt.Storm {
		n, lo, hi = 10+w.rng.IntN(30), time.Millisecond, 200*time.Millisecond
		for _, m := range w.members {
			m.slow = w.between(10*time.Millisecond, 300*time.Millisecond)
		}
	}
	for range n {
		at = at.Add(w.between(lo, hi))
		w.run(at)
		if w.check.failed() {
			break
		}
		s.fault()
	}
	if !w.check.failed() {
		w.run(s.lastEnd)
		s.healAll()
	}
	healed := w.now
	quiet := 2*opt.SessionTimeout + 2*opt.Tick + 5*time.Second
	w.run(w.now.Add(quiet))
	s.stopProducing()
	w.run(w.now.Add(3 * time.Second))
	if !w.check.failed() {
		w.check.final()
	}
	r := Result{
		Violation: w.check.violation, Trace: w.trace, Hash: w.hash, Steps: w.steps,
		Moved: w.check.moved, Duplicates: w.check.duplicates, Faults: s.faults,
	}
	if w.check.settled && w.check.settledAt.After(healed) {
		r.Settle = w.check.settledAt.Sub(healed)
	}
	return r
}

func (s *scenario) setUp() {
	for range 1 + s.rng.IntN(2) {
		s.addNameServer().start()
	}
	brokers := 1 + s.rng.IntN(4)
	queues := int32(1 + s.rng.IntN(6))
	for i := range brokers {
		topics := map[string]int32{"orders": queues}
		if i == 0 || s.rng.IntN(2) == 0 {
			topics["events"] = int32(1 + s.rng.IntN(4))
		}
		b := s.addBroker(fmt.Sprintf("b%d", i+1), topics)
		s.after(s.between(0, 500*time.Millisecond), b.start)
	}
	s.statics = s.rng.IntN(3) == 0
	for range 2 + s.rng.IntN(5) {
		s.join()
	}
	s.produce()
}

func (s *scenario) join() {
	s.nextID++
	name := fmt.Sprintf("m%d", s.nextID)
	instance := ""
	if s.statics {
		instance = fmt.Sprintf("i%d", s.nextID)
	}
	topics := []string{"orders"}
	if s.rng.IntN(3) == 0 {
		topics = append(topics, "events")
	}
	m := s.addMember(name, "g", name, instance, topics...)
	s.after(s.between(0, 300*time.Millisecond), m.start)
}

// produce appends a message to a random queue now and then.
func (s *scenario) produce() {
	if s.produceStopped {
		return
	}
	b := s.brokers[s.rng.IntN(len(s.brokers))]
	if qs := b.localQueues(); b.up && len(qs) > 0 {
		b.ends[qs[s.rng.IntN(len(qs))]]++
	}
	s.after(s.between(5*time.Millisecond, 60*time.Millisecond), s.produce)
}

func (s *scenario) stopProducing() { s.produceStopped = true }

func (s *scenario) live() []*Member {
	var out []*Member
	for _, m := range s.members {
		if m.up && !m.leaving && !m.paused {
			out = append(out, m)
		}
	}
	return out
}

// lasts notes that a fault ends at t.
func (s *scenario) lasts(d time.Duration, heal func()) {
	end := s.now.Add(d)
	if end.After(s.lastEnd) {
		s.lastEnd = end
	}
	s.after(d, heal)
}

// kinds lists the faults that the options allow; a fault named twice is likelier.
func (o *Options) kinds() []string {
	switch {
	case len(o.Only) > 0:
		return o.Only
	case o.Calm:
		return []string{"join", "join", "leave", "grow", "subscribe", "leave", "slow", "echo"}
	case o.Still:
		return []string{"ns", "nscut", "shortrestart", "shortfreeze"}
	}
	return []string{
		"join", "leave", "grow", "subscribe",
		"crash", "vanish", "pause", "longpause", "cut", "oneway", "cutall", "restart", "down", "freeze", "newhost", "ns", "nscut",
		"rolling", "twin", "shrink", "slow", "echo", "staycut",
	}
}

func (s *scenario) fault() {
	s.check.calm = s.check.calm && s.opt.Calm
	kinds := s.opt.kinds()
	kind := kinds[s.rng.IntN(len(kinds))]
	s.faults = append(s.faults, kind)
	s.logf("FAULT    %s", kind)
	live := s.live()
	var m *Member
	if len(live) > 0 {
		m = live[s.rng.IntN(len(live))]
	}
	b := s.brokers[s.rng.IntN(len(s.brokers))]
	switch kind {
	case "join":
		s.join()
	case "leave":
		if len(live) > 1 {
			m.leave()
		}
	case "grow":
		s.setQueues(b, "orders", b.topics["orders"]+1+int32(s.rng.IntN(4)))
	case "shrink":
		if n := b.topics["orders"]; n > 1 {
			s.setQueues(b, "orders", n-1)
		}
	case "subscribe":
		if m != nil {
			if slices.Contains(m.topics, "events") {
				m.subscribe("orders")
			} else {
				m.subscribe("orders", "events")
			}
		}
	case "crash", "vanish":
		if len(live) > 1 {
			m.crash(kind == "vanish")
			if s.rng.IntN(2) == 0 {
				s.restartLater(m, s.between(10*time.Millisecond, 5*time.Second))
			}
		}
	case "pause", "longpause":
		if m != nil {
			d := s.between(100*time.Millisecond, 5*time.Second)
			if kind == "longpause" {
				d = s.between(s.opt.SessionTimeout, 2*s.opt.SessionTimeout)
			}
			s.pause(&m.node, d)
		}
	case "freeze":
		if b.up && !b.paused {
			s.pause(&b.node, s.between(100*time.Millisecond, 2*s.opt.SessionTimeout))
		}
	case "shortfreeze":
		if b.up && !b.paused {
			s.pause(&b.node, s.between(100*time.Millisecond, s.opt.SessionTimeout-2*s.opt.Heartbeat))
		}
	case "shortrestart":
		if b.up && !b.paused {
			b.stop(s.rng.IntN(3) == 0)
			s.lasts(s.between(50*time.Millisecond, 2*time.Second), b.start)
		}
	case "echo":
		if m != nil {
			m.echo()
		}
	case "staycut":
		if len(live) > 2 && len(s.forGood) == 0 {
			s.forGood[link{m.name, b.name}], s.forGood[link{b.name, m.name}] = true, true
			s.cut(m.name, b.name)
			s.cut(b.name, m.name)
		}
	case "cut", "oneway":
		if m != nil {
			s.cutFor(m.name, b.name, s.between(time.Second, 3*s.opt.SessionTimeout), kind == "oneway")
		}
	case "cutall":
		if m != nil {
			d := s.between(time.Second, 2*s.opt.SessionTimeout)
			for _, o := range s.brokers {
				s.cutFor(m.name, o.name, d, false)
			}
		}
	case "restart", "down":
		if b.up && !b.paused {
			d := s.between(50*time.Millisecond, 2*time.Second)
			if kind == "down" {
				d = s.between(s.opt.SessionTimeout, 3*s.opt.SessionTimeout)
			}
			b.stop(s.rng.IntN(3) == 0)
			s.lasts(d, func() {
				if !b.up {
					b.start()
				}
			})
		}
	case "newhost":
		if len(s.brokers) < 6 {
			nb := s.addBroker(fmt.Sprintf("b%d", len(s.brokers)+1), map[string]int32{"orders": int32(1 + s.rng.IntN(4))})
			nb.start()
		}
	case "ns":
		if n := s.nameServers[s.rng.IntN(len(s.nameServers))]; n.up {
			n.stop()
			s.lasts(s.between(time.Second, 3*brokerExpiry), n.start)
		}
	case "nscut":
		if m != nil {
			n := s.nameServers[s.rng.IntN(len(s.nameServers))]
			s.cutFor(m.name, n.name, s.between(time.Second, 3*brokerExpiry), s.rng.IntN(2) == 0)
		}
	case "rolling":
		at := time.Duration(0)
		for _, o := range live {
			at += s.between(50*time.Millisecond, time.Second)
			s.lasts(at, func() {
				if o.up && !o.leaving && !o.paused {
					o.crash(false)
					s.restartLater(o, s.between(10*time.Millisecond, 2*time.Second))
				}
			})
		}
	case "twin":
		if m != nil {
			s.nextID++
			t := s.addMember(fmt.Sprintf("m%d", s.nextID), m.group, m.clientID, m.instance, m.topics...)
			t.start()
		}
	case "slow":
		if m != nil {
			m.slow = s.between(100*time.Millisecond, 2*time.Second)
			s.lasts(s.between(time.Second, 10*time.Second), func() { m.slow = 0 })
		}
	}
}

func (s *scenario) setQueues(b *Broker, topic string, n int32) {
	b.topics[topic] = n
	b.config++
	s.logf("%-8s %s has %d queues now", b.name, topic, n)
	if b.up {
		b.do(b.life, func() {
			b.step(group.LocalQueues{Queues: b.localQueues()})
			for _, n := range s.nameServers {
				b.register(n)
			}
		})
	}
}

func (s *scenario) restartLater(m *Member, d time.Duration) {
	s.lasts(d, func() {
		if !m.up {
			m.start()
		}
	})
}

func (s *scenario) pause(n *node, d time.Duration) {
	n.paused = true
	life := n.life
	s.logf("%-8s pauses for %v", n.name, d)
	s.lasts(d, func() {
		if n.up && n.life == life && n.paused {
			s.logf("%-8s resumes", n.name)
			n.resume()
		}
	})
}

func (s *scenario) cutFor(a, b string, d time.Duration, oneWay bool) {
	if oneWay {
		if s.rng.IntN(2) == 0 {
			a, b = b, a
		}
		s.cut(a, b)
		s.lasts(d, func() { s.heal(a, b) })
		return
	}
	s.cut(a, b)
	s.cut(b, a)
	s.lasts(d, func() { s.heal(a, b); s.heal(b, a) })
}

func (s *scenario) healAll() {
	s.logf("HEALED   quiet from here on")
	for _, m := range s.members {
		m.slow = 0
	}
	for _, n := range s.brokers {
		if !n.up {
			n.start()
		}
	}
}
