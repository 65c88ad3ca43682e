package sim

import (
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rocketmq"
)

// rocketMember is a RocketMQ push consumer's process: the core, and a model of what it
// drives: connections, pulls and the listener pool.
type rocketMember struct {
	m      *Member
	w      *World
	core   *rocketmq.Client
	wake   int
	server int // the name server in use
	lines  map[string]*rocketLine
	calls  map[uint64]*rocketCall
	nextID uint64

	procs  map[allocate.Queue]*processQueue
	todo   []listenTask // waits for a listener, the oldest first
	busy   int          // listeners at work
	halted bool
}

// rocketLine is the connection to a broker, made when it is needed.
type rocketLine struct {
	stream  *stream
	dialing bool
	waiting []func(*stream)
}

// rocketCall is a request that waits for its answer, or for a connection first.
type rocketCall struct {
	stream *stream
	then   func(answer any) // nil: it failed
}

// processQueue is a queue in the table, with the messages that were pulled.
type processQueue struct {
	queue   allocate.Queue
	next    int64          // to pull
	low     int64          // all below are done
	done    map[int64]bool // from low on
	begun   bool           // it was pulled, or would have been
	dropped bool
	shown   bool // as its owner, to Watch
}

type listenTask struct {
	p      *processQueue
	offset int64
}

func newRocketMember(m *Member) *rocketMember {
	id := m.clientID
	if id == "" {
		id = m.name
	}
	w := m.w
	return &rocketMember{
		m: m, w: w, server: w.rng.IntN(max(1, len(w.nameServers))),
		core: rocketmq.NewClient(rocketmq.Config{
			Group: m.group, ClientID: id, Topics: m.topics, Timers: w.opt.RocketMQ, Choose: w.rng.IntN, Idle: w.opt.Idle,
		}),
		lines: make(map[string]*rocketLine),
		calls: make(map[uint64]*rocketCall),
		procs: make(map[allocate.Queue]*processQueue),
	}
}

func (r *rocketMember) start() { r.step(rocketmq.Start{}) }

func (r *rocketMember) leave() { r.step(rocketmq.Shutdown{}) }

// after runs fn in this life of the process, d from now.
func (r *rocketMember) after(d time.Duration, fn func()) {
	life := r.m.life
	r.w.after(d, func() { r.m.do(life, fn) })
}

func (r *rocketMember) step(ev rocketmq.Event) {
	if r.w.opt.KeepTrace {
		r.w.logf("%-8s <- %s", r.m.name, show(ev))
	}
	for _, eff := range r.core.Step(r.w.now, ev) {
		if r.w.opt.KeepTrace {
			r.w.logf("%-8s -> %s", r.m.name, show(eff))
		}
		r.perform(eff)
	}
}

func (r *rocketMember) perform(eff rocketmq.Effect) {
	switch eff := eff.(type) {
	case rocketmq.WakeAt:
		r.wake++
		n := r.wake
		r.after(eff.At.Sub(r.w.now), func() {
			if r.wake == n {
				r.step(rocketmq.Wake{})
			}
		})
	case rocketmq.Call:
		if eff.To == "" {
			r.askNameServer(eff)
			return
		}
		r.call(eff.To, rocketmq.CallTimeout, eff.Request, func(a any) {
			if a, ok := a.(rocketmq.Answer); ok {
				r.step(rocketmq.Answered{ID: eff.ID, Answer: a})
			} else {
				r.step(rocketmq.Failed{ID: eff.ID})
			}
		})
	case rocketmq.Save:
		r.save(r.procs[eff.Queue])
	case rocketmq.Take:
		p := &processQueue{queue: eff.Queue, next: eff.Offset, low: eff.Offset, done: make(map[int64]bool)}
		r.procs[eff.Queue] = p
		r.after(eff.At.Sub(r.w.now), func() {
			p.begun = true
			r.tell(p)
			r.pull(p)
		})
	case rocketmq.Drop:
		if p := r.procs[eff.Queue]; p != nil { // else it was about to be taken when the client was shut down
			p.dropped = true
			r.tell(p)
			delete(r.procs, eff.Queue)
		}
	case rocketmq.Halt:
		r.halted, r.todo = true, nil
		r.show()
	case rocketmq.Stopped:
		r.m.left = true
		r.w.logf("%-8s left", r.m.name)
		r.hangUp()
		r.m.end()
	}
}

