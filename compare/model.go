package compare

import (
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/allocate/assignor"
	"github.com/tacitmq/tacit/consumer/coordinated"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/rocketmq"
	"github.com/tacitmq/tacit/internal/sim"
	"github.com/tacitmq/tacit/session"
)

// Network is what lies between members and brokers in a simulation.
type Network struct {
	Latency time.Duration // one way; 0: that of a loopback
	Loss    float64       // share of what is sent that must be sent again
}

// settings are a model's timers and what it assigns with.
type settings struct {
	session, heartbeat time.Duration
	// tick is the interval at which members look for themselves; of the models without
	// a coordinator.
	tick     time.Duration
	mode     session.Mode
	strategy allocate.Strategy
	sim      sim.Model
	rocketMQ rocketmq.Timers
	coord    sim.Coordination
}

// model is a way to share queues.
type model struct {
	Model
	own, fast, equal settings
}

const (
	fastSession, fastHeartbeat = 6 * time.Second, 2 * time.Second
)

// models returns all models, those without a coordinator first.
func models() []model {
	out := []model{
		decentralized("tacit", "no coordinator: each member computes the same from an agreed view, a lease per queue; sticky", allocate.Sticky{}),
		decentralized("tacit-rendezvous", "as tacit, with the stateless strategy", allocate.Rendezvous{}),
		rocketMQ(),
	}
	for _, c := range []struct{ name, text, assignor string }{
		{"eager-range", "a leader decides, everybody gives up everything first; Kafka's default before 3.0", assignor.NameRange},
		{"eager-roundrobin", "as eager-range, dealt out one by one", assignor.NameRoundRobin},
		{"eager-sticky", "as eager-range, few queues change their owner", assignor.NameSticky},
		{"cooperative-sticky", "a leader decides, only what moves is given up, in a second rebalance", assignor.NameCooperativeSticky},
		{"server-side", "the coordinator decides, each member follows on its own (KIP-848); uniform", ""},
	} {
		out = append(out, coordinatedModel(c.name, c.text, c.assignor))
	}
	return out
}

func decentralized(name, text string, s allocate.Strategy) model {
	own := settings{session: 10 * time.Second, heartbeat: 3 * time.Second, tick: 20 * time.Second, strategy: s}
	fast, equal := own, own
	fast.session, fast.heartbeat = fastSession, fastHeartbeat
	equal.session, equal.heartbeat, equal.tick = fastSession, fastHeartbeat, fastHeartbeat
	return model{Model{Name: name, Text: text}, own, fast, equal}
}

func rocketMQ() model {
	of := func(t rocketmq.Timers) settings {
		return settings{
			session: t.Expiry, heartbeat: t.Heartbeat, tick: t.Rebalance,
			mode: session.Immediate, strategy: allocate.Averagely{}, sim: sim.RocketMQ, rocketMQ: t,
		}
	}
	// Its users shorten what they can: heartbeat, route poll and the broker's expiry.
	fast := rocketmq.DefaultTimers()
	fast.Heartbeat, fast.RoutePoll, fast.Expiry, fast.Idle = fastHeartbeat, fastHeartbeat, fastSession, fastSession
	equal := fast
	equal.Rebalance = fastHeartbeat
	return model{
		Model{Name: "rocketmq", Text: "no coordinator, as RocketMQ does it: each member computes alone from the list of a random broker, averagely; nothing is fenced"},
		of(rocketmq.DefaultTimers()), of(fast), of(equal),
	}
}

// coordinatedModel has Kafka's defaults. Its server-side group has the broker's timers.
func coordinatedModel(name, text, classic string) model {
	own := settings{
		session: coordination.SessionTimeout, heartbeat: coordination.HeartbeatInterval, sim: sim.Coordinated,
		coord: sim.Coordination{RebalanceTimeout: coordination.RebalanceTimeout, InitialDelay: coordination.InitialDelay},
	}
	if classic == "" {
		own.session, own.heartbeat = coordination.ConsumerSession, coordination.ConsumerInterval
	} else if a, err := coordinated.Classic(classic); err == nil {
		own.coord.Assignors = []coordinated.Assignor{a}
	}
	fast := own
	fast.session, fast.heartbeat = fastSession, fastHeartbeat
	return model{Model{Name: name, Coordinated: true, Text: text}, own, fast, fast}
}

func (m model) settings(t Timers) settings {
	switch t {
	case FastTimers:
		return m.fast
	case EqualTimers:
		return m.equal
	case OwnTimers:
	}
	return m.own
}

func (s settings) timing() timing {
	return timing{quiet: 2 * time.Second, detect: s.session, interval: s.heartbeat}
}

// calm is how long a settled group is left alone before the first event.
func (s settings) calm() time.Duration { return 5 * s.heartbeat }

// stagger is how much shorter than the usual one an interval is at most, where members
// are to be out of step: all that joined together beat together from then on.
const stagger = 0.25

func (s settings) apply(o *sim.Options, phase Phase) {
	o.SessionTimeout, o.Heartbeat, o.Tick, o.Mode = s.session, s.heartbeat, s.tick, s.mode
	if s.strategy != nil {
		o.Strategies = []allocate.Strategy{s.strategy}
	}
	if s.sim == sim.Coordinated {
		o.Tick = routePoll
	}
	o.Model, o.RocketMQ, o.Coordination = s.sim, s.rocketMQ, s.coord
	if phase == Spread {
		o.Coordination.Stagger = stagger
	}
}

// routePoll is how often members of the coordinated models read routes that were not
// pushed to them. Kafka's metadata.max.age is five minutes; here routes are pushed.
const routePoll = 20 * time.Second

func (s settings) list() []Setting {
	list := []Setting{
		{"session timeout", s.session.String()},
		{"heartbeat", s.heartbeat.String()},
	}
	if s.sim != sim.Coordinated {
		return append(
			list,
			Setting{"tick", s.tick.String()},
			Setting{"strategy", s.strategy.Name()},
			Setting{"hand-over", s.mode.String()},
		)
	}
	name := assignor.NameUniform
	if len(s.coord.Assignors) > 0 {
		name = s.coord.Assignors[0].Name()
		list = append(
			list,
			Setting{"initial delay", s.coord.InitialDelay.String()},
			Setting{"rebalance timeout", s.coord.RebalanceTimeout.String()},
		)
	}
	return append(list, Setting{"assignor", name})
}
