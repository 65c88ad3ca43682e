package rebalance

import (
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// cluster is a toy: engines and brokers that exchange frames over streams with
// a fixed delay, in virtual time. Its brokers know just enough of the protocol
// to grant leases and serve views; internal/sim runs the real ones.
type cluster struct {
	t       failer
	now     time.Time
	seq     int
	inbox   []delivery
	brokers map[string]*toyBroker
	members map[string]*toyMember
	topics  map[string]map[string]int // topic -> broker -> queues
	drain   time.Duration
	fetches int
	notices int
}

// failer is a testing.T or a rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

type delivery struct {
	at time.Time
	do func()
}

type toyMember struct {
	id     string
	engine *Engine
	wake   time.Time
	dead   bool
	left   bool
	failed *Failed
	owns   map[allocate.Queue]session.Epoch
	until  map[string]time.Time
	stream map[string]int // broker -> number of the open stream
	moves  int
	at     map[allocate.Queue]int64 // progress: the next offset to read
	check  *checker
	passes []Pass
}

type toySession struct {
	member *toyMember
	stream int
	hello  session.Hello
	owned  map[string]map[allocate.Queue]session.Epoch
	said   map[string]session.Digest
	full   map[string]bool

	draining map[string]bool
}

type toyLease struct {
	holder string
	epoch  session.Epoch
	line   []string
	offset int64
	has    bool
}

type toyBroker struct {
	c        *cluster
	name     string
	epoch    uint64
	counter  uint64
	sessions map[string]*toySession
	leases   map[allocate.Queue]*toyLease
	versions map[string]uint64
	down     bool
	reported time.Time // the last report

	announced map[string]session.View   // by the last notice
	owners    map[string]session.Digest // now
}

func newCluster(t failer, topics map[string]map[string]int) *cluster {
	c := &cluster{
		t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), topics: topics,
		brokers: map[string]*toyBroker{}, members: map[string]*toyMember{}, drain: 2 * time.Millisecond,
	}
	for _, bs := range topics {
		for b := range bs {
			c.broker(b)
		}
	}
	return c
}

func (c *cluster) broker(name string) {
	if c.brokers[name] == nil {
		c.brokers[name] = &toyBroker{
			c: c, name: name, epoch: 1, sessions: map[string]*toySession{},
			leases: map[allocate.Queue]*toyLease{}, versions: map[string]uint64{},
			announced: map[string]session.View{}, owners: map[string]session.Digest{},
		}
	}
}

func (c *cluster) route(topic string) Topic {
	r := Topic{Name: topic}
	for b, n := range c.topics[topic] {
		r.Brokers = append(r.Brokers, b)
		for i := range n {
			r.Queues = append(r.Queues, allocate.Queue{Topic: topic, Broker: b, ID: int32(i)})
		}
	}
	slices.Sort(r.Brokers)
	slices.SortFunc(r.Queues, allocate.Queue.Compare)
	return r
}

// later runs do after d of virtual time, in the order of the calls.
func (c *cluster) later(d time.Duration, do func()) {
	at := c.now.Add(d)
	i := sort.Search(len(c.inbox), func(i int) bool { return c.inbox[i].at.After(at) })
	c.inbox = slices.Insert(c.inbox, i, delivery{at, do})
}

// run lets virtual time pass.
func (c *cluster) run(d time.Duration) {
	end := c.now.Add(d)
	for {
		next := end
		if len(c.inbox) > 0 && c.inbox[0].at.Before(next) {
			next = c.inbox[0].at
		}
		var waker *toyMember
		for _, m := range c.sorted() {
			if !m.dead && !m.left && !m.wake.IsZero() && m.wake.Before(next) {
				next, waker = m.wake, m
			}
		}
		if !next.Before(end) {
			c.now = end
			return
		}
		c.now = next
		if waker != nil {
			c.step(waker, Wake{})
			continue
		}
		d := c.inbox[0]
		c.inbox = c.inbox[1:]
		d.do()
	}
}

func (c *cluster) sorted() []*toyMember {
	var ms []*toyMember
	for _, m := range c.members {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b *toyMember) int { return allocate.CompareStrings(a.id, b.id) })
	return ms
}

const delay = time.Millisecond

