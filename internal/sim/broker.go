package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/coordination"
	nsroute "github.com/tacitmq/tacit/nameserver/route"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// Broker is a broker process: the real registry, and a disk that outlives it.
type Broker struct {
	node
	w *World

	// On disk.
	epoch   uint64
	config  uint64           // config version, grows with each topic change
	topics  map[string]int32 // readable queues per topic
	records map[lease.Key]lease.Record
	offsets map[lease.Key]int64
	ends    map[allocate.Queue]int64
	claims  map[lease.Key]coordination.Generation // of the coordinated model
	groups  map[coordinator.Key]coordinator.Record

	// In memory.
	service  service // in place of the registry, if the model has another
	registry *group.Registry
	routes   *observer
	regs     map[string]uint64 // stream of the registration, by name server
	wake     int
	nextID   group.SessionID
	streams  map[group.SessionID]*stream
	writing  bool
	started  time.Time
	slow     time.Duration // longest extra time of a write
	queue    []group.Persist
	nextReq  uint64
	answers  map[uint64]func(error)
}

func (w *World) addBroker(name string, topics map[string]int32) *Broker {
	b := &Broker{
		node:    node{name: name},
		w:       w,
		topics:  topics,
		records: map[lease.Key]lease.Record{},
		offsets: map[lease.Key]int64{},
		ends:    map[allocate.Queue]int64{},
	}
	w.brokers = append(w.brokers, b)
	return b
}

// start begins a life: everything in memory is new, the disk is what it was.
func (b *Broker) start() {
	b.life++
	b.up, b.started = true, b.w.now
	b.epoch++
	b.wake = 0
	b.streams = map[group.SessionID]*stream{}
	b.answers = map[uint64]func(error){}
	b.queue, b.writing = nil, false
	if b.service = b.w.opt.Model.service(b); b.service != nil {
		b.w.logf("%-8s starts", b.name)
		b.service.start()
		return
	}
	records := make([]lease.Record, 0, len(b.records))
	for _, r := range b.records {
		records = append(records, r)
	}
	slices.SortFunc(records, func(x, y lease.Record) int {
		if x.Group != y.Group {
			return session.CompareIDs(x.Group, y.Group)
		}
		return session.CompareQueues(x.Queue, y.Queue)
	})
	b.w.logf("%-8s starts, epoch %d, %d stored leases", b.name, b.epoch, len(records))
	cfg := group.DefaultConfig()
	cfg.Broker, cfg.BrokerEpoch, cfg.Broken = b.name, b.epoch, b.w.opt.BrokerBroken
	cfg.MinSessionTimeout, cfg.Tick = b.w.opt.SessionTimeout, b.w.opt.Tick
	b.registry = group.New(cfg, records, b.w.now)
	b.step(group.LocalQueues{Queues: b.localQueues()})
	b.routes = newObserver(b.w, &b.node, b.readRoutes)
	b.regs = map[string]uint64{}
	for _, n := range b.w.nameServers {
		b.register(n)
	}
	b.pollRoutes()
}

// startedLess reports whether the broker has not been up for d.
func (b *Broker) startedLess(d time.Duration) bool { return !b.up || b.w.now.Sub(b.started) < d }

func (b *Broker) localQueues() []allocate.Queue {
	var qs []allocate.Queue
	for t, n := range b.topics {
		for id := range n {
			qs = append(qs, allocate.Queue{Topic: t, Broker: b.name, ID: id})
		}
	}
	slices.SortFunc(qs, session.CompareQueues)
	return qs
}

// stop ends a life; streams are closed by the kernel unless the host vanished.
func (b *Broker) stop(silent bool) {
	b.w.logf("%-8s stops (silent %v)", b.name, silent)
	b.up = false
	b.paused, b.waiting = false, nil
	if b.service != nil {
		b.service.stop(silent)
	}
	if !silent {
		for _, id := range sortedKeys(b.streams) {
			b.streams[id].closeByBroker()
		}
	}
	for _, s := range b.streams {
		s.brokerOpen = false
	}
}

func (b *Broker) newSession(s *stream) group.SessionID {
	b.nextID++
	b.streams[b.nextID] = s
	if b.service != nil {
		b.service.opened(s, b.nextID)
	}
	return b.nextID
}

