package assignor

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

type rangeAssignor struct{ server bool }

// Range returns the assignor that cuts each topic into one range of consecutive
// queues for each subscriber, the first subscribers one queue more where the
// counts do not divide. Topics with the same subscribers and equally many queues
// are cut alike, so that a member gets the same numbers of each. With many topics
// the first members collect the extras of all, and a join moves the ranges of
// everybody behind it.
//
// With racks a member first gets, within its quota, queues of its own rack.
func Range() Assignor { return rangeAssignor{} }

// ServerRange returns [Range] as the group coordinator computes it: racks are not
// looked at. Its name is "range", too.
func ServerRange() Assignor { return rangeAssignor{server: true} }

func (rangeAssignor) Name() string { return NameRange }

func (a rangeAssignor) Assign(in Input) (map[string][]allocate.Queue, error) {
	if a.server {
		in.Racks = nil
	}
	g, err := newGroup(in)
	if err != nil {
		return nil, err
	}
	r := &ranges{g: g, owner: g.free(), cuts: make([]cut, len(g.topics))}
	for t := range g.topics {
		c := &r.cuts[t]
		if t > 0 && slices.Equal(g.subscribers[t], g.subscribers[t-1]) {
			c.members = r.cuts[t-1].members
		} else {
			c.members = slices.Clone(g.subscribers[t])
			g.inMemberOrder(c.members)
		}
		n, k := g.count(int32(t)), len(c.members)
		c.each, c.extras = n/k, n%k
	}
	if near := g.newRacks(); near != nil {
		r.nearFirst(near)
	}
	for t := range g.topics {
		r.fill(int32(t), nil)
	}
	return g.assignment(r.owner), nil
}

// ranges is a computation of range.
type ranges struct {
	g     *group
	owner []int32
	cuts  []cut // by topic
}

// cut says how a topic is shared among its subscribers.
type cut struct {
	members []int32 // in member order; topics may share one
	each    int     // queues for each member
	extras  int     // members that may still get one more
	given   []int   // what each of members has so far; nil: nothing
}

// room returns how many queues members[i] may still get.
func (c *cut) room(i int) int {
	room := c.each
	if c.extras > 0 {
		room++
	}
	if c.given != nil {
		room -= c.given[i]
	}
	return max(room, 0)
}

// give notes that members[i] got n queues.
func (c *cut) give(i, n int) {
	if c.given == nil {
		c.given = make([]int, len(c.members))
	}
	c.given[i] += n
	if n > 0 && c.given[i] > c.each {
		c.extras--
	}
}

// fill gives each member in turn the next free queues of a topic up to its room,
// only those that match if near is not nil.
func (r *ranges) fill(t int32, near *racks) {
	c := &r.cuts[t]
	from, to := r.g.starts[t], r.g.starts[t+1]
	for i, m := range c.members {
		room, n := c.room(i), 0
		for q := from; q < to && n < room; q++ {
			if r.owner[q] == nobody && near.matches(m, q) {
				r.owner[q] = m
				n++
			}
		}
		c.give(i, n)
		for from < to && r.owner[from] != nobody {
			from++
		}
		if from == to {
			return
		}
	}
}

// nearFirst gives out what has a replica near its reader, topics that are to be
// cut alike together.
func (r *ranges) nearFirst(near *racks) {
	matters := make([]bool, len(r.g.topics))
	for t := range r.g.topics {
		matters[t] = near.matter(r.g.subscribers[t], r.g.starts[t], r.g.starts[t+1])
	}
	if !slices.Contains(matters, true) {
		return
	}
	done := make([]bool, len(r.g.topics))
	for t := range r.g.topics {
		if done[t] {
			continue
		}
		var alike []int32
		for o := t; o < len(r.g.topics); o++ {
			if r.g.count(int32(o)) == r.g.count(int32(t)) && slices.Equal(r.g.subscribers[o], r.g.subscribers[t]) {
				alike = append(alike, int32(o))
				done[o] = true
			}
		}
		if len(alike) > 1 {
			r.nearAlike(alike, near)
		} else if matters[t] {
			r.fill(int32(t), near)
		}
	}
}

// nearAlike gives each number of topics that are cut alike to the first member
// that has room and runs in a rack of that queue in every topic.
func (r *ranges) nearAlike(topics []int32, near *racks) {
	members := r.cuts[topics[0]].members
	for n := range int32(r.g.count(topics[0])) {
		for i, m := range members {
			// A member has as much room in one of these topics as in the others.
			if r.cuts[topics[0]].room(i) == 0 || !r.near(m, topics, n, near) {
				continue
			}
			for _, t := range topics {
				r.owner[r.g.starts[t]+n] = m
				r.cuts[t].give(i, 1)
			}
			break
		}
	}
}

// near reports whether m has no rack, or one of queue n of each topic.
func (r *ranges) near(m int32, topics []int32, n int32, near *racks) bool {
	return !slices.ContainsFunc(topics, func(t int32) bool { return !near.matches(m, r.g.starts[t]+n) })
}
