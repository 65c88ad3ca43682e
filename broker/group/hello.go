package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// claimsIdle is how long nothing must have been read or committed under a claim of a
// group until members without a coordinator may take it over.
const claimsIdle = time.Minute

// maxFenced is how many replaced lives of a static member are known to be fenced.
const maxFenced = 8

// arrival is a hello and whom it concerns.
type arrival struct {
	h *session.Hello
	g *group
	// back is the same life as known before: a reconnect.
	back *member
	// old is the life of the static member that this one replaces.
	old *member
	// displaced has the client id now and loses it.
	displaced *member
}

// hello opens a session or refuses it.
func (r *Registry) hello(now time.Time, c *conn, h *session.Hello) {
	if bad := r.cfg.Limits.hello(h); bad != "" {
		r.refuse(c, session.ReasonBadRequest, bad, session.Incarnation{})
		return
	}
	a := arrival{h: h, g: r.groups[h.Group]}
	if a.g == nil {
		a.g = newGroup(h.Group)
	}
	if !r.identify(c, &a) || !r.agrees(now, c, &a) {
		return
	}
	if member := r.leases.Claimed(h.Group, now.Add(-claimsIdle)); member != "" {
		r.refuse(c, session.ReasonModeMismatch, fmt.Sprintf("group %s has a coordinator: its member %s reads here", quote(h.Group), quote(member)), session.Incarnation{})
		return
	}
	g := a.g
	r.keep(g)
	r.stats.Hellos++
	if d := a.displaced; d != nil {
		if d.conn != nil {
			r.stats.Duplicates++
			r.refuse(d.conn, session.ReasonDuplicateClientID, duplicateText(d.id), h.Incarnation)
		}
		if d.holder.Holds() > 0 {
			r.haunt(now, d)
		} else {
			r.end(now, d) // nothing to remember it for
		}
	}
	m := a.back
	if m == nil {
		m = &member{g: g, id: h.ClientID, instance: h.Instance, incarnation: h.Incarnation}
		m.timer.owner = m
		m.timeout = r.cfg.timeout(h.SessionTimeout)
		m.holder = r.leases.Holder(lease.Life{
			Group: h.Group, ClientID: h.ClientID, Instance: h.Instance, Incarnation: h.Incarnation,
			Timeout: r.cfg.timeout(h.SessionTimeout),
		})
	} else {
		r.stats.Reconnects++
		if m.conn != nil {
			r.refuse(m.conn, session.ReasonReplaced, "a newer session of this member came", h.Incarnation)
		}
		r.detach(m)
		delete(g.ghosts, m.life())
		if timeout := r.cfg.timeout(h.SessionTimeout); timeout != m.timeout {
			m.floor, m.timeout = m.deadline, timeout
		}
	}
	g.members[m.id] = m
	if m.instance != "" {
		g.instances[m.instance] = m
	}
	g.mode = h.Mode
	m.conn, c.m, m.closed = c, m, false
	m.roots = max(m.roots, a.roots())
	m.since = now
	m.heard(now)
	r.timers.set(&m.timer, m.deadline)

	inherited, all := r.replace(now, a.old, m)
	if all {
		c.inherited = inherited.owned
	} else {
		var held []session.Owned
		if h.Mode == session.Exclusive {
			held = h.Held
		}
		r.leases.Attach(now, m.holder, uint64(c.id), m.timeout, held)
	}
	r.settleIn(now, m, h, inherited)
}

// settleIn applies what the hello says besides leases.
func (r *Registry) settleIn(now time.Time, m *member, h *session.Hello, in inheritance) {
	offers := slices.Clone(h.Offers)
	same := session.EqualOffers(offers, m.offers)
	m.uncount()
	if !same {
		m.offers = offers
		for _, vm := range m.views {
			r.change(now, vm.v)
		}
	}
	for _, vm := range m.views {
		vm.welcomed(now)
		r.touch(vm.v)
	}
	m.silent = slices.Clone(h.Silent)
	m.leaving = h.Leaving
	m.subs = sortedSubscriptions(h.Subscriptions)
	m.count()
	r.attend(now, m, in)
	r.present(m)
	for _, ref := range h.Views {
		r.named(now, m, ref)
	}
}

// inheritance is what a newer life of a static member takes over besides leases.
type inheritance struct {
	owned []session.Owned
	parts map[string]*viewMember // by topic, of the life before
}

