package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/route"
)

// coordBroker is a broker of coordinated groups: the coordinator's core, and what
// claims of queues fence.
type coordBroker struct {
	b       *Broker
	w       *World
	core    *coordinator.Coordinator
	wake    int
	nextID  uint64
	replies map[uint64]func(coordination.Answer)
	watched []string
	hosts   []string
	asking  bool
	writes  []func() // what is on its way to the disk, and what follows
	writing bool
}

// outdated refuses what comes under a generation below the one that claimed the queue.
type outdated struct{ seen coordination.Generation }

func (o outdated) Error() string { return fmt.Sprintf("claimed by generation %v", o.seen) }

func newCoordBroker(b *Broker) *coordBroker {
	if b.claims == nil {
		b.claims, b.groups = map[lease.Key]coordination.Generation{}, map[coordinator.Key]coordinator.Record{}
	}
	return &coordBroker{b: b, w: b.w, replies: map[uint64]func(coordination.Answer){}}
}

// coordOf is what a broker of coordinated groups does.
func coordOf(b *Broker) *coordBroker { return b.service.(*coordBroker) }

func (c *coordBroker) start() {
	b, w := c.b, c.w
	cfg := coordinator.Default()
	cfg.Broker, cfg.BrokerEpoch = b.name, b.epoch
	cfg.InitialDelay = w.opt.Coordination.InitialDelay
	cfg.ConsumerSession, cfg.ConsumerInterval = w.opt.SessionTimeout, w.opt.Heartbeat
	cfg.MinSessionTimeout = min(cfg.MinSessionTimeout, w.opt.SessionTimeout)
	ids := 0
	cfg.NewID = func() string { ids++; return fmt.Sprintf("%s-%d-%d", b.name, b.epoch, ids) }
	records := make([]coordinator.Record, 0, len(b.groups))
	for _, k := range slices.SortedFunc(maps.Keys(b.groups), coordinator.Key.Compare) {
		records = append(records, b.groups[k])
	}
	core, out, err := coordinator.New(cfg, records, w.now)
	if err != nil {
		w.check.fail("start", "%s: %v", b.name, err)
		return
	}
	c.core = core
	c.perform(out)
	b.routes = newObserver(w, &b.node, c.readRoutes)
	b.regs = map[string]uint64{}
	for _, n := range w.nameServers {
		b.register(n)
	}
	b.pollRoutes()
}

func (c *coordBroker) stop(bool) {}

func (c *coordBroker) opened(*stream, group.SessionID) {}

func (c *coordBroker) ended(*stream) {} // members are told apart by what they say

func (c *coordBroker) stored(allocate.Queue) {}

func (c *coordBroker) changed() {
	for _, n := range c.w.nameServers {
		c.b.register(n)
	}
	c.tellTopics()
}

// host is who coordinates the group, as far as this broker knows.
func (c *coordBroker) host(group string) string { return coordination.Host(group, c.hosts) }

// readRoutes takes over which brokers live, and what queues there are.
func (c *coordBroker) readRoutes() {
	hosts := []string{c.b.name}
	for _, b := range c.b.routes.table.Brokers() {
		hosts = append(hosts, b.Name)
	}
	slices.Sort(hosts)
	switch hosts = slices.Compact(hosts); {
	case !c.b.routes.table.Complete(): // a name server is warming up, or cannot be reached: nobody is known to be gone
		c.askAgain()
	case !slices.Equal(hosts, c.hosts):
		c.hosts = hosts
		c.step(coordinator.Hosting{Brokers: hosts})
	}
	c.tellTopics()
}

// askAgain reads the routes once more, soon.
func (c *coordBroker) askAgain() {
	if c.asking {
		return
	}
	c.asking = true
	c.after(time.Second, func() {
		c.asking = false
		c.b.routes.askAll()
	})
}

func (c *coordBroker) tellTopics() {
	queues := map[string][]allocate.Queue{}
	for _, t := range c.watched {
		r, absent := c.b.routes.known(t)
		switch {
		case len(r.Hosts) > 0 || c.b.topics[t] > 0:
			queues[t] = c.withOwn(r, t)
		case absent:
			queues[t] = nil
		}
	}
	if len(queues) > 0 {
		c.step(coordinator.Topics{Queues: queues})
	}
}

