package assignor

import (
	"cmp"
	"slices"
)

// differingShare computes sticky where subscriptions differ.
type differingShare struct {
	g      *group
	owner  []int32
	held   []int32
	former []int32 // who claims a queue in an older generation
	moves  moves
	// best is the least loaded subscriber of topic bestOf, as long as nothing moves.
	best, bestOf int32
}

func (g *group) shareDiffering(c *claims, near *racks) []int32 {
	s := &differingShare{g: g, owner: g.free(), held: make([]int32, len(g.members)), former: g.outdated(c), bestOf: nobody}
	dropped := false
	for q, m := range c.keeper {
		switch {
		case m == nobody:
		case g.subscribes(m, g.topicOf[q]) && near.matches(m, int32(q)):
			s.put(int32(q), m)
		default:
			dropped = true
		}
	}
	order := g.fewestReadersFirst()
	var free []int32
	for _, q := range order {
		if s.owner[q] == nobody {
			free = append(free, q)
		}
	}
	s.giveFree(free, near)
	s.moves = newMoves(g)
	if !dropped {
		s.improve(free)
	}
	s.improve(order)
	return s.owner
}

// fewestReadersFirst returns the queues, those of topics with few subscribers
// first: they have the least choice.
func (g *group) fewestReadersFirst() []int32 {
	topics := make([]int32, len(g.topics))
	for t := range topics {
		topics[t] = int32(t)
	}
	slices.SortStableFunc(topics, func(a, b int32) int {
		return cmp.Compare(len(g.subscribers[a]), len(g.subscribers[b]))
	})
	out := make([]int32, 0, len(g.queues))
	for _, t := range topics {
		for q := g.starts[t]; q < g.starts[t+1]; q++ {
			out = append(out, q)
		}
	}
	return out
}

func (s *differingShare) put(q, m int32) {
	if old := s.owner[q]; old != nobody {
		s.held[old]--
	}
	s.owner[q] = m
	s.held[m]++
	s.bestOf = nobody
}

// giveFree gives each queue to the subscriber that holds the fewest, those in its
// racks first.
func (s *differingShare) giveFree(free []int32, near *racks) {
	if near != nil {
		for _, q := range free {
			m := int32(nobody)
			for _, o := range s.g.subscribers[s.g.topicOf[q]] {
				if near.matches(o, q) && (m == nobody || s.held[o] < s.held[m]) {
					m = o
				}
			}
			if m != nobody {
				s.put(q, m)
			}
		}
	}
	var heap loads
	topic := int32(nobody)
	for _, q := range free {
		if s.owner[q] != nobody {
			continue
		}
		if t := s.g.topicOf[q]; t != topic {
			topic = t
			heap = newLoads(s.g.subscribers[t], s.held)
		}
		s.put(q, heap.addToLeast())
	}
}

// improve moves queues of the list as long as a subscriber has at least two fewer
// than the owner. Each move brings two loads closer together, so it ends.
func (s *differingShare) improve(queues []int32) {
	for moved := true; moved; {
		moved = false
		for _, q := range queues {
			t, from := s.g.topicOf[q], s.owner[q]
			to := s.former[q]
			if to == nobody || s.held[to]+2 > s.held[from] || !s.g.subscribes(to, t) {
				if to = s.least(t); s.held[to]+2 > s.held[from] {
					continue
				}
			}
			s.move(q, to)
			moved = true
		}
	}
}

// move gives q to member to, or sends another queue of its topic back there
// instead, if that brings two loads closer as well.
func (s *differingShare) move(q, to int32) {
	if back := s.moves.instead(q, s.owner[q], to); s.held[to]+2 <= s.held[s.owner[back]] {
		q = back
	}
	s.moves.add(q, s.owner[q], to)
	s.put(q, to)
}

func (s *differingShare) least(t int32) int32 {
	if s.bestOf != t {
		s.bestOf, s.best = t, s.g.subscribers[t][0]
		for _, m := range s.g.subscribers[t] {
			if s.held[m] < s.held[s.best] {
				s.best = m
			}
		}
	}
	return s.best
}

// moves remembers which queues have moved between which members, so that no two
// members swap queues of one topic: the one that came is sent back instead.
type moves struct {
	g      *group
	origin []int32 // where a queue was before its moves, or nobody
	moved  map[move][]int32
}

type move struct{ topic, from, to int32 }

func newMoves(g *group) moves { return moves{g: g, origin: g.free(), moved: map[move][]int32{}} }

// instead returns the queue to move to member to when q were to go there from its
// owner.
func (v *moves) instead(q, owner, to int32) int32 {
	from := owner
	if v.origin[q] != nobody {
		from = v.origin[q]
	}
	if back := v.moved[move{v.g.topicOf[q], to, from}]; len(back) > 0 {
		return slices.Min(back)
	}
	return q
}

func (v *moves) add(q, owner, to int32) {
	topic, from := v.g.topicOf[q], owner
	if v.origin[q] != nobody {
		from = v.origin[q]
		key := move{topic, from, owner}
		at := slices.Index(v.moved[key], q)
		v.moved[key] = slices.Delete(v.moved[key], at, at+1)
	}
	v.origin[q] = nobody
	if from != to {
		v.origin[q] = from
		key := move{topic, from, to}
		v.moved[key] = append(v.moved[key], q)
	}
}
