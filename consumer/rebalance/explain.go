package rebalance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Question asks what the members of a group would compute from a view, as it is
// or with changes.
type Question struct {
	Group string
	View  session.View
	// Strategies that are not among those of package allocate; others are found
	// by the names that the members announce.
	Strategies []allocate.Strategy
	// AddMembers join; one without Offers supports what the first member does.
	AddMembers    []session.Member
	RemoveMembers []string
	AddQueues     []allocate.Queue
	RemoveQueues  []allocate.Queue
}

// Explanation answers a [Question].
type Explanation struct {
	Topic    string
	View     session.Version
	Strategy string
	Queues   []allocate.Queue
	Before   []session.Holding // the ownership that the view reports
	After    []session.Holding // the one that every member would expect
	Moved    []Move            // queues that change owner, sorted
	Minimum  int               // moves that no balanced assignment can undercut
	Members  []Load            // sorted by client id; those removed are absent
	Unowned  []allocate.Queue  // that the strategy gives to nobody
	Text     string            // the reason, in sentences
}

// Move is a queue that changes owner.
type Move struct {
	Queue    allocate.Queue
	From, To string
}

// Load is how many queues of the topic a member has.
type Load struct {
	ClientID      string
	Before, After int
	Joins         bool
}

// Explain computes what a pass would, by the same code. Its errors are those of
// a pass; the share of the group stays as it is then.
func Explain(q Question) (Explanation, error) {
	removed := slices.Sorted(slices.Values(q.RemoveMembers))
	joined := sortMembers(slices.Clone(q.AddMembers))
	members := slices.DeleteFunc(slices.Clone(q.View.Members), func(m session.Member) bool {
		_, gone := slices.BinarySearch(removed, m.ClientID)
		return gone || memberAt(joined, m.ClientID) >= 0
	})
	members = sortMembers(members)
	if len(members) > 0 {
		for i := range joined {
			if len(joined[i].Offers) == 0 {
				joined[i].Offers = members[0].Offers
			}
		}
	}
	members = sortMembers(append(members, joined...))
	lost := sortQueues(q.RemoveQueues)
	queues := cleanQueues(q.View.Topic, slices.Concat(q.View.Queues, q.AddQueues))
	queues = slices.DeleteFunc(queues, func(x allocate.Queue) bool {
		_, ok := slices.BinarySearchFunc(lost, x, allocate.Queue.Compare)
		return ok
	})
	strategies := make(map[string]allocate.Strategy)
	for _, s := range q.Strategies {
		name, err := nameOf(s)
		if err != nil {
			return Explanation{}, fmt.Errorf("explain: %w", err)
		}
		strategies[name] = s
	}
	if len(members) > 0 {
		if name := agree(members); name != "" && strategies[name] == nil {
			s, err := allocate.ByName(name)
			if err != nil {
				return Explanation{}, fmt.Errorf("explain: %w", err)
			}
			strategies[name] = s
		}
	}
	owner, _ := owners(queues, members)
	s, err := compute(q.Group, q.View.Topic, queues, members, owner, strategies)
	if err != nil {
		return Explanation{Topic: q.View.Topic, View: q.View.Version, Strategy: s.strategy, Queues: queues}, fmt.Errorf("explain: %w", err)
	}
	x := Explanation{
		Topic: q.View.Topic, View: q.View.Version, Strategy: s.strategy, Queues: queues,
		Before: session.Owners(sortMembers(slices.Clone(q.View.Members))), After: holdingsOf(queues, members, s.owner),
	}
	x.compare(members, joined)
	x.Text = x.reason(members, joined, removed)
	return x, nil
}

// compare fills in what differs between Before and After.
func (x *Explanation) compare(members, joined []session.Member) {
	x.Members = make([]Load, len(members))
	list := make([]string, len(members))
	for i, m := range members {
		list[i] = m.ClientID
		x.Members[i] = Load{ClientID: m.ClientID, Joins: memberAt(joined, m.ClientID) >= 0}
	}
	before := make(allocate.Owners, len(x.Before))
	for _, h := range x.Before {
		before[h.Queue] = h.ClientID
		if at := memberAt(members, h.ClientID); at >= 0 {
			x.Members[at].Before++
		}
	}
	next := 0
	for _, h := range x.After {
		x.Members[memberAt(members, h.ClientID)].After++
		if from := before[h.Queue]; from != "" && from != h.ClientID {
			x.Moved = append(x.Moved, Move{h.Queue, from, h.ClientID})
		}
		for ; x.Queues[next] != h.Queue; next++ {
			x.Unowned = append(x.Unowned, x.Queues[next])
		}
		next++
	}
	x.Unowned = append(x.Unowned, x.Queues[next:]...)
	x.Minimum = allocate.MinimumMoves(before, x.Queues, list)
}

func (x *Explanation) reason(members, joined []session.Member, removed []string) string {
	var b strings.Builder
	for _, m := range joined {
		fmt.Fprintf(&b, "%s joins. ", m.ClientID)
	}
	for _, id := range removed {
		fmt.Fprintf(&b, "%s leaves. ", id)
	}
	fmt.Fprintf(&b, "The strategy is %s, the first in the order of %s that all members (%d) support. ", x.Strategy, members[0].ClientID, len(members))
	low, high := x.Members[0].After, x.Members[0].After
	for _, m := range x.Members {
		low, high = min(low, m.After), max(high, m.After)
	}
	if low == high {
		fmt.Fprintf(&b, "Queues: %d, %d for each member. ", len(x.Queues), low)
	} else {
		fmt.Fprintf(&b, "Queues: %d, %d to %d for a member. ", len(x.Queues), low, high)
	}
	if len(x.Unowned) > 0 {
		fmt.Fprintf(&b, "Nobody gets %d of them. ", len(x.Unowned))
	}
	if len(x.Moved) == 0 {
		b.WriteString("No queue changes owner.")
	} else {
		fmt.Fprintf(&b, "Queues that change owner: %d; no balanced assignment needs fewer than %d.", len(x.Moved), x.Minimum)
	}
	return b.String()
}
