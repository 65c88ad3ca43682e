package group

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// Registry knows the members of all groups with sessions at one broker, their
// views and their leases. It has one owner; nothing in it is safe for
// concurrent use.
type Registry struct {
	cfg    Config
	leases *lease.Table

	conns  map[SessionID]*conn
	groups map[string]*group
	topics map[string]*topic

	timers   timers
	pulse    time.Time // when to look at the clock at the latest
	woke     time.Time // the last WakeAt asked for
	stepped  time.Time // the last Step
	thawed   time.Time // the end of the last pause
	versions uint64
	warm     int  // views that are warming
	partial  bool // routes may lack brokers

	out     []Effect
	touched []*view // to be looked at before the Step ends
	settles []Settle
	stats   Stats
}

// conn is one session stream.
type conn struct {
	id SessionID
	m  *member // nil before its hello and after its end
	// dead: it was told to end; whatever still comes is ignored.
	dead bool
	// fenced is the static member that this stream was, until its peer closes it.
	fenced *member
	// Until the welcome may leave, what follows it waits in held.
	welcomed  bool
	held      []session.ToMember
	inherited []session.Owned
}

// topic is what is known of a topic's queues.
type topic struct {
	hosted  bool // named by the last Routes
	partial bool // which may lack brokers
	brokers []string
	queues  []allocate.Queue // readable, sorted
	stored  []allocate.Queue // at this broker, sorted
	views   map[string]*view // by group
}

// New returns a registry with the stored leases. Their holders keep them until
// they come back without them or their session timeout, from now on, has passed.
func New(cfg Config, stored []lease.Record, now time.Time) *Registry {
	cfg = cfg.withDefaults()
	r := &Registry{
		cfg:    cfg,
		conns:  make(map[SessionID]*conn),
		groups: make(map[string]*group),
		topics: make(map[string]*topic),
	}
	table, holders := lease.New(lease.Config{BrokerEpoch: cfg.BrokerEpoch, Broken: cfg.Broken.leases()}, stored)
	r.leases = table
	for _, h := range holders {
		r.remember(now, h)
	}
	return r
}

// Step applies ev at now and returns what is to be done, in order. Frames in the
// effects, and what they point to, are shared and must not be changed.
func (r *Registry) Step(now time.Time, ev Event) []Effect {
	if !r.woke.IsZero() && now.Sub(r.woke) > PauseLimit {
		r.thaw(now)
	}
	r.stepped = now
	r.out = nil
	switch ev := ev.(type) {
	case Wake:
	case Received:
		r.received(now, ev.Session, ev.Frame)
	case Closed:
		r.closed(now, ev.Session, ev.ByPeer)
	case Routes:
		r.setRoutes(now, ev.Topics, ev.Partial)
	case LocalQueues:
		r.setLocal(ev.Queues)
	case Persisted:
		r.leases.Persisted(ev.ID)
	case Commit:
		r.leases.Used(now, ev.Key)
		r.leases.Commit(ev.Req, ev.Key, ev.Epoch, ev.Offset)
	case Claim:
		r.leases.Claim(now, ev.Req, ev.Key, ev.Member, ev.Generation)
	case Reset:
		r.reset(ev)
	}
	for t := r.timers.pop(now); t != nil; t = r.timers.pop(now) {
		t.owner.due(r, now)
	}
	for i := 0; i < len(r.touched); i++ { // looking at one may touch another
		v := r.touched[i]
		v.touched = false
		r.look(now, v)
	}
	clear(r.touched)
	r.touched = r.touched[:0]
	r.flush(now)
	r.wakeAt(now)
	out := r.out
	r.out = nil
	return out
}

// Check tells whether a pull of the group may be answered under the epoch; see
// [lease.Table.Check].
func (r *Registry) Check(group string, q allocate.Queue, epoch session.Epoch) error {
	return r.leases.Check(group, q, epoch)
}

