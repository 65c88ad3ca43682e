package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/internal/rocketmq"
)

// rocketBroker is a RocketMQ broker's process: the core, parked pulls and connections that
// go idle.
type rocketBroker struct {
	b       *Broker
	w       *World
	core    *rocketmq.Broker
	conns   map[group.SessionID]*rocketConn
	replies map[uint64]func(any)
	nextID  uint64
	parked  map[allocate.Queue][]*parkedPull
}

// rocketConn is what the broker keeps for one connection.
type rocketConn struct {
	traffic time.Time
	notices int // under way; a client that has one coming learns no more from the next
}

// rocketPull is a pull: of anybody, who also says where its group is.
type rocketPull struct {
	key            rocketmq.OffsetKey
	offset, commit int64
}

type parkedPull struct {
	offset int64
	reply  func(any) // nil when it was answered
}

func newRocketBroker(b *Broker) *rocketBroker {
	return &rocketBroker{
		b: b, w: b.w,
		conns:   make(map[group.SessionID]*rocketConn),
		replies: make(map[uint64]func(any)),
		parked:  make(map[allocate.Queue][]*parkedPull),
	}
}

// rocketOf is the service at the other end of a member's stream.
func rocketOf(s *stream) *rocketBroker { return s.broker.service.(*rocketBroker) }

func (r *rocketBroker) start() {
	file := make([]rocketmq.StoredOffset, 0, len(r.b.offsets))
	for key, offset := range r.b.offsets {
		file = append(file, rocketmq.StoredOffset{OffsetKey: rocketmq.OffsetKey(key), Offset: offset})
	}
	core, effects := rocketmq.NewBroker(r.w.opt.RocketMQ, file, r.w.now)
	r.core = core
	r.perform(effects)
	r.register()
	r.registerLoop(rocketmq.RegisterFirst)
}

func (r *rocketBroker) stop(silent bool) {
	if silent {
		return
	}
	for _, n := range r.w.nameServers {
		life := n.life
		r.w.transit(r.b.name, n.name, r.w.now, func() { n.do(life, func() { n.polled.Closed(r.b.name) }) })
	}
}

// after runs fn in this life of the process, d from now.
func (r *rocketBroker) after(d time.Duration, fn func()) {
	life := r.b.life
	r.w.after(d, func() { r.b.do(life, fn) })
}

// register tells all name servers what topics there are.
func (r *rocketBroker) register() {
	for _, n := range r.w.nameServers {
		topics := maps.Clone(r.b.topics)
		r.w.transit(r.b.name, n.name, r.w.now, func() {
			if n.up {
				n.do(n.life, func() { n.polled.Register(r.w.now, r.b.name, topics) })
			}
		})
	}
}

func (r *rocketBroker) registerLoop(d time.Duration) {
	r.after(d, func() {
		r.register()
		r.registerLoop(rocketmq.RegisterInterval)
	})
}

// startPolled begins a life of a name server that is polled.
func (n *NameServer) startPolled() {
	n.polled = rocketmq.NewNameServer()
	n.scan()
}

func (n *NameServer) scan() {
	life := n.life
	n.w.after(rocketmq.NameServerScan, func() {
		n.do(life, func() {
			n.polled.Scan(n.w.now)
			n.scan()
		})
	})
}

func (r *rocketBroker) changed() { r.register() }

func (r *rocketBroker) opened(s *stream, id group.SessionID) {
	c := &rocketConn{traffic: r.w.now}
	r.conns[id] = c
	r.watchIdle(s, id, c)
}

// watchIdle closes a connection on which nothing went either way for too long.
func (r *rocketBroker) watchIdle(s *stream, id group.SessionID, c *rocketConn) {
	r.after(c.traffic.Add(r.w.opt.RocketMQ.Idle).Sub(r.w.now), func() {
		switch {
		case r.conns[id] != c:
		case r.w.now.Sub(c.traffic) >= r.w.opt.RocketMQ.Idle:
			r.w.logf("%-8s closes %s, which is idle", r.b.name, s.member.name)
			s.closeByBroker()
			r.b.ended(s, false)
		default:
			r.watchIdle(s, id, c)
		}
	})
}

func (r *rocketBroker) ended(s *stream) {
	delete(r.conns, s.id)
	r.step(rocketmq.Closed{Channel: rocketmq.Channel(s.id)})
}

