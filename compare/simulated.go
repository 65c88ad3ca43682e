package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/rocketmq"
	"github.com/tacitmq/tacit/internal/sim"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// group is the name of the group in every run.
const group = "G"

// simulation is a stage in virtual time.
type simulation struct {
	lab         *sim.Lab
	begun       time.Time
	ns          *sim.NameServer
	nodes       []*sim.Broker
	names       []string // of brokers
	members     map[string]*sim.Member
	sent        Wire
	rng         *rand.Rand
	play        *play
	size        Size
	rate        time.Duration // between two messages of a queue; 0: none
	coordinated bool
}

// simulate plays a scenario in virtual time.
func simulate(m model, sc Scenario, size Size, timers Timers, phase Phase, net Network, seed uint64) (Run, error) {
	set := m.settings(timers)
	run := Run{
		Model: m.Name, Scenario: sc.Name, Way: Simulated, Timers: timers, Phase: phase,
		Members: size.Members, Queues: size.Queues, Brokers: size.Brokers, Latency: ms(net.Latency), Loss: net.Loss, Seed: seed,
		Settings: set.list(),
	}
	p := newPlay(size, set.timing())
	s := &simulation{play: p, size: size, members: make(map[string]*sim.Member), rng: rand.New(rand.NewPCG(seed, 0x1ab)), coordinated: m.Coordinated}
	opt := sim.DefaultOptions(seed)
	opt.Even, opt.Latency, opt.Loss = true, net.Latency, net.Loss
	set.apply(&opt, phase)
	opt.Watch = &sim.Watch{
		Owns: func(at time.Time, member string, q allocate.Queue, owns bool) {
			p.owns(at.Sub(s.begun), member, q, owns)
		},
		HandedOut: func(_ time.Time, member string, q allocate.Queue, offset int64) { p.handedOut(member, q, offset) },
		Handled:   func(_ time.Time, member string, q allocate.Queue, offset int64) { p.handled(member, q, offset) },
		Frame:     s.frame,
	}
	opt.Idle = size.Queues > busyQueues
	s.lab = sim.NewLab(opt)
	s.begun = s.lab.Now()
	p.stage, p.static = s, sc.static
	s.ns = s.lab.AddNameServer()
	for i := range size.Brokers {
		s.names = append(s.names, fmt.Sprintf("b%d", i+1))
		s.nodes = append(s.nodes, s.lab.AddBroker(s.names[i], map[string]int32{topic: share(size.Queues, size.Brokers, i)}))
	}
	if err := p.pass(warm, nil); err != nil {
		return run, err
	}
	if !opt.Idle {
		s.rate = messageEvery
		s.produce()
	}
	if !sc.started {
		if err := p.gather(phase, set, set.calm(), s.rng); err != nil {
			return run, err
		}
	}
	if err := sc.script(p); err != nil {
		return run, err
	}
	run.Events = p.events
	s.rate = 0
	run.Chart = p.chart()
	return run, nil
}

// warm is how long the brokers run before anything happens: a name server that has just
// started does not know all of them yet.
const warm = 15 * time.Second

// busyQueues is up to how many queues a simulation has messages.
const busyQueues = 2048

// messageEvery is the time between two messages of a queue.
const messageEvery = 100 * time.Millisecond

// share is the i-th broker's part of the queues.
func share(queues, brokers, i int) int32 {
	n := queues / brokers
	if i < queues%brokers {
		n++
	}
	return int32(n)
}

// produce stores messages on all queues, now and from now on.
func (s *simulation) produce() {
	if s.rate == 0 {
		return
	}
	for _, q := range s.lab.Queues(topic) {
		s.play.tally.stored(q, s.lab.Produce(q))
	}
	s.play.lags = append(s.play.lags, LagPoint{ms(s.now()), s.play.tally.lag()})
	s.lab.After(s.rate, s.produce)
}

// frame counts what is sent, as it is encoded. A call of its own counts as one message
// there and one back.
func (s *simulation) frame(f any) {
	switch f := f.(type) {
	case session.ToBroker:
		s.sent.byMember(proto.Size(wire.Request(f)))
	case session.ToMember:
		s.sent.byBroker(proto.Size(wire.Response(f)))
	case coordination.Request:
		s.sent.byMember(proto.Size(wire.CoordinateRequest(1, f)))
	case coordination.Answer:
		s.sent.byBroker(proto.Size(wire.CoordinateResponse(1, f)))
	case sim.Lookup:
		s.sent.byMember(proto.Size(&tacitv1.FindCoordinatorRequest{Group: f.Group}))
	case sim.LookedUp:
		s.sent.byBroker(proto.Size(&tacitv1.FindCoordinatorResponse{Broker: f.Broker}))
	case sim.Claim:
		s.sent.byMember(claimHead + len(f.Queues)*claimQueue)
	case sim.Claimed:
		s.sent.byBroker(len(f.Answers) * claimQueue)
	case rocketmq.Request:
		s.sent.byMember(f.Size())
	case rocketmq.Answer:
		s.sent.byBroker(f.Size())
	case rocketmq.Notice:
		s.sent.byBroker(f.Size())
	}
}

// Sizes of a claim: group, member and generation, and for each queue its number, or its
// number and offset.
const claimHead, claimQueue = 48, 12

func (s *simulation) now() time.Duration { return s.lab.Now().Sub(s.begun) }

func (s *simulation) pass(t time.Duration, stop func() bool) error {
	end := s.begun.Add(t)
	if stop == nil {
		return s.lab.Run(end)
	}
	for !stop() {
		at, ok := s.lab.Next()
		if !ok || at.After(end) {
			return s.lab.Run(end)
		}
		if err := s.lab.Run(at); err != nil {
			return err
		}
	}
	return nil
}

func (s *simulation) start(names []string, static bool) {
	for _, name := range names {
		m := s.members[name]
		if m == nil {
			instance := ""
			if static {
				instance = name
			}
			m = s.lab.AddMember(name, group, instance, topic)
			s.members[name] = m
		}
		m.Start()
	}
}

func (s *simulation) leave(names []string) {
	for _, name := range names {
		s.members[name].Leave()
	}
}

func (s *simulation) crash(name string, silent bool) { s.members[name].Crash(silent) }

func (s *simulation) pause(name string, d time.Duration) { s.members[name].Pause(d) }

func (s *simulation) slow(name string, d time.Duration) { s.members[name].Slow(d) }

func (s *simulation) grow(queues int) {
	for i, b := range s.nodes {
		s.lab.SetQueues(b, topic, share(queues, len(s.nodes), i))
	}
}

func (s *simulation) brokers() []string { return s.names }

func (s *simulation) broker(name string) *sim.Broker { return s.nodes[slices.Index(s.names, name)] }

func (s *simulation) stopBroker(name string) { s.broker(name).Stop() }

func (s *simulation) startBroker(name string) { s.broker(name).Start() }

func (s *simulation) coordinator() string {
	if s.coordinated {
		return coordination.Host(group, s.names)
	}
	return session.RankBrokers(group, topic, s.names)[0]
}

func (s *simulation) stopNameServer() { s.ns.Stop() }

func (s *simulation) startNameServer() { s.ns.Start() }

func (s *simulation) cut(member, broker string) { s.lab.Cut(member, broker) }

func (s *simulation) heal(member, broker string) { s.lab.Heal(member, broker) }

func (s *simulation) queues() []allocate.Queue { return s.lab.Queues(topic) }

func (s *simulation) wire() Wire { return s.sent }

func (s *simulation) cpu() time.Duration { return 0 }