// Pulls is Check for a pull that comes now: it shows that whoever claimed the queue lives.
func (r *Registry) Pulls(now time.Time, group string, q allocate.Queue, epoch session.Epoch) error {
	r.leases.Used(now, lease.Key{Group: group, Queue: q})
	return r.leases.Check(group, q, epoch)
}

// wakeAt asks for the next Wake, if it is earlier than the last asked for or
// that has come. While there are sessions the broker looks at the clock often,
// so that it sees its own pauses.
func (r *Registry) wakeAt(now time.Time) {
	if len(r.timers.heap) == 0 {
		r.woke = time.Time{}
		return
	}
	if !r.pulse.After(now) {
		r.pulse = now.Add(max(min(r.cfg.SessionTimeout/10, time.Second), 50*time.Millisecond))
	}
	next := r.timers.heap[0].at
	if len(r.conns) > 0 && r.pulse.Before(next) {
		next = r.pulse
	}
	if r.woke.IsZero() || !r.woke.After(now) || next.Before(r.woke) {
		r.woke = next
		r.out = append(r.out, WakeAt{next})
	}
}

// thaw says that the broker itself stood still: frames of members may be waiting
// unread, so nobody is expired yet; after a long pause members may have given
// this broker up, so that views must find their members again before they are
// served.
func (r *Registry) thaw(now time.Time) {
	r.stats.Pauses++
	r.thawed = now
	if now.Sub(r.stepped) < r.cfg.SessionTimeout/2 || r.cfg.Broken.NoWarmUp {
		return
	}
	for _, g := range r.sortedGroups() {
		for _, v := range g.sortedViews() {
			r.warmAgain(now, v)
		}
	}
}

func (r *Registry) sortedGroups() []*group {
	names := slices.SortedFunc(maps.Keys(r.groups), session.CompareIDs)
	out := make([]*group, len(names))
	for i, n := range names {
		out[i] = r.groups[n]
	}
	return out
}

func (r *Registry) topic(name string) *topic {
	t := r.topics[name]
	if t == nil {
		t = &topic{views: make(map[string]*view), partial: r.partial}
		r.topics[name] = t
	}
	return t
}

func (r *Registry) dropTopicIfUnused(name string) {
	if t := r.topics[name]; t != nil && !t.hosted && len(t.stored) == 0 && len(t.views) == 0 {
		delete(r.topics, name)
	}
}

func (r *Registry) setRoutes(now time.Time, topics []Topic, partial bool) {
	named := make(map[string]*Topic, len(topics))
	for i := range topics {
		named[topics[i].Name] = &topics[i]
		r.topic(topics[i].Name)
	}
	for _, name := range slices.SortedFunc(maps.Keys(r.topics), session.CompareIDs) {
		t, route := r.topics[name], named[name]
		var brokers []string
		var queues []allocate.Queue
		if route != nil {
			brokers = slices.Clone(route.Brokers)
			slices.SortFunc(brokers, session.CompareIDs)
			brokers = slices.Compact(brokers)
			queues = slices.Clone(route.Queues)
			slices.SortFunc(queues, allocate.Queue.Compare)
			queues = slices.Compact(queues)
		}
		if t.hosted == (route != nil) && slices.Equal(t.brokers, brokers) && slices.Equal(t.queues, queues) {
			continue
		}
		for _, g := range slices.SortedFunc(maps.Keys(t.views), session.CompareIDs) {
			r.change(now, t.views[g])
		}
		t.hosted, t.brokers, t.queues = route != nil, brokers, queues
		for _, g := range slices.SortedFunc(maps.Keys(t.views), session.CompareIDs) {
			v := t.views[g]
			v.rank(&r.cfg)
			v.orphanFrom(now)
		}
		r.dropTopicIfUnused(name)
	}
	if r.partial == partial {
		return
	}
	r.partial = partial
	for _, name := range slices.SortedFunc(maps.Keys(r.topics), session.CompareIDs) {
		t := r.topics[name]
		t.partial = partial
		for _, g := range slices.SortedFunc(maps.Keys(t.views), session.CompareIDs) {
			t.views[g].warmUp(r)
		}
	}
}

