package rebalance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// A notice that brings no claims is applied without listing what each member owns:
// that must come to the same owners, and the same digest.
func TestOwnersMoveWithTheirMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		var queues []allocate.Queue
		for id := range int32(r.IntN(30)) {
			queues = append(queues, allocate.Queue{Topic: "t", Broker: fmt.Sprint("b", id%3), ID: id / 3})
		}
		queues = cleanQueues("t", queues)
		var from, to []session.Member
		gone := map[string]bool{}
		for i := range 1 + r.IntN(8) {
			m := session.Member{ClientID: fmt.Sprint("c", i)}
			switch r.IntN(4) {
			case 0: // leaves
				from = append(from, m)
			case 1: // comes
				to = append(to, m)
			case 2: // comes back as another
				gone[m.ClientID] = true
				fallthrough
			default:
				from, to = append(from, m), append(to, m)
			}
		}
		owner := make([]int32, len(queues))
		listed := slices.Clone(to)
		for at := range owner {
			if owner[at] = int32(r.IntN(len(from)+1)) - 1; owner[at] < 0 {
				continue
			}
			id := from[owner[at]].ClientID
			if i := memberAt(to, id); i >= 0 && !gone[id] {
				listed[i].Owned = append(listed[i].Owned, session.Owned{Queue: queues[at]})
			}
		}
		got := moveOwners(owner, from, to, func(id string) bool { return !gone[id] })
		want, all := owners(queues, listed)
		if !slices.Equal(got, want) {
			t.Fatalf("owners %v, want %v", got, want)
		}
		if a, b := session.OwnersDigestOf("t", queues, to, got), ownersDigest("t", queues, listed, want, all); a != b {
			t.Fatalf("digests %x and %x", a, b)
		}
		if a, b := session.OwnersDigestOf("t", queues, to, got), session.OwnersDigest("t", session.Owners(listed)); a != b {
			t.Fatalf("digest %x, the session's %x", a, b)
		}
	})
}
