package assignor

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

type roundRobin struct{}

// RoundRobin returns the assignor that deals all queues of all topics out like
// cards, members in a circle. If all subscribe to the same topics the loads
// differ by at most one; otherwise a member is passed over when the queue's topic
// is not its own, and loads can be far apart. A join or leave moves nearly all.
func RoundRobin() Assignor { return roundRobin{} }

func (roundRobin) Name() string { return NameRoundRobin }

func (roundRobin) Assign(in Input) (map[string][]allocate.Queue, error) {
	in.Racks = nil
	g, err := newGroup(in)
	if err != nil {
		return nil, err
	}
	members := g.everybody()
	g.inMemberOrder(members)
	place := make([]int32, len(members)) // of each member in the circle
	for i, m := range members {
		place[m] = int32(i)
	}
	owner := g.free()
	at := int32(0)
	for t := range g.topics {
		readers := make([]int32, 0, len(g.subscribers[t])) // their places
		for _, m := range g.subscribers[t] {
			readers = append(readers, place[m])
		}
		slices.Sort(readers)
		for q := g.starts[t]; q < g.starts[t+1]; q++ {
			next, _ := slices.BinarySearch(readers, at)
			at = readers[next%len(readers)]
			owner[q] = members[at]
			at++ // past the last one is before the first
		}
	}
	return g.assignment(owner), nil
}
