package allocate_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// everyStrategy is one of each.
func everyStrategy() []allocate.Strategy {
	return append([]allocate.Strategy{
		allocate.Config{}, must(allocate.NewMachineRoom("hz", "sh")),
	}, partitions...)
}

// TestF_ALC_01_RoomsShareOnlyTheirOwnQueues: a member gets queues of its room
// only, and each queue of a room with members goes to exactly one of them,
// whatever the counts.
func TestF_ALC_01_RoomsShareOnlyTheirOwnQueues(t *testing.T) {
	t.Parallel()
	input := func(queues, members1, members2 int) allocate.Input {
		in := allocate.Input{Group: "group", Topic: topic}
		for i := range queues {
			for _, broker := range []string{"r1@b1", "r2@b2"} {
				in.Queues = append(in.Queues, allocate.Queue{Topic: topic, Broker: broker, ID: int32(i)})
			}
		}
		for i := range members1 + members2 {
			room := "r1"
			if i >= members1 {
				room = "r2"
			}
			in.Members = append(in.Members, allocate.Member{
				ClientID: fmt.Sprintf("m%02d-%s", i, room), Data: allocate.EncodeZone(room, nil),
			})
		}
		return in.Normalize()
	}
	check := func(t *testing.T, in allocate.Input, inner allocate.Strategy) {
		got, err := allocate.Share(must(allocate.NewMachineRoomNearby(inner, nil)), in)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPartition(in, got); err != nil {
			t.Error(err)
		}
		for id, queues := range got {
			for _, q := range queues {
				if id[len(id)-2:] != q.Broker[:2] {
					t.Errorf("%q got %v", id, q)
				}
			}
		}
		for _, room := range []string{"r1", "r2"} {
			least, most := len(in.Queues), 0
			for _, m := range in.Members {
				if m.ClientID[len(m.ClientID)-2:] == room {
					least, most = min(least, len(got[m.ClientID])), max(most, len(got[m.ClientID]))
				}
			}
			if most-least > 1 {
				t.Errorf("room %s: loads from %d to %d", room, least, most)
			}
		}
	}
	for _, inner := range balanced {
		t.Run(inner.Name(), func(t *testing.T) {
			t.Parallel()
			check(t, input(5, 2, 1), inner)
			for queues := 1; queues <= 20; queues++ {
				for members := 1; members <= 7; members++ {
					check(t, input(queues, members, 8-members), inner)
				}
			}
		})
	}

	// One set of rooms for all members: the listed rooms' queues and no other,
	// each once and in balance, taken from the filtered list.
	for queues := 1; queues <= 20; queues++ {
		for members := 1; members <= 7; members++ {
			in := input(queues, members, 0)
			got, err := allocate.Share(must(allocate.NewMachineRoom("r1")), in)
			if err != nil {
				t.Fatal(err)
			}
			want := in
			want.Queues = slices.DeleteFunc(slices.Clone(in.Queues), func(q allocate.Queue) bool { return q.Broker != "r1@b1" })
			if err := checkPartition(want, got); err != nil {
				t.Errorf("%d queues, %d members: %v", queues, members, err)
			}
			if err := checkBalance(want, got); err != nil {
				t.Errorf("%d queues, %d members: %v", queues, members, err)
			}
		}
	}
}

// TestF_IDN_04_MembersListedTwiceCountOnce: the order of the member list, doubles
// and blanks in it change nothing, and every queue is assigned exactly once.
func TestF_IDN_04_MembersListedTwiceCountOnce(t *testing.T) {
	t.Parallel()
	queues := make([]allocate.Queue, 0, 16)
	for i := range 8 {
		for _, broker := range []string{"hz@b1", "sh@b2"} {
			queues = append(queues, allocate.Queue{Topic: topic, Broker: broker, ID: int32(i)})
		}
	}
	for _, s := range everyStrategy() {
		input := func(ids ...string) allocate.Input {
			in := allocate.Input{Group: "group", Topic: topic, Queues: queues}
			for i, id := range ids {
				m := allocate.Member{ClientID: id}
				switch s.(type) {
				case allocate.Config:
					half := len(queues) / 2
					m.Data = allocate.EncodeQueues(queues[:half])
					if id == "b" {
						m.Data = allocate.EncodeQueues(queues[half:])
					}
				case *allocate.MachineRoomNearby:
					m.Data = allocate.EncodeZone("hz", nil)
				}
				if i == 0 {
					m.Owned = queues[:3]
				}
				in.Members = append(in.Members, m)
			}
			return in
		}
		want, err := allocate.Share(s, input("a", "b"))
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPartition(input("a", "b").Normalize(), want); err != nil {
			t.Errorf("%s: %v", s.Name(), err)
		}
		for _, ids := range [][]string{{"a", "a", "b"}, {"a", "b", "a"}, {"a", "", "b"}, {"a", "b", " ", "\t", "a", "b", "a"}} {
			if got, err := allocate.Share(s, input(ids...)); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s of %q: %v (%v), want %v", s.Name(), ids, got, err, want)
			}
		}
		rng := rand.New(rand.NewPCG(4, 4))
		for range 20 {
			if got, err := allocate.Share(s, shuffled(input("a", "b", "b", ""), rng)); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s shuffled: %v (%v), want %v", s.Name(), got, err, want)
			}
		}
	}
}

