package session

import (
	"cmp"
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

// Holding is one line of an ownership: who holds a queue.
type Holding struct {
	Queue    allocate.Queue
	ClientID string
}

// Owners is the ownership that members report, sorted by queue. A queue claimed
// twice belongs to the claim with the higher epoch; with equal epochs (an
// Immediate group has none) to the smaller client id.
func Owners(members []Member) []Holding {
	n := 0
	for i := range members {
		n += len(members[i].Owned)
	}
	type claim struct {
		Holding
		epoch Epoch
	}
	claims := make([]claim, 0, n)
	for i := range members {
		for _, o := range members[i].Owned {
			claims = append(claims, claim{Holding{o.Queue, members[i].ClientID}, o.Epoch})
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(CompareQueues(a.Queue, b.Queue), b.epoch.Compare(a.epoch), CompareIDs(a.ClientID, b.ClientID))
	})
	out := make([]Holding, 0, len(claims))
	for i := range claims {
		if i == 0 || claims[i].Queue != claims[i-1].Queue {
			out = append(out, claims[i].Holding)
		}
	}
	return out
}

// CompareIDs orders client ids and broker names as [allocate.CompareStrings].
func CompareIDs(a, b string) int { return allocate.CompareStrings(a, b) }

// CompareQueues orders queues as [allocate.Queue.Compare].
func CompareQueues(a, b allocate.Queue) int { return a.Compare(b) }

// OwnersDigest is the digest of an ownership sorted by queue: the number of
// holdings, then broker, queue id and client id of each. The digest of no
// holdings is not zero, so that zero can stand for "not known".
func OwnersDigest(topic string, owners []Holding) Digest {
	h := allocate.NewHash().String("owners").String(topic).Uint64(uint64(len(owners)))
	for i := range owners {
		o := &owners[i]
		h = h.String(o.Queue.Broker).Uint64(uint64(int64(o.Queue.ID))).String(o.ClientID)
	}
	return Digest(h.Sum64())
}

// OwnersDigestOf is OwnersDigest of the owners given by their places in members, -1 for
// none, for each of the sorted queues.
func OwnersDigestOf(topic string, queues []allocate.Queue, members []Member, owner []int32) Digest {
	n := 0
	for _, m := range owner {
		if m >= 0 {
			n++
		}
	}
	h := allocate.NewHash().String("owners").String(topic).Uint64(uint64(n))
	for at, m := range owner {
		if m >= 0 {
			q := &queues[at]
			h = h.String(q.Broker).Uint64(uint64(int64(q.ID))).String(members[m].ClientID)
		}
	}
	return Digest(h.Sum64())
}

// InputsDigest is the digest of what a pass computes from besides ownership:
// the sorted queues, and of each member, sorted by client id, the client id,
// incarnation and offers.
func InputsDigest(topic string, queues []allocate.Queue, members []Member) Digest {
	h := allocate.NewHash().String("inputs").String(topic).Uint64(uint64(len(queues)))
	for i := range queues {
		h = h.String(queues[i].Broker).Uint64(uint64(int64(queues[i].ID)))
	}
	h = h.Uint64(uint64(len(members)))
	for i := range members {
		m := &members[i]
		h = h.String(m.ClientID).Uint64(m.Incarnation.Counter).Uint64(m.Incarnation.Random).Uint64(uint64(len(m.Offers)))
		for j := range m.Offers {
			h = h.String(m.Offers[j].Strategy).Bytes(m.Offers[j].Data)
		}
	}
	return Digest(h.Sum64())
}

// MembersDigest is the digest of a sorted list of client ids.
func MembersDigest(topic string, ids []string) Digest {
	h := allocate.NewHash().String("members").String(topic).Uint64(uint64(len(ids)))
	for _, id := range ids {
		h = h.String(id)
	}
	return Digest(h.Sum64())
}

// RankBrokers orders the brokers that host a topic by their rendezvous score
// for (group, topic), highest first: the first is the view broker, the next in
// order serves while it cannot. Equal scores are ordered by name.
func RankBrokers(group, topic string, brokers []string) []string {
	base := allocate.NewHash().String("view").String(group).String(topic)
	type scored struct {
		name  string
		score uint64
	}
	all := make([]scored, len(brokers))
	for i, b := range brokers {
		all[i] = scored{b, base.String(b).Sum64()}
	}
	slices.SortFunc(all, func(a, b scored) int {
		return cmp.Or(cmp.Compare(b.score, a.score), CompareIDs(a.name, b.name))
	})
	out := make([]string, len(all))
	for i := range all {
		out[i] = all[i].name
	}
	return out
}
