package assignor

import (
	"cmp"
	"slices"
)

// equalShare computes sticky where all members subscribe to the same topics.
// Every member gets each queues, as many as there are extras one more.
type equalShare struct {
	g      *group
	owner  []int32
	held   []int32
	each   int32
	extras int32 // members that may still get one more than each
	// short are the members with fewer than each, even those with exactly each:
	// both by id at first, then in the order in which they get there.
	short, even []int32
}

func (g *group) shareEqually(c *claims, near *racks, walk []int32) []int32 {
	s := &equalShare{g: g, owner: g.free(), held: make([]int32, len(g.members))}
	if len(g.queues) == 0 {
		return s.owner
	}
	s.each = int32(len(g.queues) / len(g.members))
	s.extras = int32(len(g.queues) % len(g.members))
	for q, m := range c.keeper {
		if m != nobody && near.matches(m, int32(q)) {
			s.owner[q] = m
			s.held[m]++
		}
	}
	s.keep(walk)
	var free []int32
	for q, m := range s.owner {
		if m == nobody {
			free = append(free, int32(q))
		}
	}
	if near != nil {
		few := near.near() // where the choice is smallest
		slices.SortStableFunc(free, func(a, b int32) int { return cmp.Compare(few[a], few[b]) })
		free = s.giveNear(free, near)
	}
	s.give(free)
	return s.owner
}

// keep takes from each member what is beyond its part, which is the larger one
// for the first members on the walk that hold that many.
func (s *equalShare) keep(walk []int32) {
	part := make([]int32, len(s.held))
	for _, m := range walk {
		part[m] = s.each
		if s.held[m] > s.each && s.extras > 0 {
			part[m]++
			s.extras--
		}
	}
	over := false
	for m := range part {
		switch {
		case s.held[m] < s.each:
			s.short = append(s.short, int32(m))
		case part[m] == s.each:
			s.even = append(s.even, int32(m))
		}
		over = over || s.held[m] > part[m]
	}
	if !over {
		return
	}
	claimed := make([][]int32, len(s.held)) // of members beyond their part
	for q, m := range s.owner {
		if m != nobody && s.held[m] > part[m] {
			claimed[m] = append(claimed[m], int32(q))
		}
	}
	for m, queues := range claimed {
		if len(queues) == 0 {
			continue
		}
		slices.SortFunc(queues, func(a, b int32) int {
			return cmp.Or(cmp.Compare(s.g.number(a), s.g.number(b)), cmp.Compare(a, b))
		})
		for _, q := range queues[part[m]:] {
			s.owner[q] = nobody
		}
		s.held[m] = part[m]
	}
}

// giveNear gives free queues to members in their racks that have room, and
// returns the others.
func (s *equalShare) giveNear(free []int32, near *racks) []int32 {
	var rest []int32
	next := 0 // in short
	for _, q := range free {
		if at := near.next(q, s.short, next); at >= 0 {
			m := s.short[at]
			s.take(m, q)
			if s.held[m] == s.each {
				s.short = slices.Delete(s.short, at, at+1)
				s.even = append(s.even, m)
			} else {
				at++
			}
			if next = 0; len(s.short) > 0 {
				next = at % len(s.short)
			}
			continue
		}
		at := -1
		if s.extras > 0 {
			at = near.next(q, s.even, 0)
		}
		if at < 0 {
			rest = append(rest, q)
			continue
		}
		s.take(s.even[at], q)
		s.extras--
		s.even = slices.Delete(s.even, at, at+1)
	}
	return rest
}

// give deals free queues out: to the short in a circle until none is, then one
// to each of the even.
func (s *equalShare) give(free []int32) {
	for len(free) > 0 && len(s.short) > 0 {
		still := s.short[:0]
		for i, m := range s.short {
			if len(free) == 0 {
				still = append(still, s.short[i:]...)
				break
			}
			s.take(m, free[0])
			free = free[1:]
			if s.held[m] == s.each {
				s.even = append(s.even, m)
			} else {
				still = append(still, m)
			}
		}
		s.short = still
	}
	for i, q := range free {
		s.take(s.even[i], q)
	}
}

func (s *equalShare) take(m, q int32) {
	s.owner[q] = m
	s.held[m]++
}
