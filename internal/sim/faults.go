package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
)

// kinds lists the faults that the options allow; a fault named twice is likelier.
func (o *Options) kinds() []string {
	switch {
	case len(o.Only) > 0:
		return o.Only
	case o.Calm:
		return []string{"join", "join", "leave", "grow", "subscribe", "leave", "slow", "echo", "stall", "slowdisk"}
	case o.Still:
		return []string{"ns", "nscut", "shortrestart", "shortfreeze", "kick", "slowdisk"}
	}
	return []string{
		"join", "leave", "grow", "subscribe",
		"crash", "vanish", "pause", "longpause", "cut", "oneway", "cutall", "restart", "down", "freeze", "newhost", "ns", "nscut",
		"rolling", "twin", "shrink", "slow", "echo", "staycut",
		"reset", "reset", "kick", "slowdisk", "hang", "stall", "rewind", "drop", "bnscut", "lag",
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
	case "onerestart":
		if b.up && !slices.ContainsFunc(s.brokers, func(o *Broker) bool { return o.startedLess(3 * time.Second) }) {
			b.stop(false)
			s.lasts(s.between(50*time.Millisecond, 2*time.Second), b.start)
		}
	case "reset", "kick":
		if m != nil && !b.paused {
			if c := m.conns[b.name]; c != nil && c.stream != nil {
				if kind == "reset" {
					c.stream.sever()
				} else {
					c.stream.kick()
				}
			}
		}
	case "slowdisk":
		b.slow = s.between(20*time.Millisecond, time.Second)
		s.lasts(s.between(time.Second, 8*time.Second), func() { b.slow = 0 })
	case "hang":
		if m != nil {
			m.slow = s.between(s.opt.DrainLimit/2, 3*s.opt.DrainLimit)
			s.lasts(s.between(time.Second, 10*time.Second), func() { m.slow = 0 })
		}
	case "stall":
		if m != nil && !m.stalled {
			m.stall()
			life := m.life
			s.lasts(s.between(10*time.Millisecond, 5*time.Second), func() { m.do(life, m.revive) })
		}
	case "rewind":
		if qs := b.localQueues(); b.up && !b.paused && m != nil && len(qs) > 0 {
			b.rewind(lease.Key{Group: m.group, Queue: qs[s.rng.IntN(len(qs))]})
		}
	case "drop":
		if n, hosts := b.topics["events"]; hosts {
			s.setQueues(b, "events", 0)
			s.lasts(s.between(100*time.Millisecond, 5*time.Second), func() { s.setQueues(b, "events", n) })
		}
	case "bnscut":
		n := s.nameServers[s.rng.IntN(len(s.nameServers))]
		s.cutFor(b.name, n.name, s.between(time.Second, 3*brokerExpiry), s.rng.IntN(2) == 0)
	case "lag":
		if m != nil {
			there, back := s.link(m.name, b.name), s.link(b.name, m.name)
			there.lag, back.lag = s.between(0, 500*time.Millisecond), s.between(0, 500*time.Millisecond)
			s.lasts(s.between(time.Second, 10*time.Second), func() { there.lag, back.lag = 0, 0 })
		}
	case "misfit":
		s.nextID++
		t := s.addMember(fmt.Sprintf("x%d", s.nextID), s.groups[0], "", "", "orders")
		t.misfit = []string{"mode", "strategy", "filter"}[s.rng.IntN(3)]
		s.after(s.between(0, 200*time.Millisecond), t.start)
	case "burst":
		for range 10 + s.rng.IntN(50) {
			s.join()
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
	if b.topics[topic] = n; n == 0 {
		delete(b.topics, topic)
	}
	b.config++
	s.logf("%-8s %s has %d queues now", b.name, topic, n)
	if b.up {
		b.do(b.life, func() {
			if b.service != nil {
				b.service.changed()
				return
			}
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
	if n.turned != nil {
		n.turned()
	}
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
