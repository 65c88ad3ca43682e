package session

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

func queue(broker string, id int32) allocate.Queue {
	return allocate.Queue{Topic: "orders", Broker: broker, ID: id}
}

func sample() ([]allocate.Queue, []Member) {
	return []allocate.Queue{queue("broker-a", 0), queue("broker-a", 1), queue("broker-b", 0)},
		[]Member{
			{
				ClientID: "c1", Incarnation: Incarnation{1, 7}, Offers: []Offer{{Strategy: "sticky"}, {Strategy: "averagely"}},
				Owned: []Owned{{queue("broker-a", 0), Epoch{3, 1}}, {queue("broker-b", 0), Epoch{9, 4}}},
			},
			{
				ClientID: "c2", Incarnation: Incarnation{2, 5}, Offers: []Offer{{Strategy: "sticky", Data: []byte{1, 2}}},
				Owned: []Owned{{queue("broker-a", 1), Epoch{3, 2}}},
			},
		}
}

// The digests and the rank of view brokers are a wire contract between versions
// and languages; these values must never change.
func TestDigestsAreTheGoldenOnes(t *testing.T) {
	queues, members := sample()
	for _, d := range []struct {
		name string
		got  uint64
		want uint64
	}{
		{"inputs", uint64(InputsDigest("orders", queues, members)), 0x22ecf963215e56},
		{"inputs of nothing", uint64(InputsDigest("orders", nil, nil)), 0xd0ea24bfd7a8345e},
		{"owners", uint64(OwnersDigest("orders", Owners(members))), 0xa93a4923bc197f90},
		{"owners of nothing", uint64(OwnersDigest("orders", nil)), 0xc0a4989f6e593c98},
		{"members", uint64(MembersDigest("orders", []string{"c1", "c2"})), 0x96ea0ded96b4c7c9},
	} {
		if d.got != d.want {
			t.Errorf("%s: %#x, want %#x", d.name, d.got, d.want)
		}
	}
	if got, want := fmt.Sprint(RankBrokers("packers", "orders", []string{"broker-a", "broker-b", "broker-c"})), "[broker-a broker-b broker-c]"; got != want {
		t.Errorf("rank %s, want %s", got, want)
	}
}

// Whatever differs in the inputs of a pass differs in their digest.
func TestInputsDigestTellsInputsApart(t *testing.T) {
	queues, members := sample()
	base := InputsDigest("orders", queues, members)
	for name, change := range map[string]func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member){
		"queue gone":  func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) { return qs[1:], ms },
		"queue id":    func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) { qs[0].ID = 5; return qs, ms },
		"member gone": func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) { return qs, ms[1:] },
		"incarnation": func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) {
			ms[0].Incarnation.Random++
			return qs, ms
		},
		"order of offers": func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) {
			slices.Reverse(ms[0].Offers)
			return qs, ms
		},
		"data of a member": func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) {
			ms[1].Offers[0].Data = []byte{1}
			return qs, ms
		},
		"offer without end": func(qs []allocate.Queue, ms []Member) ([]allocate.Queue, []Member) {
			ms[0].Offers = ms[0].Offers[:1]
			return qs, ms
		},
	} {
		qs, ms := sample()
		qs, ms = change(qs, ms)
		if InputsDigest("orders", qs, ms) == base {
			t.Errorf("%s: same digest", name)
		}
	}
	queues, members = sample()
	members[0].Owned = nil
	if InputsDigest("orders", queues, members) != base {
		t.Error("what members own is no input of the digest")
	}
}

// A queue claimed twice belongs to the higher epoch, without epochs to the smaller
// client id, in whatever order members are listed.
func TestOwnersResolvesDoubleClaims(t *testing.T) {
	q := queue("broker-a", 0)
	members := []Member{
		{ClientID: "a", Owned: []Owned{{q, Epoch{1, 5}}}},
		{ClientID: "b", Owned: []Owned{{q, Epoch{1, 9}}}},
		{ClientID: "c", Owned: []Owned{{q, Epoch{0, 99}}}},
	}
	none := []Member{{ClientID: "z", Owned: []Owned{{Queue: q}}}, {ClientID: "y", Owned: []Owned{{Queue: q}}}}
	for range 20 {
		rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		rand.Shuffle(len(none), func(i, j int) { none[i], none[j] = none[j], none[i] })
		if got := Owners(members); len(got) != 1 || got[0] != (Holding{q, "b"}) {
			t.Fatalf("owners %v", got)
		}
		if got := Owners(none); len(got) != 1 || got[0] != (Holding{q, "y"}) {
			t.Fatalf("owners without epochs %v", got)
		}
	}
}

// Every member finds the same order of view brokers, whatever order it knows them
// in, and a broker that goes changes nothing in the order of the others.
func TestRankBrokersIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		brokers := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,8}`), 1, 12, rapid.ID).Draw(t, "brokers")
		ranked := RankBrokers("g", "t", brokers)
		shuffled := rapid.Permutation(brokers).Draw(t, "shuffled")
		if got := RankBrokers("g", "t", shuffled); !slices.Equal(got, ranked) {
			t.Fatalf("%v and %v", ranked, got)
		}
		gone := rapid.SampledFrom(brokers).Draw(t, "gone")
		without := func(list []string) []string {
			return slices.DeleteFunc(slices.Clone(list), func(b string) bool { return b == gone })
		}
		if got := RankBrokers("g", "t", without(brokers)); !slices.Equal(got, without(ranked)) {
			t.Fatalf("without %s: %v, of %v", gone, got, ranked)
		}
	})
}

// Epochs and incarnations are ordered by their first part, then the second;
// versions of different brokers are not comparable.
func TestOrders(t *testing.T) {
	epochs := []Epoch{{}, {0, 1}, {1, 0}, {1, 7}, {2, 0}}
	for i, a := range epochs {
		for j, b := range epochs {
			if got := a.Compare(b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%v.Compare(%v) = %d", a, b, got)
			}
			x, y := Incarnation{a.Broker, a.Counter}, Incarnation{b.Broker, b.Counter}
			if x.Compare(y) != a.Compare(b) {
				t.Errorf("%v.Compare(%v) = %d", x, y, x.Compare(y))
			}
			v, w := Version{"b", a.Broker, a.Counter}, Version{"b", b.Broker, b.Counter}
			if v.After(w) != (i > j) {
				t.Errorf("%v.After(%v) = %v", v, w, v.After(w))
			}
			w.Broker = "c"
			if v.After(w) {
				t.Errorf("%v.After(%v)", v, w)
			}
		}
	}
}

// Every reason has a text of its own; only those that a repeated hello can mend are
// not final.
func TestReasonsAreNamed(t *testing.T) {
	seen := map[string]bool{}
	for r := ReasonModeMismatch; r <= ReasonReplaced; r++ {
		if s := r.String(); s == "" || seen[s] || s[0] == 'r' && s != "replaced" {
			t.Errorf("reason %d is called %q", r, s)
		}
		seen[r.String()] = true
		mends := r == ReasonStaticExists || r == ReasonExpired || r == ReasonShutdown || r == ReasonUnknownQueue || r == ReasonReplaced
		if r.Final() == mends {
			t.Errorf("%v: final %v", r, r.Final())
		}
	}
}
