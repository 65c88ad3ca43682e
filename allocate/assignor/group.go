package assignor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

// nobody stands for a member where there is none.
const nobody = -1

// group is an input in numbers: a member is its place by id, a topic its place by
// name among those that somebody subscribes to and that have queues, a queue its
// place in the list of all their queues, by topic and then number.
type group struct {
	members     []Member
	subscribed  [][]int32 // topics of each member, ascending; members may share one
	topics      []string
	subscribers [][]int32 // members of each topic, ascending; topics may share one
	queues      []allocate.Queue
	starts      []int32 // where the queues of each topic begin, and the end
	topicOf     []int32 // topic of each queue
	racks       [][][]string
	equal       bool // all members subscribe to the same of topics
}

func newGroup(in Input) (*group, error) {
	g := &group{members: slices.Clone(in.Members), equal: true}
	slices.SortFunc(g.members, func(a, b Member) int { return allocate.CompareStrings(a.ID, b.ID) })
	for i, m := range g.members {
		if m.ID == "" {
			return nil, fmt.Errorf("member with topics %q: empty id: %w", m.Topics, ErrInput)
		}
		if i > 0 && g.members[i-1].ID == m.ID {
			return nil, fmt.Errorf("member id %q: twice: %w", m.ID, ErrInput)
		}
	}
	places := g.collectTopics(in)
	if err := g.collectQueues(in); err != nil {
		return nil, err
	}
	g.subscribe(places)
	return g, nil
}

// collectTopics finds the topics and returns the place of each.
func (g *group) collectTopics(in Input) map[string]int32 {
	places := map[string]int32{}
	for i, m := range g.members {
		if i > 0 && slices.Equal(m.Topics, g.members[i-1].Topics) {
			continue
		}
		for _, topic := range m.Topics {
			if _, ok := places[topic]; !ok && len(in.Topics[topic]) > 0 {
				places[topic] = nobody
				g.topics = append(g.topics, topic)
			}
		}
	}
	slices.SortFunc(g.topics, allocate.CompareStrings)
	for t, topic := range g.topics {
		places[topic] = int32(t)
	}
	return places
}

func (g *group) collectQueues(in Input) error {
	total := 0
	for _, topic := range g.topics {
		total += len(in.Topics[topic])
	}
	g.queues = make([]allocate.Queue, 0, total)
	g.topicOf = make([]int32, 0, total)
	g.starts = make([]int32, 1, len(g.topics)+1)
	for t, topic := range g.topics {
		from := len(g.queues)
		g.queues = append(g.queues, in.Topics[topic]...)
		queues := g.queues[from:]
		if !slices.IsSortedFunc(queues, allocate.Queue.Compare) {
			slices.SortFunc(queues, allocate.Queue.Compare)
		}
		for n, q := range queues {
			if q.Topic != topic {
				return fmt.Errorf("topics[%q]: queue %+v of another topic: %w", topic, q, ErrInput)
			}
			if n > 0 && queues[n-1] == q {
				return fmt.Errorf("topics[%q]: queue %+v twice: %w", topic, q, ErrInput)
			}
			g.topicOf = append(g.topicOf, int32(t))
		}
		g.starts = append(g.starts, int32(len(g.queues)))
		if racks, ok := in.Racks[topic]; ok && len(racks) != len(queues) {
			return fmt.Errorf("racks[%q]: %d lists for %d queues: %w", topic, len(racks), len(queues), ErrInput)
		}
	}
	if len(in.Racks) > 0 {
		g.racks = make([][][]string, len(g.topics))
		for t, topic := range g.topics {
			g.racks[t] = in.Racks[topic]
		}
	}
	return nil
}

func (g *group) subscribe(places map[string]int32) {
	g.subscribed = make([][]int32, len(g.members))
	g.subscribers = make([][]int32, len(g.topics))
	for i, m := range g.members {
		if i > 0 && slices.Equal(m.Topics, g.members[i-1].Topics) {
			g.subscribed[i] = g.subscribed[i-1]
			continue
		}
		g.subscribed[i] = topicPlaces(m.Topics, places)
		g.equal = g.equal && slices.Equal(g.subscribed[i], g.subscribed[0])
	}
	if g.equal {
		everybody := g.everybody()
		for t := range g.topics {
			g.subscribers[t] = everybody
		}
		return
	}
	for i := range g.members {
		for _, t := range g.subscribed[i] {
			g.subscribers[t] = append(g.subscribers[t], int32(i))
		}
	}
}

func topicPlaces(topics []string, places map[string]int32) []int32 {
	out := make([]int32, 0, len(topics))
	for _, topic := range topics {
		if t, ok := places[topic]; ok {
			out = append(out, t)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// count returns the number of queues of a topic.
func (g *group) count(t int32) int { return int(g.starts[t+1] - g.starts[t]) }

// number returns the number of a queue in its topic, from 0.
func (g *group) number(q int32) int32 { return q - g.starts[g.topicOf[q]] }

// subscribes reports whether member m subscribes to topic t.
func (g *group) subscribes(m, t int32) bool {
	_, ok := slices.BinarySearch(g.subscribed[m], t)
	return ok
}

// free returns owners of all queues, nobody yet.
func (g *group) free() []int32 {
	owner := make([]int32, len(g.queues))
	for q := range owner {
		owner[q] = nobody
	}
	return owner
}

// inMemberOrder sorts members as range and roundrobin take them: those with an
// instance by it, then the others by id.
func (g *group) inMemberOrder(members []int32) {
	slices.SortFunc(members, func(a, b int32) int {
		x, y := &g.members[a], &g.members[b]
		switch {
		case x.Instance != "" && y.Instance != "":
			return cmp.Or(allocate.CompareStrings(x.Instance, y.Instance), cmp.Compare(a, b))
		case x.Instance != "":
			return -1
		case y.Instance != "":
			return 1
		}
		return cmp.Compare(a, b)
	})
}

// everybody returns all members by id.
func (g *group) everybody() []int32 {
	out := make([]int32, len(g.members))
	for m := range out {
		out[m] = int32(m)
	}
	return out
}

// assignment turns the owner of each queue into a sorted list for each member.
func (g *group) assignment(owner []int32) map[string][]allocate.Queue {
	next := make([]int, len(g.members)+1) // where the next queue of each member goes
	for _, m := range owner {
		if m != nobody {
			next[m+1]++
		}
	}
	for m := range g.members {
		next[m+1] += next[m]
	}
	lists := make([]allocate.Queue, next[len(g.members)])
	for q, m := range owner {
		if m != nobody {
			lists[next[m]] = g.queues[q]
			next[m]++
		}
	}
	out := make(map[string][]allocate.Queue, len(g.members))
	from := 0
	for m, to := range next[:len(g.members)] { // by now the end of each list
		out[g.members[m].ID] = lists[from:to:to]
		from = to
	}
	return out
}
