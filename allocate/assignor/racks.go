package assignor

import "slices"

// racks says which queues have a replica where a member runs. In a nil *racks
// every member is as good as any other.
type racks struct {
	member []string   // rack of each member, "" if unknown
	queue  [][]string // racks of each queue, without doubles
}

// newRacks returns nil if the racks of queues or of members are not known.
func (g *group) newRacks() *racks {
	if g.racks == nil || !slices.ContainsFunc(g.members, func(m Member) bool { return m.Rack != "" }) {
		return nil
	}
	r := &racks{member: make([]string, len(g.members)), queue: make([][]string, len(g.queues))}
	for m := range g.members {
		r.member[m] = g.members[m].Rack
	}
	for t := range g.topics {
		for n, list := range g.racks[t] {
			list = slices.DeleteFunc(slices.Clone(list), func(rack string) bool { return rack == "" })
			slices.Sort(list)
			r.queue[int(g.starts[t])+n] = slices.Compact(list)
		}
	}
	return r
}

// matter reports whether it makes a difference who of members gets which of
// queues from to to: some run in racks of theirs, and not each is in all racks.
func (r *racks) matter(members []int32, from, to int32) bool {
	if r == nil {
		return false
	}
	all := map[string]struct{}{}
	for _, list := range r.queue[from:to] {
		for _, rack := range list {
			all[rack] = struct{}{}
		}
	}
	return slices.ContainsFunc(r.queue[from:to], func(list []string) bool { return len(list) != len(all) }) &&
		slices.ContainsFunc(members, func(m int32) bool {
			_, ok := all[r.member[m]]
			return ok
		})
}

// near returns how many members run in a rack of each queue.
func (r *racks) near() []int32 {
	inhabitants := map[string]int32{}
	for _, rack := range r.member {
		inhabitants[rack]++
	}
	out := make([]int32, len(r.queue))
	for q, list := range r.queue {
		for _, rack := range list {
			out[q] += inhabitants[rack]
		}
	}
	return out
}

// matches reports whether q may go to m as far as racks are concerned: a member
// without a rack is as good anywhere.
func (r *racks) matches(m, q int32) bool {
	return r == nil || r.member[m] == "" || slices.Contains(r.queue[q], r.member[m])
}

// next returns the place in members, from a place on and around, of the first
// that runs in a rack of q, or -1.
func (r *racks) next(q int32, members []int32, from int) int {
	for i := range members {
		at := (from + i) % len(members)
		if m := members[at]; r.member[m] != "" && slices.Contains(r.queue[q], r.member[m]) {
			return at
		}
	}
	return -1
}
