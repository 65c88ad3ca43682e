package group

import (
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// group is a consumer group as this broker sees it.
type group struct {
	name string
	mode session.Mode // of its members, while there are any
	// members by client id, attached or detached.
	members map[string]*member
	// ghosts are lives that are in no view and belong to nobody's client id any
	// more, or not yet: their leases stay their own until they come back or time out.
	ghosts map[life]*member
	// instances are the static members among both, by instance id.
	instances  map[string]*member
	views      map[string]*view // by topic
	strategies map[string]int   // members that offer it
	filters    map[string]*filter
	silent     int    // members that cannot hear some broker
	rev        uint64 // grows when a ViewState of its views changes
	forget     timer  // set while it is empty
}

// filter is how a group filters a topic.
type filter struct {
	text string
	n    int // members
}

// life tells the lives of client ids in one group apart.
type life struct {
	id          string
	incarnation session.Incarnation
}

// member is one life of a member with a session at this broker, or one that is
// remembered until its timeout.
type member struct {
	g           *group
	id          string
	instance    string // static member id, or empty
	incarnation session.Incarnation
	timeout     time.Duration
	offers      []session.Offer
	subs        []session.Subscription // sorted by topic
	silent      []session.Silence
	fenced      []session.Incarnation // lives that this one, a static member's, replaced
	conn        *conn                 // nil: detached
	fencedConn  *conn                 // of a life that was replaced: the peer has not closed it yet
	holder      *lease.Holder
	leaving     bool
	roots       int  // what its hellos showed of its past, see arrival.roots
	closed      bool // its peer closed its last stream: the process hands out nothing
	departed    bool // from views in which its queues may still be waited for
	ended       bool
	counted     bool // in the group's counts of strategies, filters and silence

	since     time.Time // its session was welcomed
	lastFrame time.Time
	deadline  time.Time // it ends then; the timer may lag behind
	floor     time.Time // not before: an earlier session may have promised more
	timer     timer

	views     []*viewMember // sorted by topic
	states    []session.ViewState
	statesRev uint64
}

func newGroup(name string) *group {
	return &group{
		name: name, members: make(map[string]*member), ghosts: make(map[life]*member),
		instances: make(map[string]*member), views: make(map[string]*view),
		strategies: make(map[string]int), filters: make(map[string]*filter), rev: 1,
	}
}

func (m *member) life() life { return life{m.id, m.incarnation} }

func (g *group) sortedViews() []*view {
	out := make([]*view, 0, len(g.views))
	for _, topic := range slices.SortedFunc(maps.Keys(g.views), session.CompareIDs) {
		out = append(out, g.views[topic])
	}
	return out
}

// keep puts g among the groups.
func (r *Registry) keep(g *group) {
	if r.groups[g.name] == g {
		r.timers.stop(&g.forget)
		return
	}
	g.forget.owner = g
	r.groups[g.name] = g
}

// forgetIfEmpty lets an empty group be forgotten after a while.
func (r *Registry) forgetIfEmpty(now time.Time, g *group) {
	if len(g.members)+len(g.ghosts) == 0 && r.groups[g.name] == g {
		r.timers.set(&g.forget, now.Add(r.cfg.ForgetAfter))
	}
}

// due forgets an empty group.
func (g *group) due(r *Registry, _ time.Time) {
	if len(g.members)+len(g.ghosts) == 0 {
		delete(r.groups, g.name)
		r.leases.Forget(g.name)
	}
}

// remember makes a ghost of a stored holder.
func (r *Registry) remember(now time.Time, h *lease.Holder) {
	g := r.groups[h.Group]
	if g == nil {
		g = newGroup(h.Group)
		r.keep(g)
	}
	m := &member{
		g: g, id: h.ClientID, instance: h.Instance, incarnation: h.Incarnation, holder: h,
		timeout: h.Timeout, lastFrame: now, since: now, // the timeout it knows, whatever the limits are now
	}
	if m.timeout <= 0 {
		m.timeout = r.cfg.SessionTimeout
	}
	m.timer.owner = m
	m.deadline = now.Add(m.timeout)
	r.timers.set(&m.timer, m.deadline)
	g.ghosts[m.life()] = m
	if m.instance != "" {
		if o := g.instances[m.instance]; o == nil || o.incarnation.Compare(m.incarnation) < 0 {
			g.instances[m.instance] = m
		}
	}
}

// count adds m to what its group agrees on; uncount takes it away.
func (m *member) count() {
	m.counted = true
	for _, o := range m.offers {
		m.g.strategies[o.Strategy]++
	}
	for _, s := range m.subs {
		f := m.g.filters[s.Topic]
		if f == nil {
			f = &filter{}
			m.g.filters[s.Topic] = f
		}
		f.text = s.Filter
		f.n++
	}
	if len(m.silent) > 0 {
		m.g.silent++
	}
}

func (m *member) uncount() {
	if !m.counted {
		return
	}
	m.counted = false
	for _, o := range m.offers {
		if m.g.strategies[o.Strategy]--; m.g.strategies[o.Strategy] == 0 {
			delete(m.g.strategies, o.Strategy)
		}
	}
	for _, s := range m.subs {
		if f := m.g.filters[s.Topic]; f.n == 1 {
			delete(m.g.filters, s.Topic)
		} else {
			f.n--
		}
	}
	if len(m.silent) > 0 {
		m.g.silent--
	}
}

// heard moves m's deadline.
func (m *member) heard(now time.Time) {
	m.lastFrame, m.deadline = now, now.Add(m.timeout)
	if m.floor.After(m.deadline) {
		m.deadline = m.floor
	}
}

// view returns m's part in the view of a topic.
func (m *member) view(topic string) *viewMember {
	i, ok := m.findView(topic)
	if !ok {
		return nil
	}
	return m.views[i]
}

func (m *member) findView(topic string) (int, bool) {
	return slices.BinarySearchFunc(m.views, topic, func(vm *viewMember, t string) int {
		return session.CompareIDs(vm.v.name, t)
	})
}

// due ends m if its timeout has passed, unless the broker itself stood still.
func (m *member) due(r *Registry, now time.Time) {
	end := m.deadline
	if !r.thawed.IsZero() {
		if grace := r.thawed.Add(min(ExpiryGrace, m.timeout/2)); grace.After(end) {
			end = grace
		}
	}
	if now.Before(end) {
		r.timers.set(&m.timer, end)
		return
	}
	r.stats.Expiries++
	if m.conn != nil {
		r.refuse(m.conn, session.ReasonExpired, "no frame for "+m.timeout.String(), session.Incarnation{})
	}
	r.end(now, m)
}

// detach says that m has no stream any more while it keeps its leases.
func (r *Registry) detach(m *member) {
	if c := m.conn; c != nil {
		c.m, m.conn = nil, nil
		r.forgetAsker(m, c)
	}
	r.leases.Detach(m.holder)
}

// end ends m for good: out of its views, its leases free.
func (r *Registry) end(now time.Time, m *member) {
	r.detach(m)
	r.unlist(now, m)
	m.ended = true
	if m.departed {
		for _, v := range m.g.sortedViews() {
			if slices.ContainsFunc(v.departed, func(d departed) bool { return d.m == m }) {
				v.quietFrom(now)
				r.touch(v)
			}
		}
	}
	r.leases.Drop(now, m.holder)
	if c := m.fencedConn; c != nil {
		c.fenced, m.fencedConn = nil, nil
		r.out = append(r.out, CloseSession{c.id})
	}
	r.timers.stop(&m.timer)
	if m.g.ghosts[m.life()] == m {
		delete(m.g.ghosts, m.life())
	}
	if m.instance != "" && m.g.instances[m.instance] == m {
		delete(m.g.instances, m.instance)
	}
	r.forgetIfEmpty(now, m.g)
}

// haunt makes a ghost of m: another life has its client id now, but the leases
// stay its own until it comes back or its timeout.
func (r *Registry) haunt(now time.Time, m *member) {
	r.detach(m)
	r.unlist(now, m)
	m.g.ghosts[m.life()] = m
}

// unlist takes m out of its views and its client id.
func (r *Registry) unlist(now time.Time, m *member) {
	for len(m.views) > 0 {
		r.leave(now, m.views[len(m.views)-1])
	}
	m.uncount()
	if m.g.members[m.id] == m {
		delete(m.g.members, m.id)
	}
}
