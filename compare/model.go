package compare

import (
	"time"

	"github.com/tacitmq/tacit/allocate"
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
	session, heartbeat, tick time.Duration
	mode                     session.Mode
	strategy                 allocate.Strategy
	sim                      sim.Model
	rocketMQ                 rocketmq.Timers
}

// model is a way to share queues.
type model struct {
	Model
	own, fast settings
}

// models returns all models, those without a coordinator first.
func models() []model {
	tacit := settings{session: 10 * time.Second, heartbeat: 3 * time.Second, tick: 20 * time.Second, strategy: allocate.Sticky{}}
	quick := tacit
	quick.session, quick.heartbeat = 6*time.Second, 2*time.Second
	rendezvous, quickRendezvous := tacit, quick
	rendezvous.strategy, quickRendezvous.strategy = allocate.Rendezvous{}, allocate.Rendezvous{}
	rocket := rocketMQ(rocketmq.DefaultTimers())
	quickRocket := rocketMQ(rocketmq.Timers{
		Heartbeat: quick.heartbeat, Rebalance: quick.heartbeat, RoutePoll: quick.heartbeat,
		Expiry: quick.session, Idle: quick.session,
	})
	return []model{
		{Model{Name: "tacit", Text: "no coordinator: each member computes the same from an agreed view, a lease per queue; sticky"}, tacit, quick},
		{Model{Name: "tacit-rendezvous", Text: "as tacit, with the stateless strategy"}, rendezvous, quickRendezvous},
		{Model{Name: "rocketmq", Text: "no coordinator, as RocketMQ does it: each member computes alone from the list of a random broker, averagely; nothing is fenced"}, rocket, quickRocket},
	}
}

// rocketMQ are the settings of that model.
func rocketMQ(t rocketmq.Timers) settings {
	return settings{
		session: t.Expiry, heartbeat: t.Heartbeat, tick: t.Rebalance,
		mode: session.Immediate, strategy: allocate.Averagely{},
		sim: sim.RocketMQ, rocketMQ: t,
	}
}

func (m model) settings(t Timers) settings {
	if t == OwnTimers {
		return m.own
	}
	return m.fast
}

func (s settings) timing() timing {
	return timing{quiet: 2 * time.Second, detect: s.session, interval: s.heartbeat}
}

// calm is how long a settled group is left alone before the first event.
func (s settings) calm() time.Duration { return 3 * s.heartbeat }

func (s settings) apply(o *sim.Options) {
	o.SessionTimeout, o.Heartbeat, o.Tick, o.Mode = s.session, s.heartbeat, s.tick, s.mode
	o.Strategies = []allocate.Strategy{s.strategy}
	o.Model, o.RocketMQ = s.sim, s.rocketMQ
}

func (s settings) list() []Setting {
	return []Setting{
		{"session timeout", s.session.String()},
		{"heartbeat", s.heartbeat.String()},
		{"tick", s.tick.String()},
		{"strategy", s.strategy.Name()},
		{"hand-over", s.mode.String()},
	}
}
