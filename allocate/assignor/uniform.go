package assignor

import (
	"cmp"
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

// maxPasses bounds how often uniform goes over all topics.
const maxPasses = 16

type uniform struct{}

// Uniform returns the assignor of the group coordinator: queues stay where they
// are as far as balance allows, in one quick pass.
//
// If all subscribe to the same topics, loads differ by at most one. The members
// with the smallest ids have the larger part, whether or not they hold that many,
// so that a few queues more may move than with [Sticky]. If subscriptions differ,
// topic after topic is evened out among its subscribers, over and over until
// nothing moves or it was done 16 times. Racks are not looked at.
func Uniform() Assignor { return uniform{} }

func (uniform) Name() string { return NameUniform }

func (uniform) Assign(in Input) (map[string][]allocate.Queue, error) {
	in.Racks = nil
	g, err := newGroup(in)
	if err != nil {
		return nil, err
	}
	c := g.claims()
	if g.equal {
		return g.assignment(g.shareUniformly(c)), nil
	}
	return g.assignment(g.evenOut(c)), nil
}

// shareUniformly computes uniform where all members subscribe to the same topics.
func (g *group) shareUniformly(c *claims) []int32 {
	owner := g.free()
	if len(g.queues) == 0 {
		return owner
	}
	room := make([]int, len(g.members))
	for m := range room {
		room[m] = len(g.queues) / len(room)
		if m < len(g.queues)%len(room) {
			room[m]++
		}
	}
	held := make([]int, len(g.members))
	for _, m := range c.keeper {
		if m != nobody {
			held[m]++
		}
	}
	claimed := map[int32][]int32{} // of members that must give some up
	for q, m := range c.keeper {
		switch {
		case m == nobody:
		case held[m] > room[m]:
			claimed[m] = append(claimed[m], int32(q))
		default:
			owner[q] = m
		}
	}
	for m, queues := range claimed {
		for _, q := range g.inSetOrder(queues)[:room[m]] {
			owner[q] = m
		}
	}
	for m := range room {
		room[m] -= min(room[m], held[m])
	}
	m := int32(0)
	for q := range owner {
		if owner[q] != nobody {
			continue
		}
		for room[m] == 0 {
			m++
		}
		owner[q] = m
		room[m]--
	}
	return owner
}

// inSetOrder orders the queues of one member, which are sorted, as the coordinator
// of Kafka finds them when it takes some away: topic by topic, and the numbers of
// each in the order of a hash set, which is modulo its number of buckets.
func (g *group) inSetOrder(queues []int32) []int32 {
	out := queues[:0:0]
	for len(queues) > 0 {
		n := 1
		for n < len(queues) && g.topicOf[queues[n]] == g.topicOf[queues[0]] {
			n++
		}
		buckets := int32(16)
		for 4*n > 3*int(buckets) { // a set grows when it is three quarters full
			buckets *= 2
		}
		from := len(out)
		out = append(out, queues[:n]...)
		slices.SortStableFunc(out[from:], func(a, b int32) int {
			return cmp.Compare(g.number(a)%buckets, g.number(b)%buckets)
		})
		queues = queues[n:]
	}
	return out
}

// evenOut computes uniform where subscriptions differ.
func (g *group) evenOut(c *claims) []int32 {
	u := &evener{g: g, owner: g.free(), held: make([]int32, len(g.members))}
	for q, m := range c.keeper {
		if m != nobody && g.subscribes(m, g.topicOf[q]) {
			u.put(int32(q), m)
		}
	}
	topics := g.fullestFirst()
	for _, t := range topics {
		low := newLow(u.byLoad(t), u.held)
		for q := g.starts[t]; q < g.starts[t+1]; q++ {
			if u.owner[q] == nobody {
				u.put(q, low.next())
			}
		}
	}
	topics = slices.DeleteFunc(topics, func(t int32) bool { return len(g.subscribers[t]) < 2 })
	last := -1 // the topic that was evened out last
	for range maxPasses {
		for i, t := range topics {
			if i == last {
				return u.owner // once around without a move
			}
			if u.even(t) || last < 0 {
				last = i
			}
		}
	}
	return u.owner
}

// fullestFirst returns the topics with the most queues for each subscriber first,
// of equals those with few subscribers.
func (g *group) fullestFirst() []int32 {
	topics := make([]int32, len(g.topics))
	for t := range topics {
		topics[t] = int32(t)
	}
	slices.SortStableFunc(topics, func(a, b int32) int {
		x, y := int64(len(g.subscribers[a])), int64(len(g.subscribers[b]))
		return cmp.Or(cmp.Compare(int64(g.count(b))*x, int64(g.count(a))*y), cmp.Compare(x, y))
	})
	return topics
}

// evener evens topics out among their subscribers.
type evener struct {
	g     *group
	owner []int32
	held  []int32
}

func (u *evener) put(q, m int32) {
	if old := u.owner[q]; old != nobody {
		u.held[old]--
	}
	u.owner[q] = m
	u.held[m]++
}

// byLoad returns the subscribers of a topic, the least loaded first.
func (u *evener) byLoad(t int32) []int32 {
	members := slices.Clone(u.g.subscribers[t])
	slices.SortFunc(members, func(a, b int32) int {
		return cmp.Or(cmp.Compare(u.held[a], u.held[b]), cmp.Compare(a, b))
	})
	return members
}

// even moves queues of a topic from its most to its least loaded subscribers
// until they differ by at most one, or those that have more hold none of it. It
// reports whether it moved one.
func (u *evener) even(t int32) (moved bool) {
	members := u.byLoad(t)
	if u.held[members[len(members)-1]]-u.held[members[0]] <= 1 {
		return false
	}
	hold := make(map[int32][]int32, len(members)) // what each has of the topic now
	for q := u.g.starts[t]; q < u.g.starts[t+1]; q++ {
		hold[u.owner[q]] = append(hold[u.owner[q]], q)
	}
	high := newHigh(members, u.held)
	low := newLow(members, u.held)
	for {
		from := high.next()
		for from != nobody && len(hold[from]) == 0 {
			high.exclude()
			from = high.next()
		}
		if from == nobody {
			return moved
		}
		to := low.next()
		if high.level-low.level <= 1 {
			return moved
		}
		rest := len(hold[from]) - 1
		u.put(hold[from][rest], to)
		hold[from] = hold[from][:rest]
		moved = true
	}
}

// low walks the least loaded of some members as queues are added to them: round
// and round over those at one level, which others join when it reaches theirs.
type low struct {
	members []int32 // by load at first; high reorders those at its end
	held    []int32 // loads; the caller adds what next returns
	to      int     // members[:to] are at level or one above
	at      int     // the next one
	level   int32
}

func newLow(members, held []int32) *low {
	return &low{members: members, held: held, level: held[members[0]] - 1}
}

func (l *low) next() int32 {
	if l.at >= l.to {
		l.level++
		for l.to < len(l.members) && l.held[l.members[l.to]] == l.level {
			l.to++
		}
		l.at = 0
	}
	l.at++
	return l.members[l.at-1]
}

// high walks the most loaded of some members as queues are taken from them, from
// the end of the list down.
type high struct {
	members  []int32
	held     []int32
	from, to int // members[from:to] are at level or one below
	at       int // the next one
	level    int32
}

func newHigh(members, held []int32) *high {
	n := len(members)
	return &high{members: members, held: held, from: n, to: n, at: n - 1}
}

// next returns nobody if all have been excluded.
func (h *high) next() int32 {
	if h.at < h.from {
		switch {
		case h.to <= h.from && h.from > 0: // all so far excluded: go on with the next lower ones
			h.level = h.held[h.members[h.from-1]]
		default:
			h.level--
		}
		for h.from > 0 && h.held[h.members[h.from-1]] == h.level {
			h.from--
		}
		h.at = h.to - 1
	}
	if h.at < 0 {
		return nobody
	}
	h.at--
	return h.members[h.at+1]
}

// exclude takes out the member that next returned: it has nothing to give.
func (h *high) exclude() {
	h.to--
	h.members[h.at+1], h.members[h.to] = h.members[h.to], h.members[h.at+1]
}
