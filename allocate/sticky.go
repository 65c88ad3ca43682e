package allocate

import (
	"cmp"
	"slices"
)

// Sticky leaves queues where they are as far as balance allows: loads differ by
// at most one, and of all such assignments it is one that moves the fewest queues
// (see [MinimumMoves]). It is the default.
//
//  1. A queue is owned by the member that names it in Owned, the smaller client
//     id if several do; other topics' and unknown queues do not count. With Q
//     queues and M members the quota is Q/M, and one more for Q mod M members:
//     those that own more than Q/M come first, within each of the two classes the
//     higher hash of (topic, client id), on equal hashes the smaller client id.
//  2. Each member keeps the best-scoring of its queues up to its quota.
//  3. The other queues are matched with the members below their quota, as in
//     [Rendezvous] the pair with the highest score next.
//
// It is idempotent: a settled group is a fixed point. And it is path-consistent:
// while one change is carried out, a queue that moves is still with its old
// owner, with nobody, or with its new owner; every such mixture gives the same
// assignment, so members that look at different moments agree.
//
// Scores are those of Rendezvous, the hash of an extra is
//
//	extra = Hash{String(topic), String(client id)}
//
// and part of the same wire contract, so that of many topics the extras are
// spread. Inputs that are not in order are normalized first.
type Sticky struct{}

// Name returns "sticky".
func (Sticky) Name() string { return nameSticky }

// Allocate shares in.Queues, which fails only for want of queues or members.
func (Sticky) Allocate(in Input) (Assignment, error) {
	in = in.Normalize()
	if err := in.check(); err != nil {
		return nil, err
	}
	m := newMatching(in)
	held := m.owners(in)
	m.quotas(in, held)
	m.keep(in, held)
	m.run(in.Members)
	return in.assignment(m.owner), nil
}

// owners sets the present owner of each queue and returns how many each holds.
func (m *matching) owners(in Input) (held []int32) {
	held = make([]int32, len(in.Members))
	index := NewIndex(in.Queues)
	for i := range in.Members {
		for _, q := range in.Members[i].Owned {
			at, ok := index.Find(q)
			if ok && m.owner[at] == nobody {
				m.owner[at] = int32(i)
				held[i]++
			}
		}
	}
	return held
}

// quotas sets the room of each member to its quota.
func (m *matching) quotas(in Input, held []int32) {
	type rank struct {
		member int32
		over   bool
		hash   uint64
	}
	quota := int32(len(in.Queues) / len(in.Members))
	extras := len(in.Queues) % len(in.Members)
	ranks := make([]rank, len(in.Members))
	for i, member := range in.Members {
		m.room[i] = quota
		if extras > 0 {
			ranks[i] = rank{int32(i), held[i] > quota, extraHash(in.Topic, member.ClientID)}
		}
	}
	if extras == 0 {
		return
	}
	slices.SortFunc(ranks, func(a, b rank) int {
		switch {
		case a.over != b.over && a.over:
			return -1
		case a.over != b.over:
			return 1
		case a.hash != b.hash:
			return cmp.Compare(b.hash, a.hash)
		}
		return cmp.Compare(a.member, b.member)
	})
	for _, r := range ranks[:extras] {
		m.room[r.member]++
	}
}

// keep takes what is beyond its quota from each member and leaves it the room
// that remains.
func (m *matching) keep(in Input, held []int32) {
	over := false
	for i := range m.room {
		m.room[i] -= held[i]
		over = over || m.room[i] < 0
	}
	if !over {
		return
	}
	queues := make([][]proposal, len(m.room)) // of members beyond their quota
	for q, owner := range m.owner {
		if owner != nobody && m.room[owner] < 0 {
			s := score(m.queues[q], memberHash(in.Members[owner].ClientID))
			queues[owner] = append(queues[owner], proposal{s, int32(q), owner})
		}
	}
	for i, owned := range queues {
		if len(owned) == 0 {
			continue
		}
		slices.SortFunc(owned, func(a, b proposal) int {
			if a.before(b) {
				return -1
			}
			return 1
		})
		for _, p := range owned[held[i]+m.room[i]:] {
			m.owner[p.queue] = nobody
		}
		m.room[i] = 0
	}
}