func (c *cluster) join(id string, change func(*Config)) *toyMember {
	cfg := Config{Group: "g", ClientID: id, Incarnation: session.Incarnation{Counter: 1, Random: uint64(len(c.members) + 1)}}
	for t := range c.topics {
		cfg.Subscriptions = append(cfg.Subscriptions, session.Subscription{Topic: t, Filter: "*"})
	}
	if change != nil {
		change(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	m := &toyMember{
		id: id, engine: e, owns: map[allocate.Queue]session.Epoch{}, until: map[string]time.Time{},
		stream: map[string]int{}, at: map[allocate.Queue]int64{}, check: newChecker(cfg.Mode),
	}
	c.members[id] = m
	var ts []Topic
	for _, s := range cfg.Subscriptions {
		ts = append(ts, c.route(s.Topic))
	}
	c.step(m, Routes{ts})
	return m
}

func (c *cluster) reroute() {
	for t := range c.topics {
		for b := range c.topics[t] {
			c.broker(b)
		}
	}
	for _, m := range c.sorted() {
		var ts []Topic
		for _, s := range m.engine.subs {
			ts = append(ts, c.route(s.Topic))
		}
		c.step(m, Routes{ts})
	}
	for _, b := range keys(c.brokers) {
		for _, t := range keys(c.topics) {
			c.brokers[b].changed(t)
		}
	}
}

func (c *cluster) step(m *toyMember, ev Event) {
	if m.dead || m.left {
		return
	}
	effects := m.engine.Step(c.now, ev)
	if err := m.check.step(c.now, ev, effects); err != nil {
		c.t.Fatalf("%s: %v\n%v", m.id, err, effects)
	}
	for _, eff := range effects {
		switch eff := eff.(type) {
		case WakeAt:
			m.wake = eff.At
		case Connect:
			c.connect(m, eff.Broker)
		case Disconnect:
			c.cut(m, eff.Broker, false)
		case Send:
			b, stream, frame := c.brokers[eff.Broker], m.stream[eff.Broker], eff.Frame
			if stream == 0 {
				c.t.Fatalf("%s sends %T to %s without a stream", m.id, frame, eff.Broker)
			}
			c.later(delay, func() {
				if m.stream[b.name] == stream || b.sessions[m.id] != nil && b.sessions[m.id].stream == stream {
					b.receive(m, stream, frame)
				}
			})
		case Extend:
			m.until[eff.Broker] = eff.Until
		case Assign:
			m.owns[eff.Queue], m.at[eff.Queue] = eff.Epoch, eff.Offset
			m.moves++
		case Revoke:
			q, epoch := eff.Queue, eff.Epoch
			c.later(c.drain, func() {
				if m.owns[q] == epoch {
					delete(m.owns, q)
				}
				c.step(m, Drained{Queue: q, Epoch: epoch, Offset: m.at[q], HasOffset: true})
			})
		case Lose:
			delete(m.owns, eff.Queue)
		case Left:
			m.left = true
			c.expire(m)
		case Failed:
			m.failed, m.left = &eff, true
		case Passed:
			m.passes = append(m.passes, eff.Pass)
		case RefreshRoutes, FindCoordinator, Ask, WatchTopics:
		}
	}
}

func (c *cluster) connect(m *toyMember, broker string) {
	c.later(2*delay, func() {
		if m.dead || m.left || m.engine.peer(broker) == nil {
			return
		}
		if c.brokers[broker].down {
			c.step(m, Disconnected{broker})
			c.later(50*time.Millisecond, func() { c.connect(m, broker) })
			return
		}
		c.seq++
		m.stream[broker] = c.seq
		c.step(m, Connected{broker})
	})
}

// cut ends the stream between m and a broker. Closed by the member, its leases
// are free a delay later; broken and made anew, they stay.
func (c *cluster) cut(m *toyMember, broker string, reconnect bool) {
	b, stream := c.brokers[broker], m.stream[broker]
	m.stream[broker] = 0
	if stream == 0 {
		return
	}
	if reconnect {
		c.step(m, Disconnected{broker})
		c.connect(m, broker)
		return
	}
	c.later(delay, func() {
		if s := b.sessions[m.id]; s != nil && s.stream == stream {
			b.end(s)
		}
	})
}

// expire ends the sessions of a member that is no more and could not say so.
func (c *cluster) expire(m *toyMember) {
	c.later(DefaultSessionTimeout, func() {
		for _, name := range keys(c.brokers) {
			b := c.brokers[name]
			if s := b.sessions[m.id]; s != nil && s.member == m {
				b.end(s)
			}
		}
	})
}

func (c *cluster) crash(m *toyMember) {
	m.dead = true
	m.owns = map[allocate.Queue]session.Epoch{}
	for _, b := range keys(c.brokers) {
		c.cut(m, b, false)
	}
	c.expire(m)
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// owners lists who may dispatch each queue, and fails on two.
func (c *cluster) owners() map[allocate.Queue]string {
	out := map[allocate.Queue]string{}
	for _, m := range c.sorted() {
		for q := range m.owns {
			if other := out[q]; other != "" {
				c.t.Fatalf("%v is owned by %s and %s", q, other, m.id)
			}
			out[q] = m.id
		}
	}
	return out
}

// settled fails unless every queue has an owner and loads differ by one at most.
func (c *cluster) settled() map[allocate.Queue]string {
	c.t.Helper()
	owners := c.owners()
	for topic := range c.topics {
		loads := map[string]int{}
		for _, m := range c.sorted() {
			if !m.dead && !m.left && !m.engine.stalled && slices.ContainsFunc(m.engine.subs, func(s session.Subscription) bool { return s.Topic == topic }) {
				loads[m.id] = 0
			}
		}
		qs := c.route(topic).Queues
		for _, q := range qs {
			if _, ok := loads[owners[q]]; !ok {
				c.t.Fatalf("%v is owned by %q", q, owners[q])
			}
			loads[owners[q]]++
		}
		for id, n := range loads {
			if n < len(qs)/len(loads) || n > (len(qs)+len(loads)-1)/len(loads) {
				c.t.Fatalf("topic %s: %s has %d of %d queues: %v", topic, id, n, len(qs), loads)
			}
		}
	}
	for q, id := range owners {
		if n, ok := c.topics[q.Topic][q.Broker]; !ok || int(q.ID) >= n {
			c.t.Fatalf("%s owns %v, which does not exist", id, q)
		}
	}
	return owners
}

func (b *toyBroker) send(id string, f session.ToMember) {
	s := b.sessions[id]
	if s == nil {
		return
	}
	stream := s.stream
	b.c.later(delay, func() {
		if s.member.stream[b.name] == stream {
			b.c.step(s.member, Received{b.name, f})
		}
	})
}

func (b *toyBroker) end(s *toySession) {
	if b.sessions[s.hello.ClientID] != s {
		return
	}
	delete(b.sessions, s.hello.ClientID)
	b.freeAll(s.hello.ClientID)
	for _, sub := range s.hello.Subscriptions {
		b.changed(sub.Topic)
	}
}

func (b *toyBroker) leased() []allocate.Queue {
	return slices.SortedFunc(maps.Keys(b.leases), allocate.Queue.Compare)
}

func (b *toyBroker) freeAll(id string) {
	qs := b.leased()
	for _, q := range qs {
		l := b.leases[q]
		l.line = slices.DeleteFunc(l.line, func(o string) bool { return o == id })
		if l.holder == id {
			l.holder = ""
		}
	}
	for _, q := range qs {
		b.grant(q)
	}
}

// grant gives a free lease to the first in line.
func (b *toyBroker) grant(q allocate.Queue) {
	l := b.leases[q]
	if l.holder != "" || len(l.line) == 0 {
		return
	}
	l.holder, l.line = l.line[0], l.line[1:]
	b.counter++
	l.epoch = session.Epoch{Broker: b.epoch, Counter: b.counter}
	b.send(l.holder, session.Granted{Grants: []session.Grant{{Queue: q, Epoch: l.epoch, Offset: l.offset, HasOffset: l.has}}})
	if len(l.line) > 0 {
		b.send(l.holder, session.LeaseWanted{Queues: []allocate.Queue{q}})
	}
}

func (b *toyBroker) subscribers(topic string) []*toySession {
	var out []*toySession
	for _, s := range b.sessions {
		if !s.hello.Leaving && slices.ContainsFunc(s.hello.Subscriptions, func(x session.Subscription) bool { return x.Topic == topic }) {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, c *toySession) int { return allocate.CompareStrings(a.hello.ClientID, c.hello.ClientID) })
	return out
}

func (b *toyBroker) view(topic string) session.View {
	v := session.View{Topic: topic, Queues: b.c.route(topic).Queues, Version: session.Version{Broker: b.name, Epoch: b.epoch, Counter: b.versions[topic]}}
	for _, s := range b.subscribers(topic) {
		m := session.Member{ClientID: s.hello.ClientID, Instance: s.hello.Instance, Incarnation: s.hello.Incarnation, Offers: s.hello.Offers, Expected: s.said[topic]}
		for q, epoch := range s.owned[topic] {
			m.Owned = append(m.Owned, session.Owned{Queue: q, Epoch: epoch})
		}
		slices.SortFunc(m.Owned, func(a, c session.Owned) int { return a.Queue.Compare(c.Queue) })
		v.Members = append(v.Members, m)
	}
	v.Inputs = session.InputsDigest(topic, v.Queues, v.Members)
	v.Owners = session.OwnersDigest(topic, session.Owners(v.Members))
	return v
}

// changed announces what has changed in a view, if anything, as one delta.
func (b *toyBroker) changed(topic string) {
	if _, hosts := b.c.topics[topic][b.name]; !hosts || b.down {
		return
	}
	old, v := b.announced[topic], b.view(topic)
	c := session.GroupChanged{Topic: topic, Previous: old.Version, OwnersBefore: b.owners[topic]}
	for _, m := range v.Members {
		at := memberAt(old.Members, m.ClientID)
		if at >= 0 && old.Members[at].Incarnation != m.Incarnation {
			c.Left = append(c.Left, m.ClientID)
			at = -1
		}
		if at < 0 {
			c.Joined = append(c.Joined, m)
		}
	}
	for _, m := range old.Members {
		if memberAt(v.Members, m.ClientID) < 0 {
			c.Left = append(c.Left, m.ClientID)
		}
	}
	for _, q := range v.Queues {
		if !slices.Contains(old.Queues, q) {
			c.Added = append(c.Added, q)
		}
	}
	for _, q := range old.Queues {
		if !slices.Contains(v.Queues, q) {
			c.Removed = append(c.Removed, q)
		}
	}
	if len(c.Joined)+len(c.Left)+len(c.Added)+len(c.Removed) == 0 {
		return
	}
	b.versions[topic]++
	v = b.view(topic)
	c.Version, c.Inputs = v.Version, v.Inputs
	b.announced[topic], b.owners[topic] = v, v.Owners
	for _, s := range b.subscribers(topic) {
		b.c.notices++
		b.send(s.hello.ClientID, c)
	}
}