func (b *Broker) ended(s *stream, byPeer bool) {
	delete(b.streams, s.id)
	if b.service != nil {
		b.service.ended(s)
		return
	}
	b.step(group.Closed{Session: s.id, ByPeer: byPeer})
}

// entry is what the broker says of itself.
func (b *Broker) entry() route.Broker {
	return route.Broker{Name: b.name, Address: b.name + ":10911", Stamp: route.Stamp{Epoch: b.epoch, Version: b.config}}
}

func (b *Broker) topicConfig(topic string) route.Config {
	n := b.topics[topic]
	return route.Config{Topic: topic, ReadQueues: n, WriteQueues: n, Readable: true, Writable: true}
}

func (b *Broker) topicConfigs() []route.Config {
	var out []route.Config
	for _, t := range sortedKeys(b.topics) {
		out = append(out, b.topicConfig(t))
	}
	return out
}

// register opens a registration stream to a name server, in full, and keeps it
// alive with heartbeats.
func (b *Broker) register(n *NameServer) {
	b.w.streams++
	b.regs[n.name] = b.w.streams
	b.tell(n, nsroute.Register{Stream: b.w.streams, Entry: b.entry(), Full: true, Topics: b.topicConfigs()})
	b.keepRegistered(n, b.w.streams)
}

func (b *Broker) keepRegistered(n *NameServer, stream uint64) {
	life := b.life
	b.w.after(registerInterval, func() {
		b.do(life, func() {
			if b.regs[n.name] != stream {
				return
			}
			b.tell(n, nsroute.Register{Stream: stream, Entry: b.entry()})
			b.keepRegistered(n, stream)
		})
	})
}

func (b *Broker) tell(n *NameServer, m nsroute.Register) {
	life := b.life
	b.w.transit(b.name, n.name, b.w.now, func() {
		if !n.up {
			return
		}
		n.do(n.life, func() {
			if n.apply(m) {
				b.w.transit(n.name, b.name, b.w.now, func() {
					b.do(life, func() {
						if b.regs[n.name] == m.Stream {
							b.register(n)
						}
					})
				})
			}
		})
	})
}

// pollRoutes re-reads the routes at each tick, as the shell does.
func (b *Broker) pollRoutes() {
	life := b.life
	b.routes.askAll()
	b.w.after(b.w.between(b.w.opt.Tick*9/10, b.w.opt.Tick), func() { b.do(life, b.pollRoutes) })
}

func (b *Broker) readRoutes() {
	var topics []group.Topic
	for _, t := range sortedKeys(b.topics) {
		// Of itself the broker knows better than any name server.
		r, _ := b.routes.known(t)
		hosts := []route.Host{{Broker: b.entry(), Config: b.topicConfig(t)}}
		for _, h := range r.Hosts {
			if h.Broker.Name != b.name {
				hosts = append(hosts, h)
			}
		}
		r.Hosts = hosts
		topics = append(topics, group.Topic{Name: t, Brokers: r.Brokers(), Queues: r.Readable()})
	}
	b.step(group.Routes{Topics: topics, Partial: !b.routes.table.Complete()})
}

func (b *Broker) step(ev group.Event) {
	if b.w.opt.KeepTrace {
		if _, isWake := ev.(group.Wake); !isWake {
			b.w.logf("%-8s <- %s", b.name, show(ev))
		}
	}
	for _, eff := range b.registry.Step(b.w.now, ev) {
		b.perform(eff)
	}
}

func (b *Broker) perform(eff group.Effect) {
	switch eff := eff.(type) {
	case group.WakeAt:
		b.wake++
		n, life := b.wake, b.life
		b.w.at(eff.At, func() {
			b.do(life, func() {
				if b.wake == n {
					b.step(group.Wake{})
				}
			})
		})
	case group.Send:
		s := b.streams[eff.Session]
		if s == nil {
			return
		}
		f := b.fillOffsets(eff)
		if f, ok := f.(session.OwnersChanged); ok {
			b.w.check.quietSignal(b, s.member.group, f.Topic)
		}
		if b.w.opt.KeepTrace {
			b.w.logf("%-8s -> %s %s", b.name, s.member.name, show(f))
		}
		s.sendToMember(f)
	case group.CloseSession:
		if s := b.streams[eff.Session]; s != nil {
			delete(b.streams, eff.Session)
			s.closeByBroker()
		}
	case group.Persist:
		b.queue = append(b.queue, eff)
		b.write()
	case group.Answer:
		if fn := b.answers[eff.Req]; fn != nil {
			delete(b.answers, eff.Req)
			fn(eff.Err)
		}
	}
}

