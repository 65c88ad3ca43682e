package compare

import (
	"slices"
	"time"
)

// Size is how large a group is.
type Size struct {
	Members int `json:"members"`
	Queues  int `json:"queues"`
	Brokers int `json:"brokers"`
}

// Scenario is a list of things that happen to a group that has settled.
type Scenario struct {
	Scene
	static bool // members have stable ids
	// started is set where the start of the group is the event.
	started bool
	script  func(p *play) error
}

// soon is how long an event is watched at least from which nothing more can follow once
// the group has settled.
func (p *play) soon() time.Duration { return 2*p.timing.interval + time.Second }

// late is the same where the model may find out by silence.
func (p *play) late() time.Duration { return 2*p.timing.detect + 2*p.timing.interval + 5*time.Second }

// Scenarios returns all scenarios.
func Scenarios() []Scenario {
	return []Scenario{
		{Scene: Scene{"start", "all members start at once"}, started: true, script: (*play).playStart},
		{Scene: Scene{"join", "one member joins"}, script: (*play).playJoin},
		{Scene: Scene{"leave", "one member stops gracefully"}, script: (*play).playLeave},
		{Scene: Scene{"crash", "a member is killed; its connections are closed by its host"}, script: (*play).playCrash},
		{Scene: Scene{"silent-crash", "a member's host is gone: nobody closes its connections"}, script: (*play).playSilentCrash},
		{Scene: Scene{"pause", "a member's process is stopped for one and a half session timeouts, and goes on"}, script: (*play).playPause},
		{Scene: Scene{"rolling", "all members are restarted, one after another, with new ids"}, script: (*play).playRolling},
		{Scene: Scene{"rolling-static", "all members are restarted, one after another, with stable ids"}, static: true, script: (*play).playRolling},
		{Scene: Scene{"ten-join", "ten members join at once"}, script: (*play).playTenJoin},
		{Scene: Scene{"scale", "the group is doubled at once, and halved again"}, script: (*play).playScale},
		{Scene: Scene{"grow", "the topic gets half as many queues again"}, script: (*play).playGrow},
		{Scene: Scene{"broker-lost", "a broker that does not coordinate is lost, and comes back"}, script: (*play).playBrokerLost},
		{Scene: Scene{"coordinator-lost", "the broker that coordinates, or whose view counts, is lost, and comes back"}, script: (*play).playCoordinatorLost},
		{Scene: Scene{"nameserver-lost", "the name server is lost, and comes back"}, script: (*play).playNameServerLost},
		{Scene: Scene{"partition", "a quarter of the members cannot reach one broker, and can again"}, script: (*play).playPartition},
		{Scene: Scene{"flapping", "a member is killed and started five times in a row"}, script: (*play).playFlapping},
		{Scene: Scene{"slow-handlers", "a member joins while handlers take up to two seconds"}, script: (*play).playSlowHandlers},
	}
}

func (p *play) playStart() error {
	return p.event("start", p.soon(), func() { p.join(p.size.Members) })
}

func (p *play) playJoin() error {
	return p.event("join", p.soon(), func() { p.join(1) })
}

func (p *play) playLeave() error {
	return p.event("leave", p.soon(), func() { p.depart(p.oldest()) })
}

// kill ends a member and says so.
func (p *play) kill(m string, silent bool) {
	p.change(func() {
		p.gone(m)
		p.crash(m, silent)
	})
	p.led.die(m, p.now())
	p.tally.died(m)
	delete(p.claims, m)
}

func (p *play) playCrash() error {
	return p.event("crash", p.soon(), func() { p.kill(p.oldest(), false) })
}

func (p *play) playSilentCrash() error {
	return p.event("silent-crash", p.soon(), func() { p.kill(p.oldest(), true) })
}

func (p *play) playPause() error {
	d := p.timing.detect * 3 / 2
	return p.event("pause", d+p.late(), func() { p.pause(p.oldest(), d) })
}

func (p *play) playRolling() error {
	all := slices.Clone(p.members)
	return p.event("rolling", p.soon(), func() {
		for _, m := range all {
			if p.static {
				p.leave([]string{m})
			} else {
				p.depart(m)
			}
			p.wait(300 * time.Millisecond) // a process starts in about that time
			if p.static {
				p.start([]string{m}, true)
			} else {
				p.join(1)
			}
			p.wait(700 * time.Millisecond)
		}
	})
}

func (p *play) playTenJoin() error {
	return p.event("ten-join", p.soon(), func() { p.join(10) })
}

func (p *play) playScale() error {
	n := len(p.members)
	if err := p.event("scale-up", p.soon(), func() { p.join(n) }); err != nil {
		return err
	}
	return p.event("scale-down", p.soon(), func() {
		p.depart(slices.Clone(p.members[:n])...)
	})
}

func (p *play) playGrow() error {
	return p.event("grow", p.soon(), func() {
		p.change(func() { p.grow(p.size.Queues * 3 / 2) })
	})
}

// lose takes a broker away for longer than it takes to notice, and brings it back.
func (p *play) lose(broker string) error {
	if err := p.event("lost", p.late(), func() { p.change(func() { p.stopBroker(broker) }) }); err != nil {
		return err
	}
	return p.event("back", p.late(), func() { p.change(func() { p.startBroker(broker) }) })
}

func (p *play) playBrokerLost() error {
	c := p.coordinator()
	for _, b := range p.brokers() {
		if b != c {
			return p.lose(b)
		}
	}
	return p.lose(c)
}

func (p *play) playCoordinatorLost() error { return p.lose(p.coordinator()) }

func (p *play) playNameServerLost() error {
	if err := p.event("lost", p.late(), p.stopNameServer); err != nil {
		return err
	}
	return p.event("back", p.late(), p.startNameServer)
}

func (p *play) playPartition() error {
	some := slices.Clone(p.members[:max(1, len(p.members)/4)])
	broker := p.coordinator()
	p.uneven = true
	if err := p.event("cut", p.late(), func() {
		for _, m := range some {
			p.cutOff(m, broker)
		}
	}); err != nil {
		return err
	}
	p.uneven = false
	return p.event("healed", p.late(), func() {
		for _, m := range some {
			p.reconnect(m, broker)
		}
	})
}

func (p *play) playFlapping() error {
	return p.event("flapping", p.soon(), func() {
		m := p.oldest()
		for range 5 {
			p.kill(m, false)
			p.wait(200 * time.Millisecond)
			p.join(1)
			m = p.members[len(p.members)-1]
			p.wait(800 * time.Millisecond)
		}
	})
}

func (p *play) playSlowHandlers() error {
	for _, m := range p.members {
		p.slow(m, 2*time.Second)
	}
	p.wait(5 * time.Second)
	return p.event("join", p.soon()+5*time.Second, func() { p.join(1) })
}