func (r *Registry) setLocal(queues []allocate.Queue) {
	sorted := slices.Clone(queues)
	slices.SortFunc(sorted, allocate.Queue.Compare)
	sorted = slices.Compact(sorted)
	r.leases.SetQueues(sorted)
	for _, t := range r.topics {
		t.stored = nil
	}
	for len(sorted) > 0 {
		name, n := sorted[0].Topic, 1
		for n < len(sorted) && sorted[n].Topic == name {
			n++
		}
		r.topic(name).stored = sorted[:n:n]
		sorted = sorted[n:]
	}
	for _, name := range slices.SortedFunc(maps.Keys(r.topics), session.CompareIDs) {
		for _, g := range slices.SortedFunc(maps.Keys(r.topics[name].views), session.CompareIDs) {
			r.topics[name].views[g].orphanFrom(r.stepped)
			r.touch(r.topics[name].views[g])
		}
		r.dropTopicIfUnused(name)
	}
}

// reset carries out an operator's order. Without leases, in an immediate group,
// any member of the topic may be about to commit, so that only force resets.
func (r *Registry) reset(ev Reset) {
	g := r.groups[ev.Key.Group]
	if !ev.Force && g != nil && g.mode == session.Immediate && g.views[ev.Key.Queue.Topic] != nil {
		r.out = append(r.out, Answer{ev.Req, fmt.Errorf("%w: group %s is immediate and has members", lease.ErrLeaseHeld, quote(g.name))})
		return
	}
	if member := r.leases.Claimed(ev.Key.Group, r.stepped.Add(-claimsIdle)); member != "" && !ev.Force {
		r.out = append(r.out, Answer{ev.Req, fmt.Errorf("%w: group %s has a coordinator, and its member %s reads here", lease.ErrLeaseHeld, quote(ev.Key.Group), quote(member))})
		return
	}
	r.leases.Reset(ev.Req, ev.Key, ev.Offset, ev.Force)
}

// flush carries out what the lease table has decided.
func (r *Registry) flush(now time.Time) {
	out := r.leases.Flush()
	if out.PersistID != 0 {
		r.out = append(r.out, Persist{out.PersistID, out.Records, out.Offsets, out.Resets})
	}
	for _, w := range out.Welcomes {
		r.welcome(SessionID(w.Session), w.Grants)
	}
	for i := range out.Mail {
		m := &out.Mail[i]
		c := r.conns[SessionID(m.Session)]
		for _, f := range m.Lost {
			r.send(c, f)
		}
		for _, f := range m.Withdrawn {
			r.send(c, f)
		}
		if len(m.Granted) > 0 {
			r.send(c, session.Granted{Grants: m.Granted})
		}
		for _, f := range m.Wanted {
			r.send(c, f)
		}
	}
	for _, a := range out.Answers {
		r.out = append(r.out, Answer{a.Req, a.Err})
	}
	for _, k := range out.Idle {
		if g := r.groups[k.Group]; g != nil {
			if v := g.views[k.Queue.Topic]; v != nil {
				v.orphanFrom(now)
				r.arm(v)
			}
		}
	}
}

// send sends a frame on a session, after its welcome.
func (r *Registry) send(c *conn, f session.ToMember) {
	switch {
	case c == nil || c.dead:
	case !c.welcomed:
		c.held = append(c.held, f)
	default:
		r.out = append(r.out, Send{c.id, f})
	}
}

func (r *Registry) welcome(id SessionID, grants []session.Grant) {
	c := r.conns[id]
	if c == nil || c.dead || c.m == nil {
		return
	}
	c.welcomed = true
	r.send(c, session.Welcome{
		Broker: r.cfg.Broker, BrokerEpoch: r.cfg.BrokerEpoch, SessionTimeout: c.m.timeout,
		Grants: grants, Inherited: c.inherited,
	})
	for _, f := range c.held {
		r.send(c, f)
	}
	c.held, c.inherited = nil, nil
}

func (r *Registry) touch(v *view) {
	if !v.touched {
		v.touched = true
		r.touched = append(r.touched, v)
	}
}
