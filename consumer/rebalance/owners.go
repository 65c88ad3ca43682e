package rebalance

import (
	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// owners returns the index of the member that owns each queue, or -1, by the
// rule of [session.Owners], and whether all claims are of queues in the list.
// Unlike that function it sorts nothing.
func owners(queues []allocate.Queue, members []session.Member) (owner []int32, all bool) {
	owner = make([]int32, len(queues))
	epochs := make([]session.Epoch, len(queues))
	for i := range owner {
		owner[i] = -1
	}
	all = true
	index := allocate.NewIndex(queues)
	for i := range members {
		for _, o := range members[i].Owned {
			at, ok := index.Find(o.Queue)
			if !ok {
				all = false
				continue
			}
			// Members come by client id, so of equal epochs the first one stays.
			if owner[at] < 0 || o.Epoch.Compare(epochs[at]) > 0 {
				owner[at], epochs[at] = int32(i), o.Epoch
			}
		}
	}
	return owner, all
}

// ownersDigest is session.OwnersDigest of session.Owners of the members, whose
// owners are known.
func ownersDigest(topic string, queues []allocate.Queue, members []session.Member, owner []int32, all bool) session.Digest {
	if !all {
		return session.OwnersDigest(topic, session.Owners(members))
	}
	return session.OwnersDigestOf(topic, queues, members, owner)
}

// count returns how many queues have an owner.
func count(owner []int32) (n int) {
	for _, m := range owner {
		if m >= 0 {
			n++
		}
	}
	return n
}

func holdingsOf(queues []allocate.Queue, members []session.Member, owner []int32) []session.Holding {
	out := make([]session.Holding, 0, count(owner))
	for at, m := range owner {
		if m >= 0 {
			out = append(out, session.Holding{Queue: queues[at], ClientID: members[m].ClientID})
		}
	}
	return out
}

// setOwned spreads an ownership over the members, all lists in one array.
func setOwned(members []allocate.Member, queues []allocate.Queue, owner []int32) {
	count := make([]int, len(members))
	for _, m := range owner {
		if m >= 0 {
			count[m]++
		}
	}
	all := make([]allocate.Queue, len(owner))
	from := 0
	for i := range members {
		members[i].Owned = all[from : from : from+count[i]]
		from += count[i]
	}
	for at, m := range owner {
		if m >= 0 {
			members[m].Owned = append(members[m].Owned, queues[at])
		}
	}
}

// ownersIn returns the owners that an assignment gives to the queues.
func ownersIn(queues []allocate.Queue, members []session.Member, given allocate.Assignment) []int32 {
	owner := make([]int32, len(queues))
	for i := range owner {
		owner[i] = -1
	}
	index := allocate.NewIndex(queues)
	for i := range members {
		for _, q := range given[members[i].ClientID] {
			if at, ok := index.Find(q); ok && owner[at] < 0 {
				owner[at] = int32(i)
			}
		}
	}
	return owner
}

// moveOwners translates owners by their places in one list of members to places in
// another one that is in the same order. Those that keep does not keep own nothing.
func moveOwners(owner []int32, from, to []session.Member, keep func(id string) bool) []int32 {
	place := make([]int32, len(from))
	next := 0
	for i := range from {
		id := from[i].ClientID
		for next < len(to) && session.CompareIDs(to[next].ClientID, id) < 0 {
			next++
		}
		if place[i] = -1; next < len(to) && to[next].ClientID == id && keep(id) {
			place[i] = int32(next)
		}
	}
	out := make([]int32, len(owner))
	for at, m := range owner {
		if out[at] = -1; m >= 0 {
			out[at] = place[m]
		}
	}
	return out
}
