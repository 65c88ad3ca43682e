package group

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// Stats counts what a registry did since it was made, for metrics.
type Stats struct {
	Frames       uint64 // read, of open sessions
	Heartbeats   uint64
	Reports      uint64
	Fetches      uint64
	Hellos       uint64 // accepted
	Reconnects   uint64 // accepted hellos of a life known before
	Inheritances uint64 // static members taken over by a newer incarnation
	Duplicates   uint64 // hellos and sessions refused for their client or instance id
	Expiries     uint64 // sessions ended by silence
	Pauses       uint64 // times this broker itself stood still
	Windows      uint64 // notice windows that ended in a notice
	Notices      uint64 // GroupChanged sent
	Versions     uint64 // versions of views
	ViewsReady   uint64 // views that were formed and served first
	ViewsServed  uint64
	Warming      uint64 // fetches answered with warming
	// WarmUpsEndedByTime counts views that gave up on missing members.
	WarmUpsEndedByTime uint64
	Censuses           uint64 // views formed anew since members came back from another broker
	QuietSignals       uint64 // OwnersChanged sent
	Nudges             uint64 // Nudge sent
	LeftOut            uint64 // members left out by the reach rule
	// Refused counts sessions ended with a reason, by session.Reason.
	Refused [session.ReasonReplaced + 1]uint64

	// The present numbers.
	Sessions int
	Members  int // attached or remembered
	Groups   int
	Views    int
	Settled  int // views
	Warm     int // views that miss members

	Leases lease.Stats
}

// Stats returns the counters and the present numbers.
func (r *Registry) Stats() Stats {
	s := r.stats
	s.Sessions, s.Groups, s.Warm = len(r.conns), len(r.groups), r.warm
	for _, g := range r.groups {
		s.Members += len(g.members) + len(g.ghosts)
		s.Views += len(g.views)
		for _, v := range g.views {
			if v.settled {
				s.Settled++
			}
		}
	}
	s.Leases = r.leases.Stats()
	return s
}

// Settle is one time that a view took from a change to settled.
type Settle struct {
	Group, Topic string
	Took         time.Duration
}

// maxSettles bounds what is kept for TakeSettles.
const maxSettles = 1024

func (r *Registry) settle(v *view) {
	if len(r.settles) < maxSettles {
		r.settles = append(r.settles, Settle{v.g.name, v.name, v.settledAt.Sub(v.changedAt)})
	}
}

// TakeSettles returns the views that settled since the last call, in order; at
// most 1024, later ones are not recorded.
func (r *Registry) TakeSettles() []Settle {
	out := r.settles
	r.settles = nil
	return out
}

// Summary is one line of a list of groups.
type Summary struct {
	Group   string
	Mode    session.Mode
	Members int // attached or remembered
	Topics  int
	Settled bool // all its views are
}

// ListGroups returns all groups that have members here, sorted by name.
func (r *Registry) ListGroups() []Summary {
	out := make([]Summary, 0, len(r.groups))
	for _, g := range r.sortedGroups() {
		if len(g.members)+len(g.ghosts) == 0 {
			continue
		}
		s := Summary{Group: g.name, Mode: g.mode, Members: len(g.members) + len(g.ghosts), Topics: len(g.views), Settled: true}
		for _, v := range g.views {
			s.Settled = s.Settled && v.settled
		}
		out = append(out, s)
	}
	return out
}

// Description is a group as this broker sees it.
type Description struct {
	Group   string
	Mode    session.Mode
	Members []MemberInfo // sorted by client id, then incarnation
	Views   []ViewInfo   // sorted by topic
	Leases  []lease.Info // sorted by queue
}

// MemberInfo describes a member.
type MemberInfo struct {
	ClientID      string
	Instance      string
	Incarnation   session.Incarnation
	Session       SessionID // 0: detached, kept until ExpiresAt
	Timeout       time.Duration
	Since         time.Time // its last hello
	LastFrame     time.Time
	ExpiresAt     time.Time // if nothing more is heard
	Leaving       bool
	Ghost         bool // in no view; its leases are kept until ExpiresAt
	Subscriptions []session.Subscription
	Offers        []session.Offer
	Silent        []session.Silence
	Holds, Asks   int // leases of this broker's queues
}

// ViewInfo describes a view.
type ViewInfo struct {
	View session.View // as last published, with the present ownership
	// First says that this broker is the first in rank for the view.
	First   bool
	Ready   bool
	Warming bool     // members are missing
	Missing []string // their client ids, sorted
	// Waiting are members that are not in the published version: they have not
	// reported yet or the window is open. LeftOut are those the reach rule keeps out.
	Waiting  []string
	LeftOut  []string
	Draining int // members that drain a queue of the topic
	Settled  bool
	// Since is when it settled, or since when it is not settled.
	Since time.Time
}

// Describe returns a snapshot of a group; ok is false if it has no members here.
func (r *Registry) Describe(name string) (d Description, ok bool) {
	g := r.groups[name]
	if g == nil || len(g.members)+len(g.ghosts) == 0 {
		return d, false
	}
	d = Description{Group: name, Mode: g.mode, Leases: r.leases.Describe(name)}
	for _, m := range g.members {
		d.Members = append(d.Members, m.info(false))
	}
	for _, m := range g.ghosts {
		d.Members = append(d.Members, m.info(true))
	}
	slices.SortFunc(d.Members, func(a, b MemberInfo) int {
		if c := session.CompareIDs(a.ClientID, b.ClientID); c != 0 {
			return c
		}
		return a.Incarnation.Compare(b.Incarnation)
	})
	for _, v := range g.sortedViews() {
		d.Views = append(d.Views, v.info())
	}
	return d, true
}

func (m *member) info(ghost bool) MemberInfo {
	i := MemberInfo{
		ClientID: m.id, Instance: m.instance, Incarnation: m.incarnation, Timeout: m.timeout,
		Since: m.since, LastFrame: m.lastFrame, ExpiresAt: m.deadline, Leaving: m.leaving, Ghost: ghost,
		Subscriptions: slices.Clone(m.subs), Offers: slices.Clone(m.offers), Silent: slices.Clone(m.silent),
		Holds: m.holder.Holds(), Asks: m.holder.Asks(),
	}
	if m.conn != nil {
		i.Session = m.conn.id
	}
	return i
}

func (v *view) info() ViewInfo {
	i := ViewInfo{
		View: *v.snapshot(), First: v.first, Ready: v.ready, Warming: v.isWarm(), Draining: v.draining,
		Settled: v.settled, Since: v.changedAt,
	}
	if v.settled {
		i.Since = v.settledAt
	}
	for id := range v.expect {
		i.Missing = append(i.Missing, id)
	}
	slices.SortFunc(i.Missing, session.CompareIDs)
	for _, vm := range v.all {
		switch {
		case vm.leftOut:
			i.LeftOut = append(i.LeftOut, vm.m.id)
		case !vm.listed:
			i.Waiting = append(i.Waiting, vm.m.id)
		}
	}
	return i
}