func (b *Broker) fillOffsets(eff group.Send) session.ToMember {
	name := b.streams[eff.Session].member.group
	fill := func(grants []session.Grant) []session.Grant {
		out := slices.Clone(grants)
		for i := range out {
			key := lease.Key{Group: name, Queue: out[i].Queue}
			if !out[i].Kept {
				out[i].Offset, out[i].HasOffset = b.offsets[key], false
				if _, ok := b.offsets[key]; ok {
					out[i].HasOffset = true
				}
			}
			b.w.check.granted(b, key, out[i])
		}
		return out
	}
	switch f := eff.Frame.(type) {
	case session.Granted:
		f.Grants = fill(f.Grants)
		return f
	case session.Welcome:
		f.Grants = fill(f.Grants)
		return f
	default:
		return eff.Frame
	}
}

// write is the disk: one group commit at a time; what waits goes together.
func (b *Broker) write() {
	if b.writing || len(b.queue) == 0 {
		return
	}
	b.writing = true
	batch := b.queue
	b.queue = nil
	life := b.life
	b.w.after(b.w.between(200*time.Microsecond, 2*time.Millisecond)+b.w.between(0, b.slow), func() {
		if !b.up || b.life != life {
			return // never synced: gone with the crash
		}
		for _, p := range batch {
			for _, r := range p.Records {
				b.w.check.stored(b, b.records[r.Key], r)
				b.records[r.Key] = r
			}
			for _, o := range p.Offsets {
				if old, ok := b.offsets[o.Key]; !ok || o.Offset > old {
					b.offsets[o.Key] = o.Offset
				}
			}
			for _, o := range p.Resets {
				b.offsets[o.Key] = o.Offset
				b.w.check.rewound(o)
			}
		}
		b.writing = false
		b.do(life, func() {
			for _, p := range batch {
				b.step(group.Persisted{ID: p.ID})
			}
			b.write()
		})
	})
}

// store stores one more message on a queue and returns its offset.
func (b *Broker) store(q allocate.Queue) int64 {
	b.ends[q]++
	if b.service != nil {
		b.service.stored(q)
	}
	return b.ends[q] - 1
}

// fetch answers a pull under a lease.
func (b *Broker) fetch(key lease.Key, e session.Epoch, offset int64) (n int64, err error) {
	if c, coordinated := b.service.(*coordBroker); coordinated {
		if err := c.check(key, e); err != nil {
			return 0, err
		}
		return min(32, max(0, b.ends[key.Queue]-offset)), nil
	}
	if err := b.registry.Check(key.Group, key.Queue, e); err != nil {
		return 0, err
	}
	return min(32, max(0, b.ends[key.Queue]-offset)), nil
}

func (b *Broker) commit(key lease.Key, e session.Epoch, offset int64, done func(error)) {
	if c, coordinated := b.service.(*coordBroker); coordinated {
		c.commit(key, e, offset, done)
		return
	}
	b.nextReq++
	b.answers[b.nextReq] = func(err error) {
		b.w.check.committed(b, key, e, err)
		done(err)
	}
	b.step(group.Commit{Req: b.nextReq, Key: key, Epoch: e, Offset: offset})
}

// rewind is an operator's order: back to an earlier offset, whoever holds the queue.
func (b *Broker) rewind(key lease.Key) {
	to := int64(0)
	if at := b.offsets[key]; at > 0 {
		to = b.w.rng.Int64N(at + 1)
	}
	b.w.logf("%-8s rewinds %v to %d", b.name, key, to)
	b.nextReq++
	b.step(group.Reset{Req: b.nextReq, Key: key, Offset: to, Force: true})
}

func show(v any) string { return fmt.Sprintf("%T%+v", v, v) }