// withOwn is the route of a topic, with what the broker itself knows better.
func (c *coordBroker) withOwn(r route.Topic, topic string) []allocate.Queue {
	hosts := slices.DeleteFunc(slices.Clone(r.Hosts), func(h route.Host) bool { return h.Broker.Name == c.b.name })
	if c.b.topics[topic] > 0 {
		hosts = append(hosts, route.Host{Broker: c.b.entry(), Config: c.b.topicConfig(topic)})
	}
	r.Hosts = hosts
	return r.Readable()
}

func (c *coordBroker) received(s *stream, r coordination.Request, answer func(coordination.Answer)) {
	c.nextID++
	c.replies[c.nextID] = answer
	if c.w.opt.KeepTrace {
		c.w.logf("%-8s <- %s %s", c.b.name, s.member.name, show(r))
	}
	c.step(coordinator.Request{ID: c.nextID, Request: r})
}

func (c *coordBroker) step(ev coordinator.Event) { c.perform(c.core.Step(c.w.now, ev)) }

func (c *coordBroker) after(d time.Duration, fn func()) {
	life := c.b.life
	c.w.after(d, func() { c.b.do(life, fn) })
}

func (c *coordBroker) perform(out []coordinator.Effect) {
	for _, eff := range out {
		switch eff := eff.(type) {
		case coordinator.WakeAt:
			c.wake++
			n := c.wake
			c.after(max(0, eff.At.Sub(c.w.now)), func() {
				if c.wake == n {
					c.step(coordinator.Wake{})
				}
			})
		case coordinator.Answer:
			if fn := c.replies[eff.ID]; fn != nil {
				delete(c.replies, eff.ID)
				fn(eff.Answer)
			}
		case coordinator.Persist:
			c.write(func() {
				for _, k := range eff.Delete {
					delete(c.b.groups, k)
				}
				for _, r := range eff.Put {
					c.b.groups[r.Key()] = r
				}
			}, func() { c.step(coordinator.Persisted{ID: eff.ID}) })
		case coordinator.Watch:
			c.watched = eff.Topics
			c.after(0, c.tellTopics)
		case coordinator.Happened:
			if c.w.opt.KeepTrace {
				c.w.logf("%-8s %s", c.b.name, show(eff))
			}
		}
	}
}

// write has do done by the disk, which takes what waits together, and then then.
func (c *coordBroker) write(do, then func()) {
	life := c.b.life
	c.writes = append(c.writes, func() {
		do()
		c.b.do(life, then)
	})
	c.sync()
}

func (c *coordBroker) sync() {
	if c.writing || len(c.writes) == 0 {
		return
	}
	c.writing = true
	batch := c.writes
	c.writes = nil
	life := c.b.life
	c.w.after(c.w.between(200*time.Microsecond, 2*time.Millisecond), func() {
		if !c.b.up || c.b.life != life {
			return // never synced: gone with the process
		}
		for _, w := range batch {
			w()
		}
		c.writing = false
		c.sync()
	})
}

// claim fences queues from a generation on, once that is on disk.
func (c *coordBroker) claim(r Claim, answer func([]ClaimAnswer)) {
	answers := make([]ClaimAnswer, len(r.Queues))
	c.write(func() {
		for i, q := range r.Queues {
			key := lease.Key{Group: r.Group, Queue: q}
			if seen := c.b.claims[key]; r.Generation.Compare(seen) < 0 {
				answers[i] = ClaimAnswer{Queue: q, Refused: true, Seen: seen}
				continue
			}
			c.b.claims[key] = r.Generation
			answers[i] = ClaimAnswer{Queue: q, Offset: c.b.offsets[key]}
		}
	}, func() { answer(answers) })
}

func (c *coordBroker) check(key lease.Key, g coordination.Generation) error {
	if seen := c.b.claims[key]; g.Compare(seen) < 0 {
		return outdated{seen}
	}
	return nil
}

func (c *coordBroker) commit(key lease.Key, g coordination.Generation, offset int64, done func(error)) {
	if err := c.check(key, g); err != nil {
		done(err)
		return
	}
	c.write(func() {
		if c.check(key, g) == nil {
			c.b.offsets[key] = max(c.b.offsets[key], offset)
		}
	}, func() { done(c.check(key, g)) })
}
