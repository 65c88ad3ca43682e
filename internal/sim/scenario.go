package sim

import (
	"fmt"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/rocketmq"
	"github.com/tacitmq/tacit/session"
)

// Options is everything a history depends on.
type Options struct {
	Seed uint64
	// Model of members and brokers. All but Decentralized need a Watch.
	Model Model
	// RocketMQ are the timers of that model.
	RocketMQ rocketmq.Timers
	// Coordination are the settings of that model; its members' heartbeats and session
	// timeouts are those below, of both protocols.
	Coordination Coordination
	Mode         session.Mode
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
	Only []string
	// Even links have no outliers, as a loopback.
	Even bool
	// Idle members hold their queues and do no work: nothing is read or committed.
	Idle         bool
	MemberBroken rebalance.Broken
	BrokerBroken group.Broken
	KeepTrace    bool

	// Latency of the network one way, give or take a fifth; 0 for a loopback's. Loss is
	// the share of transits that take loseTime longer, as a lost segment does.
	Latency time.Duration
	Loss    float64
	// NoticeLoss is the share of RocketMQ's notices that get lost.
	NoticeLoss float64
	// Watch sees what happens, for a laboratory. Its runs are not checked.
	Watch *Watch
}

// DefaultOptions are the product's defaults.
func DefaultOptions(seed uint64) Options {
	return Options{
		Seed:           seed,
		Tick:           20 * time.Second,
		Heartbeat:      3 * time.Second,
		SessionTimeout: 10 * time.Second,
		DrainLimit:     5 * time.Second,
		RocketMQ:       rocketmq.DefaultTimers(),
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
	groups  []string
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
	s.groups = []string{"g", "g", "h"}[:2+s.rng.IntN(2)]
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
	m := s.addMember(name, s.groups[s.rng.IntN(len(s.groups))], name, instance, topics...)
	s.after(s.between(0, 300*time.Millisecond), m.start)
}

// produce appends a message to a random queue now and then.
func (s *scenario) produce() {
	if s.produceStopped {
		return
	}
	b := s.brokers[s.rng.IntN(len(s.brokers))]
	if qs := b.localQueues(); b.up && len(qs) > 0 {
		b.store(qs[s.rng.IntN(len(qs))])
	}
	s.after(s.between(5*time.Millisecond, 60*time.Millisecond), s.produce)
}

func (s *scenario) stopProducing() { s.produceStopped = true }

func (s *scenario) live() []*Member {
	var out []*Member
	for _, m := range s.members {
		if m.up && !m.leaving && !m.paused && m.misfit == "" {
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