// replace makes m the successor of old in its views and, if old has closed its
// stream, of its leases, under new epochs. Any other may hand out messages until it
// has heard that it is fenced: its leases are free when it closes its stream, or
// after its timeout, and m waits in line for them like any other. That old has no
// stream here proves nothing: it may be cut off, or this broker has just started.
func (r *Registry) replace(now time.Time, old, m *member) (in inheritance, all bool) {
	if old == nil {
		return in, false
	}
	r.stats.Inheritances++
	in.parts = make(map[string]*viewMember, len(old.views))
	for _, vm := range old.views {
		in.owned = append(in.owned, vm.owned...)
		in.parts[vm.v.name] = vm
	}
	m.fenced = append(slices.Clone(old.fenced), old.incarnation)
	if len(m.fenced) > maxFenced {
		m.fenced = m.fenced[len(m.fenced)-maxFenced:]
	}
	if c := old.conn; c != nil {
		r.tellRefused(c, session.ReasonFenced, "a newer incarnation of this static member took over", m.incarnation)
		r.haunt(now, old)
		c.fenced, old.fencedConn = old, c
		return in, false
	}
	if !old.closed && old.holder.Holds() > 0 {
		r.haunt(now, old)
		return in, false
	}
	r.leases.Inherit(now, old.holder, m.holder, uint64(m.conn.id))
	r.end(now, old)
	return in, true
}

// identify finds out whom a hello concerns; it refuses one that is not to be.
func (r *Registry) identify(c *conn, a *arrival) bool {
	h, g := a.h, a.g
	cur := g.members[h.ClientID]
	a.back = g.ghosts[life{h.ClientID, h.Incarnation}]
	if cur != nil && cur.incarnation == h.Incarnation {
		a.back = cur
	}
	if a.back != nil && a.back.instance != h.Instance {
		r.refuse(c, session.ReasonBadRequest, fmt.Sprintf("instance %s: this incarnation came with %s before", quote(h.Instance), quote(a.back.instance)), session.Incarnation{})
		return false
	}
	if h.Instance != "" {
		if o := g.instances[h.Instance]; o != nil && o != a.back {
			switch {
			case h.Incarnation.Counter > o.incarnation.Counter:
				a.old = o
			case slices.Contains(o.fenced, h.Incarnation):
				r.refuse(c, session.ReasonFenced, "a newer incarnation of this static member took over", o.incarnation)
				return false
			default:
				r.stats.Duplicates++
				r.refuse(c, session.ReasonStaticExists, fmt.Sprintf("static member %s exists", quote(h.Instance)), o.incarnation)
				return false
			}
		}
	}
	if cur == nil || cur == a.back || cur == a.old {
		return true
	}
	if cur.conn != nil && h.Incarnation.Compare(cur.incarnation) > 0 {
		r.stats.Duplicates++
		r.refuse(c, session.ReasonDuplicateClientID, duplicateText(h.ClientID), cur.incarnation)
		return false
	}
	a.displaced = cur
	return true
}

func duplicateText(id string) string {
	return fmt.Sprintf("client id %s is in use by another live member of the group", quote(id))
}

// agrees checks a hello against the other members of the group. Where they cannot
// be together the newcomer is refused. A broker that has just started may meet the
// newcomer first: then it makes way for a member that knows the group from before.
func (r *Registry) agrees(now time.Time, c *conn, a *arrival) bool {
	for {
		reason, text, against := a.disagreement()
		if reason == 0 {
			return true
		}
		if len(against) == 0 || slices.ContainsFunc(against, func(m *member) bool {
			return m.roots >= a.roots() || !now.Before(m.since.Add(m.timeout))
		}) {
			r.refuse(c, reason, text, session.Incarnation{})
			return false
		}
		for _, m := range against {
			if o := m.conn; o != nil {
				r.tellRefused(o, reason, "the members of group "+quote(a.g.name)+" that were there before do not agree", session.Incarnation{})
				r.haunt(now, m)
				o.fenced, m.fencedConn = m, o
				continue
			}
			r.haunt(now, m)
		}
	}
}

// roots tells how well the hello shows that the member was in the group before: 2 by
// leases of this broker, 1 by a view, 0 not at all.
func (a *arrival) roots() int {
	switch {
	case len(a.h.Held) > 0:
		return 2
	case slices.ContainsFunc(a.h.Views, func(v session.ViewRef) bool { return !v.Version.IsZero() }):
		return 1
	}
	return 0
}