// received takes what came on a connection; answer is nil if none is wanted.
func (r *rocketBroker) received(s *stream, req any, answer func(any)) {
	if c := r.conns[s.id]; c != nil {
		c.traffic = r.w.now
	}
	reply := func(a any) {
		c := r.conns[s.id]
		if c == nil || answer == nil || !s.brokerOpen {
			return
		}
		c.traffic = r.w.now
		answer(a)
	}
	switch req := req.(type) {
	case rocketPull:
		r.pull(req, reply)
	case rocketmq.Request:
		r.nextID++
		r.replies[r.nextID] = func(a any) {
			r.w.sees(a)
			reply(a)
		}
		r.step(rocketmq.Received{Channel: rocketmq.Channel(s.id), ID: r.nextID, Request: req})
		delete(r.replies, r.nextID)
	}
}

func (r *rocketBroker) step(ev rocketmq.BrokerEvent) {
	if r.w.opt.KeepTrace {
		r.w.logf("%-8s <- %s", r.b.name, show(ev))
	}
	r.perform(r.core.Step(r.w.now, ev))
}

func (r *rocketBroker) perform(effects []rocketmq.BrokerEffect) {
	for _, eff := range effects {
		if r.w.opt.KeepTrace {
			r.w.logf("%-8s -> %s", r.b.name, show(eff))
		}
		switch eff := eff.(type) {
		case rocketmq.BrokerWakeAt:
			r.after(eff.At.Sub(r.w.now), func() { r.step(rocketmq.BrokerWake{}) })
		case rocketmq.Reply:
			r.replies[eff.ID](eff.Answer)
		case rocketmq.Notify:
			for _, ch := range eff.Channels {
				r.notify(group.SessionID(ch), eff.Notice)
			}
		case rocketmq.Close:
			id := group.SessionID(eff.Channel)
			if s := r.b.streams[id]; s != nil {
				delete(r.conns, id)
				delete(r.b.streams, id)
				s.closeByBroker()
			}
		case rocketmq.CreateTopic:
			if _, ok := r.b.topics[eff.Topic]; !ok {
				r.b.topics[eff.Topic] = 1
				r.register()
			}
		case rocketmq.WriteFile:
			for _, o := range eff.Offsets {
				r.b.offsets[lease.Key(o.OffsetKey)] = o.Offset
			}
		}
	}
}

// notify sends a notice, one-way.
func (r *rocketBroker) notify(id group.SessionID, n rocketmq.Notice) {
	s, c := r.b.streams[id], r.conns[id]
	if s == nil || c == nil || !s.brokerOpen {
		return
	}
	c.traffic = r.w.now
	r.w.sees(n)
	if c.notices > 0 {
		return
	}
	if lost := r.w.opt.NoticeLoss; lost > 0 && r.w.rng.Float64() < lost {
		return
	}
	c.notices++
	life := s.memberLife
	m := s.member
	s.toMember = r.w.transit(r.b.name, m.name, s.toMember, func() {
		c.notices--
		m.do(life, func() {
			if s.memberOpen {
				m.program.(*rocketMember).step(rocketmq.Notified{})
			}
		})
	})
}

// pull answers at once if there is something, and else when there is, or after the time it
// is parked.
func (r *rocketBroker) pull(p rocketPull, reply func(any)) {
	q := p.key.Queue
	if q.ID >= r.b.topics[q.Topic] {
		reply(nil)
		return
	}
	if p.commit > 0 {
		r.core.Commit(p.key, p.commit)
	}
	if n := r.b.ends[q] - p.offset; n > 0 {
		reply(min(n, rocketmq.PullBatch))
		return
	}
	held := &parkedPull{p.offset, reply}
	r.parked[q] = append(r.parked[q], held)
	r.after(rocketmq.PullHold, func() {
		if held.reply == nil {
			return
		}
		r.parked[q] = slices.DeleteFunc(r.parked[q], func(o *parkedPull) bool { return o == held })
		reply(int64(0))
	})
}

func (r *rocketBroker) stored(q allocate.Queue) {
	held := r.parked[q]
	delete(r.parked, q)
	for _, p := range held {
		reply := p.reply
		p.reply = nil
		if n := r.b.ends[q] - p.offset; n > 0 {
			reply(min(n, rocketmq.PullBatch))
		} else { // of one that is ahead of the end
			p.reply = reply
			r.parked[q] = append(r.parked[q], p)
		}
	}
}
