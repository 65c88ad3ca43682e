package assignor

import (
	"github.com/tacitmq/tacit/allocate"
)

// claims says what members brought along.
type claims struct {
	// keeper is who has the right to each queue: the member with the claim of the
	// highest generation, nobody if there is none or two have it.
	keeper []int32
	// lister is a member that lists the queue, the only one if lists is 1.
	lister []int32
	lists  []int32
	// newest is the highest generation of any member, with a claim or without.
	newest int64
}

func (m *Member) generation() int64 { return max(m.Generation, NoGeneration) }

func (g *group) claims() *claims {
	c := &claims{keeper: g.free(), lister: g.free(), lists: make([]int32, len(g.queues)), newest: NoGeneration}
	best := make([]int64, len(g.queues))
	g.eachClaim(func(m, q int32, generation int64) {
		if c.lister[q] == m {
			return // twice in one list
		}
		c.lister[q] = m
		c.lists[q]++
		switch {
		case c.lists[q] == 1 || generation > best[q]:
			c.keeper[q], best[q] = m, generation
		case generation == best[q]:
			c.keeper[q] = nobody
		}
	})
	for i := range g.members {
		c.newest = max(c.newest, g.members[i].generation())
	}
	return c
}

// eachClaim calls f for the known queues that members list, member by member.
func (g *group) eachClaim(f func(m, q int32, generation int64)) {
	index := allocate.NewIndex(g.queues)
	for i := range g.members {
		m := &g.members[i]
		for _, queue := range m.Owned {
			if q, ok := index.Find(queue); ok {
				f(int32(i), int32(q), m.generation())
			}
		}
	}
}

// outdated returns for each queue who claims it in the highest generation that is
// not the newest, the smallest id of several, or nobody.
func (g *group) outdated(c *claims) []int32 {
	owner := g.free()
	best := make([]int64, len(g.queues))
	g.eachClaim(func(m, q int32, generation int64) {
		if generation < c.newest && (owner[q] == nobody || generation > best[q]) {
			owner[q], best[q] = m, generation
		}
	})
	return owner
}

// heldByOthers reports whether somebody but m lists q as owned.
func (c *claims) heldByOthers(q, m int32) bool {
	return c.lists[q] > 1 || c.lists[q] == 1 && c.lister[q] != m
}
