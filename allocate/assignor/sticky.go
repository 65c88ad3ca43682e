package assignor

import "github.com/tacitmq/tacit/allocate"

type sticky struct {
	cooperative bool
	// walk is the order in which members get a part that is larger by one, ids;
	// nil: by id. Recorded cases have another one.
	walk []string
}

// Sticky returns the assignor that leaves queues where they are as far as balance
// allows. Members claim what they owned before ([Member.Owned]).
//
// If all subscribe to the same topics, loads differ by at most one and as few
// queues move as that allows. If subscriptions differ it improves step by step,
// by single moves from a member to one with at least two queues fewer, until
// there is none left: mostly good and few moves, not always the best.
//
// With racks a claim on a queue that has no replica in the member's rack does not
// count, and free queues go to members near them first.
func Sticky() Assignor { return sticky{} }

// CooperativeSticky returns [Sticky] for members that go on reading what they own
// while they join: a queue that would change hands is in nobody's list as long
// as another member claims it. Once its owner has given it up and joined again, a
// further rebalance gives it out. A settled group needs one rebalance, a change
// two, now and then three with subscriptions that differ; see [Input.Racks] for
// how that holds with racks.
func CooperativeSticky() Assignor { return sticky{cooperative: true} }

func (a sticky) Name() string {
	if a.cooperative {
		return NameCooperativeSticky
	}
	return NameSticky
}

func (a sticky) Assign(in Input) (map[string][]allocate.Queue, error) {
	g, err := newGroup(in)
	if err != nil {
		return nil, err
	}
	c := g.claims()
	near := g.newRacks()
	if !near.matter(g.everybody(), 0, int32(len(g.queues))) {
		near = nil
	}
	var owner []int32
	if g.equal {
		owner = g.shareEqually(c, near, g.walk(a.walk))
	} else {
		owner = g.shareDiffering(c, near)
	}
	if a.cooperative {
		for q, m := range owner {
			if m != nobody && m != c.keeper[q] && c.heldByOthers(int32(q), m) {
				owner[q] = nobody
			}
		}
	}
	return g.assignment(owner), nil
}

// walk returns the members in the order of ids, by id if that is nil.
func (g *group) walk(ids []string) []int32 {
	out := g.everybody()
	if ids == nil {
		return out
	}
	places := make(map[string]int32, len(ids))
	for m := range g.members {
		places[g.members[m].ID] = int32(m)
	}
	for i, id := range ids {
		out[i] = places[id]
	}
	return out
}