// askNameServer asks the name server in use, and goes on to the next one if it fails.
func (r *rocketMember) askNameServer(c rocketmq.Call) {
	w, m := r.w, r.m
	query, ok := c.Request.(rocketmq.RouteQuery)
	if !ok || len(w.nameServers) == 0 {
		r.after(0, func() { r.step(rocketmq.Failed{ID: c.ID}) })
		return
	}
	n := w.nameServers[r.server%len(w.nameServers)]
	ended := false
	end := func(ev rocketmq.Event) {
		if !ended {
			ended = true
			r.step(ev)
		}
	}
	fail := func() {
		if !ended {
			r.server++
		}
		end(rocketmq.Failed{ID: c.ID})
	}
	life := m.life
	r.after(rocketmq.CallTimeout, fail)
	w.transit(m.name, n.name, w.now, func() {
		if !n.up {
			w.transit(n.name, m.name, w.now, func() { m.do(life, fail) })
			return
		}
		n.do(n.life, func() {
			a := n.polled.Answer(query.Topic)
			w.transit(n.name, m.name, w.now, func() {
				m.do(life, func() { end(rocketmq.Answered{ID: c.ID, Answer: a}) })
			})
		})
	})
}

// connect gives the connection to a broker, or nil if none can be made. The requests that
// a connection is made for go first, then the core hears of it.
func (r *rocketMember) connect(broker string, then func(*stream)) {
	l := r.lines[broker]
	if l == nil {
		l = &rocketLine{}
		r.lines[broker] = l
	}
	if l.stream != nil {
		then(l.stream)
		return
	}
	l.waiting = append(l.waiting, then)
	if l.dialing {
		return
	}
	l.dialing = true
	r.w.dial(r.m, r.w.broker(broker), rocketmq.CallTimeout, func(s *stream) {
		l.dialing, l.stream = false, s
		waiting := l.waiting
		l.waiting = nil
		for _, fn := range waiting {
			fn(s)
		}
		if s != nil {
			r.step(rocketmq.Connected{Broker: broker})
		}
	})
}

// send sends what has no answer.
func (r *rocketMember) send(broker string, req rocketmq.Request) {
	r.connect(broker, func(s *stream) {
		if s != nil && s.memberOpen {
			s.carryToBroker(func() { rocketOf(s).received(s, req, nil) })
		}
	})
}

// call sends what has an answer: within the timeout, unless the connection breaks. A
// request that nobody answers in time costs the connection, a pull does not.
func (r *rocketMember) call(broker string, timeout time.Duration, req any, then func(answer any)) {
	r.nextID++
	id := r.nextID
	c := &rocketCall{then: then}
	r.calls[id] = c
	_, isPull := req.(rocketPull)
	r.after(timeout, func() {
		if r.calls[id] != c {
			return
		}
		if s := c.stream; s != nil && s.memberOpen && !isPull {
			s.closeByMember()
			r.disconnected(s) // this call fails with it
			return
		}
		r.end(id, nil)
	})
	r.connect(broker, func(s *stream) {
		switch {
		case r.calls[id] != c: // gave up
		case s == nil:
			r.end(id, nil)
		default:
			c.stream = s
			r.saw(req)
			s.carryToBroker(func() {
				rocketOf(s).received(s, req, func(a any) { s.carryToMember(func() { r.end(id, a) }) })
			})
		}
	})
}