// TestF_ALC_04_OneMemberMoreMovesItsShareOnly: with the minimal-move strategy one
// member more or less moves at most ceil(Q/n) queues; the others are reported.
func TestF_ALC_04_OneMemberMoreMovesItsShareOnly(t *testing.T) {
	t.Parallel()
	const queues = 64
	for _, s := range balanced {
		worst := 0
		for seed := range uint64(20) {
			g := group{in: sizedInput(queues, 9, 4, rand.New(rand.NewPCG(seed, 1)))}
			nine := g.in
			for _, members := range [][]allocate.Member{nine.Members[1:], nine.Members, nine.Members[:8]} {
				g.in.Members = members
				got, err := allocate.Share(s, g.input())
				if err != nil {
					t.Fatal(err)
				}
				worst = max(worst, allocate.Moves(g.owners, got.Owners()))
				g.owners = got.Owners()
			}
		}
		t.Logf("%s: at most %d of %d queues moved", s.Name(), worst, queues)
		if _, ok := s.(allocate.Sticky); ok && worst > (queues+7)/8 {
			t.Errorf("sticky moved %d queues, at most %d allowed", worst, (queues+7)/8)
		}
	}
}

// TestF_ALC_06_LoadsDifferByAtMostOne: averaging and circular sharing give every
// queue once and sizes that differ by at most one, larger ones first.
func TestF_ALC_06_LoadsDifferByAtMostOne(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(6, 6))
	for queues := 1; queues <= 50; queues++ {
		for members := 1; members <= 12; members++ {
			in := sizedInput(queues, members, 3, rng)
			for _, s := range balanced {
				got, err := allocate.Share(s, in)
				if err != nil {
					t.Fatal(err)
				}
				if err := checkPartition(in, got); err != nil {
					t.Errorf("%s, %d over %d: %v", s.Name(), queues, members, err)
				}
				if err := checkBalance(in, got); err != nil {
					t.Errorf("%s, %d over %d: %v", s.Name(), queues, members, err)
				}
			}
			for i := range members {
				want := queues / members
				if i < queues%members {
					want++
				}
				if from, to := allocate.AveragelyRange(queues, members, i); to-from != want {
					t.Errorf("%d over %d: member %d gets %d, want %d", queues, members, i, to-from, want)
				}
			}
		}
	}
}

// TestF_ALC_07_MissingInputIsAnErrorAndNoPanic: empty or nil lists give an error
// value, so that the caller keeps its share, and an absent member or more members
// than queues an empty part; nothing panics.
func TestF_ALC_07_MissingInputIsAnErrorAndNoPanic(t *testing.T) {
	t.Parallel()
	queues := []allocate.Queue{{Topic: topic, Broker: "hz@b", ID: 0}, {Topic: topic, Broker: "hz@b", ID: 1}}
	for _, s := range everyStrategy() {
		var members []allocate.Member
		for i := range 5 {
			m := allocate.Member{ClientID: fmt.Sprint(i)}
			switch s.(type) {
			case allocate.Config:
				m.Data = allocate.EncodeQueues(queues[min(i, 2):min(i+1, 2)])
			case *allocate.MachineRoomNearby:
				m.Data = allocate.EncodeZone("hz", nil)
			}
			members = append(members, m)
		}
		_, isConfig := s.(allocate.Config) // looks at nothing but the lists, which are then all unknown queues or nobody's
		for name, in := range map[string]allocate.Input{
			"nothing":     {},
			"nil queues":  {Members: members},
			"no queues":   {Queues: []allocate.Queue{}, Members: members},
			"nil members": {Queues: queues},
			"no members":  {Queues: queues, Members: []allocate.Member{}},
			"blank only":  {Queues: queues, Members: []allocate.Member{{ClientID: " "}}},
		} {
			got, err := allocate.Share(s, in)
			if len(got) > 0 || (err == nil) != isConfig {
				t.Errorf("%s of %s: %v, %v", s.Name(), name, got, err)
			}
			if name != "blank only" { // strategies called directly take any id
				if _, err := s.Allocate(in); (err == nil) != isConfig {
					t.Errorf("%s of %s, called directly: %v", s.Name(), name, err)
				}
			}
		}
		in := allocate.Input{Topic: topic, Queues: queues, Members: members}
		got, err := allocate.Share(s, in)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkPartition(in, got); err != nil {
			t.Errorf("%s, more members than queues: %v", s.Name(), err)
		}
		if got["absent"] != nil {
			t.Errorf("%s: an absent member got %v", s.Name(), got["absent"])
		}
	}
}