// disagreement finds what keeps the hello's member and the others apart, and who of
// them is against it. A zero reason is agreement.
func (a *arrival) disagreement() (reason session.Reason, text string, against []*member) {
	h, g := a.h, a.g
	var selves []*member // who will be gone or changed when this one is in
	for _, m := range []*member{a.back, a.old, a.displaced} {
		if m != nil && m.counted {
			selves = append(selves, m)
		}
	}
	who := func(differs func(*member) bool) (out []*member) {
		for _, id := range slices.SortedFunc(maps.Keys(g.members), session.CompareIDs) {
			if m := g.members[id]; !slices.Contains(selves, m) && differs(m) {
				out = append(out, m)
			}
		}
		return out
	}
	others := len(g.members) - len(selves)
	if others > 0 && h.Mode != g.mode {
		return session.ReasonModeMismatch, fmt.Sprintf("mode %s: the members of group %s use %s", h.Mode, quote(g.name), g.mode),
			who(func(*member) bool { return true })
	}
	if others > 0 && h.Mode != session.Broadcasting && !slices.ContainsFunc(h.Offers, func(o session.Offer) bool {
		n := g.strategies[o.Strategy]
		for _, m := range selves {
			if m.offersStrategy(o.Strategy) {
				n--
			}
		}
		return n == others
	}) {
		return session.ReasonStrategyMismatch, fmt.Sprintf("strategies %s: none is supported by all members of group %s", names(h.Offers), quote(g.name)),
			who(func(m *member) bool {
				return !slices.ContainsFunc(h.Offers, func(o session.Offer) bool { return m.offersStrategy(o.Strategy) })
			})
	}
	if s, f := g.otherFilter(h.Subscriptions, selves...); f != nil {
		return session.ReasonFilterMismatch, filterText(g, s, f), who(func(m *member) bool { return m.subscribes(s.Topic) })
	}
	return 0, "", nil
}

func (m *member) offersStrategy(name string) bool {
	return slices.ContainsFunc(m.offers, func(o session.Offer) bool { return o.Strategy == name })
}

func names(offers []session.Offer) string {
	out := make([]string, len(offers))
	for i, o := range offers {
		out[i] = quote(o.Strategy)
	}
	return strings.Join(out, ", ")
}

// otherFilter finds a subscription whose topic other members than selves filter
// differently, and how; nil: there is none.
func (g *group) otherFilter(subs []session.Subscription, selves ...*member) (session.Subscription, *filter) {
	for _, s := range subs {
		f := g.filters[s.Topic]
		if f == nil || f.text == s.Filter {
			continue
		}
		n := f.n
		for _, m := range selves {
			if m.subscribes(s.Topic) {
				n--
			}
		}
		if n > 0 {
			return s, f
		}
	}
	return session.Subscription{}, nil
}

func filterText(g *group, s session.Subscription, f *filter) string {
	return fmt.Sprintf("filter %s of topic %s: the members of group %s use %s", quote(s.Filter), quote(s.Topic), quote(g.name), quote(f.text))
}

func (m *member) subscribes(topic string) bool {
	_, ok := slices.BinarySearchFunc(m.subs, topic, func(s session.Subscription, t string) int {
		return session.CompareIDs(s.Topic, t)
	})
	return ok
}

func sortedSubscriptions(subs []session.Subscription) []session.Subscription {
	out := slices.Clone(subs)
	slices.SortFunc(out, func(a, b session.Subscription) int { return session.CompareIDs(a.Topic, b.Topic) })
	return slices.CompactFunc(out, func(a, b session.Subscription) bool { return a.Topic == b.Topic })
}

// refuse ends a session. Its member, if any, is left to the caller.
func (r *Registry) refuse(c *conn, reason session.Reason, text string, other session.Incarnation) {
	r.tellRefused(c, reason, text, other)
	r.out = append(r.out, CloseSession{c.id})
}

// tellRefused says that a session has ended, and leaves it to the member to close it.
func (r *Registry) tellRefused(c *conn, reason session.Reason, text string, other session.Incarnation) {
	r.stats.Refused[reason]++
	c.welcomed = true // nothing waits for a welcome any more
	c.held = nil
	r.send(c, session.Refused{Reason: reason, Text: text, Incarnation: other})
	c.dead = true
}
