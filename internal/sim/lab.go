package sim

import (
	"fmt"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Watch is how a laboratory sees a run.
type Watch struct {
	// Owns is told when a member begins and ceases to be an owner of a queue: one that
	// may hand out new messages.
	Owns func(at time.Time, member string, q allocate.Queue, owns bool)
	// HandedOut and Handled are told of each message a handler begins and ends.
	HandedOut, Handled func(at time.Time, member string, q allocate.Queue, offset int64)
	// Frame sees every frame of a session or to and from a coordinator that is sent.
	Frame func(f any)
}

// show tells of p's ownership if it is another one than before.
func (m *Member) show(p *process) {
	watch := m.w.opt.Watch
	if watch == nil {
		return
	}
	if owns := !m.paused && m.may(p); owns != p.shown {
		p.shown = owns
		watch.Owns(m.w.now, m.name, p.queue, owns)
	}
}

func (m *Member) showAll() {
	if m.w.opt.Watch != nil {
		if m.program != nil {
			m.program.show()
		}
		for _, p := range m.sorted() {
			m.show(p)
		}
	}
}

// showLater shows what becomes of the queues when the time to hand them out is over.
func (m *Member) showLater(t time.Time) {
	if m.w.opt.Watch == nil || !t.After(m.w.now) {
		return
	}
	life := m.life
	m.w.at(t, func() { m.do(life, m.showAll) })
}

// Lab is a world whose history is made by whoever holds it.
type Lab struct {
	s *scenario
}

// NewLab makes an empty world. opt.Watch must be set.
func NewLab(opt Options) *Lab {
	return &Lab{&scenario{World: newWorld(opt)}}
}

// Now is the virtual time.
func (l *Lab) Now() time.Time { return l.s.now }

// Run lets time pass until t.
func (l *Lab) Run(t time.Time) error {
	l.s.run(t)
	if v := l.s.check.violation; v != nil {
		return fmt.Errorf("simulation: %v", v)
	}
	return nil
}

// Next is when something happens next; ok is false if nothing ever does.
func (l *Lab) Next() (at time.Time, ok bool) {
	if len(l.s.agenda) == 0 {
		return at, false
	}
	return beginning().Add(l.s.agenda[0].at), true
}

// AddNameServer starts one more name server, and AddBroker one more broker, with so
// many queues of each topic.
func (l *Lab) AddNameServer() *NameServer {
	n := l.s.addNameServer()
	n.start()
	return n
}

// AddBroker starts one more broker, with so many queues of each topic.
func (l *Lab) AddBroker(name string, topics map[string]int32) *Broker {
	b := l.s.addBroker(name, topics)
	b.start()
	return b
}

// AddMember makes a member, which starts with Start. A member with an instance id is a
// static one.
func (l *Lab) AddMember(name, group, instance string, topics ...string) *Member {
	return l.s.addMember(name, group, name, instance, topics...)
}

// SetQueues changes how many queues of a topic a broker has.
func (l *Lab) SetQueues(b *Broker, topic string, n int32) { l.s.setQueues(b, topic, n) }

// Cut and Heal are about both directions between two nodes.
func (l *Lab) Cut(a, b string) {
	l.s.cut(a, b)
	l.s.cut(b, a)
}

// Heal ends a Cut.
func (l *Lab) Heal(a, b string) {
	l.s.heal(a, b)
	l.s.heal(b, a)
}

// Queues of all brokers that are up.
func (l *Lab) Queues(topic string) (out []allocate.Queue) {
	for _, b := range l.s.brokers {
		if b.up {
			for id := range b.topics[topic] {
				out = append(out, allocate.Queue{Topic: topic, Broker: b.name, ID: id})
			}
		}
	}
	return out
}

// Produce stores one more message on a queue, whose broker must be up, and returns its
// offset.
func (l *Lab) Produce(q allocate.Queue) int64 {
	b := l.s.broker(q.Broker)
	return b.store(q)
}

// Start begins a life of the process.
func (m *Member) Start() { m.start() }

// Name is that of the process.
func (m *Member) Name() string { return m.name }

// Leave begins a graceful leave. A static member stays in its group for a while.
func (m *Member) Leave() {
	if m.program == nil && m.instance != "" {
		m.stopForNow()
		return
	}
	m.leave()
}

// Crash kills the process; silent: nobody closes its connections.
func (m *Member) Crash(silent bool) { m.crash(silent) }

// Pause stops the process for a while, as SIGSTOP does.
func (m *Member) Pause(d time.Duration) {
	(&scenario{World: m.w}).pause(&m.node, d)
}

// Slow sets how long handlers take at most; 0 is the usual 20 ms.
func (m *Member) Slow(d time.Duration) { m.slow = d }

// Stop kills the broker with its connections closed, and Start starts it on its disk.
func (b *Broker) Stop() { b.stop(false) }

// Start begins a life of the process.
func (b *Broker) Start() { b.start() }

// Stop kills the name server, and Start starts it with empty tables.
func (n *NameServer) Stop() { n.stop() }

// Start begins a life of the process.
func (n *NameServer) Start() { n.start() }

// After runs fn d from now.
func (l *Lab) After(d time.Duration, fn func()) { l.s.after(d, fn) }