// saw shows a request that is for the group's sake.
func (r *rocketMember) saw(req any) {
	if _, isPull := req.(rocketPull); !isPull {
		r.w.sees(req)
	}
}

func (r *rocketMember) end(id uint64, answer any) {
	if c := r.calls[id]; c != nil {
		delete(r.calls, id)
		c.then(answer)
	}
}

// disconnected fails all that waits for an answer on the connection.
func (r *rocketMember) disconnected(s *stream) {
	if l := r.lines[s.broker.name]; l != nil && l.stream == s {
		l.stream = nil
	}
	for _, id := range slices.Sorted(maps.Keys(r.calls)) {
		if c := r.calls[id]; c != nil && c.stream == s {
			r.end(id, nil)
		}
	}
}

func (r *rocketMember) hangUp() {
	for _, b := range sortedKeys(r.lines) {
		if s := r.lines[b].stream; s != nil && s.memberOpen {
			s.closeByMember()
		}
	}
}

// tell tells of p's ownership if it is another one than before. An owner has pulled the
// queue or is about to, and hands out what comes.
func (r *rocketMember) tell(p *processQueue) {
	owns := p.begun && !p.dropped && !r.halted && r.m.up && !r.m.paused
	if watch := r.w.opt.Watch; watch != nil && owns != p.shown {
		p.shown = owns
		watch.Owns(r.w.now, r.m.name, p.queue, owns)
	}
}

func (r *rocketMember) show() {
	for _, q := range slices.SortedFunc(maps.Keys(r.procs), allocate.Queue.Compare) {
		r.tell(r.procs[q])
	}
}

func (r *rocketMember) save(p *processQueue) {
	if p != nil && !r.w.opt.Idle {
		r.send(p.queue.Broker, rocketmq.UpdateOffset{Group: r.m.group, Queue: p.queue, Offset: p.low})
	}
}

// pull asks for the next messages of a queue; each answer is followed by the next pull.
func (r *rocketMember) pull(p *processQueue) {
	if p.dropped || r.halted || r.w.opt.Idle {
		return
	}
	r.core.Step(r.w.now, rocketmq.Pulled{Queue: p.queue})
	held := p.next - p.low
	if held-int64(len(p.done)) > rocketmq.QueueMessages || held > rocketmq.QueueSpan {
		r.after(rocketmq.PullFlow, func() { r.pull(p) })
		return
	}
	req := rocketPull{key: rocketmq.OffsetKey{Group: r.m.group, Queue: p.queue}, offset: p.next, commit: p.low}
	r.call(p.queue.Broker, rocketmq.PullTimeout, req, func(a any) {
		n, ok := a.(int64)
		switch {
		case p.dropped:
		case !ok:
			r.after(rocketmq.PullRetry, func() { r.pull(p) })
		default:
			for range n {
				r.todo = append(r.todo, listenTask{p, p.next})
				p.next++
			}
			r.listen()
			r.pull(p)
		}
	})
}

// listen gives waiting messages to free listeners.
func (r *rocketMember) listen() {
	for len(r.todo) > 0 && r.busy < rocketmq.Listeners {
		t := r.todo[0]
		r.todo = r.todo[1:]
		if t.p.dropped || r.halted {
			continue
		}
		r.busy++
		watch := r.w.opt.Watch
		if watch != nil {
			watch.HandedOut(r.w.now, r.m.name, t.p.queue, t.offset)
		}
		longest := r.m.slow
		if longest == 0 {
			longest = usualHandler
		}
		r.after(r.w.between(0, longest), func() {
			r.busy--
			if watch != nil {
				watch.Handled(r.w.now, r.m.name, t.p.queue, t.offset)
			}
			if p := t.p; !p.dropped { // else the result is thrown away
				p.done[t.offset] = true
				for p.done[p.low] {
					delete(p.done, p.low)
					p.low++
				}
			}
			r.listen()
		})
	}
}
