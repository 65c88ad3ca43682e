package allocate_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

// partitions are the strategies that give every queue to exactly one member.
var partitions = []allocate.Strategy{
	allocate.Averagely{},
	allocate.AveragelyByCircle{},
	allocate.Rendezvous{},
	allocate.Sticky{},
	must(allocate.NewConsistentHash(allocate.DefaultVirtualNodes)),
	must(allocate.NewMachineRoomNearby(allocate.Averagely{}, nil)),
	must(allocate.NewMachineRoomNearby(allocate.Sticky{}, nil)),
}

// balanced are those of them whose loads differ by at most one.
var balanced = partitions[:4]

// checkPartition fails unless each queue of in is in exactly one list of a
// member, and each list is sorted.
func checkPartition(in allocate.Input, got allocate.Assignment) error {
	given := 0
	for id, queues := range got {
		if _, ok := in.Member(id); !ok {
			return fmt.Errorf("%q is no member", id)
		}
		if !slices.IsSortedFunc(queues, allocate.Queue.Compare) {
			return fmt.Errorf("list of %q is not sorted: %v", id, queues)
		}
		given += len(queues)
	}
	owners := got.Owners()
	for _, q := range in.Queues {
		if _, ok := owners[q]; !ok {
			return fmt.Errorf("%v has no owner", q)
		}
	}
	if given != len(in.Queues) || len(owners) != len(in.Queues) {
		return fmt.Errorf("%d queues given, %d distinct, of %d", given, len(owners), len(in.Queues))
	}
	return nil
}

func checkBalance(in allocate.Input, got allocate.Assignment) error {
	least, most := len(in.Queues), 0
	for _, m := range in.Members {
		least, most = min(least, len(got[m.ClientID])), max(most, len(got[m.ClientID]))
	}
	if most-least > 1 {
		return fmt.Errorf("loads from %d to %d", least, most)
	}
	return nil
}

func TestStrategiesGiveEachQueueToOneMemberInBalance(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, roomBrokers, false)
		drawOwned(t, &in)
		for i := range in.Members {
			in.Members[i].Data = allocate.EncodeZone(rapid.SampledFrom(zoneNames).Draw(t, "zone"), nil)
		}
		for _, s := range partitions {
			before := fmt.Sprint(in)
			got, err := allocate.Share(s, in)
			if err != nil {
				t.Fatal(err)
			}
			if err := checkPartition(in, got); err != nil {
				t.Fatalf("%s: %v", s.Name(), err)
			}
			if slices.Contains(balanced, s) {
				if err := checkBalance(in, got); err != nil {
					t.Fatalf("%s: %v", s.Name(), err)
				}
			}
			if again, _ := allocate.Share(s, in); !reflect.DeepEqual(got, again) {
				t.Fatalf("%s: %v, then %v", s.Name(), got, again)
			}
			rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			other := shuffled(in, rng)
			other.Members = append(other.Members, other.Members[rng.IntN(len(other.Members))], allocate.Member{ClientID: " "})
			other.Queues = append(other.Queues, other.Queues[rng.IntN(len(other.Queues))])
			for i := range other.Members {
				other.Members[i].Owned = slices.Clone(other.Members[i].Owned)
				slices.Reverse(other.Members[i].Owned)
			}
			if got2, err := allocate.Share(s, other); err != nil || !reflect.DeepEqual(got, got2) {
				t.Fatalf("%s: %v, from another order with doubles %v (%v)", s.Name(), got, got2, err)
			}
			if after := fmt.Sprint(in); after != before {
				t.Fatalf("%s changed its input from %s to %s", s.Name(), before, after)
			}
		}
	})
}

func TestListsCannotGrowIntoEachOther(t *testing.T) {
	t.Parallel()
	in := sizedInput(20, 3, 1, rand.New(rand.NewPCG(1, 1)))
	for _, s := range balanced {
		got, err := s.Allocate(in)
		if err != nil {
			t.Fatal(err)
		}
		before := maps.Clone(got.Owners())
		for _, queues := range got {
			_ = append(queues, allocate.Queue{Topic: "intruder"})
		}
		if !maps.Equal(got.Owners(), before) {
			t.Errorf("%s: appending to one list changed another", s.Name())
		}
	}
}

// group is a consumer group of one topic whose ownership a test moves on.
type group struct {
	in     allocate.Input
	owners allocate.Owners
}

// input is g's input with what its members own.
func (g group) input() allocate.Input {
	in := g.in
	in.Members = slices.Clone(in.Members)
	for i := range in.Members {
		in.Members[i].Owned = nil
	}
	for _, q := range slices.SortedFunc(maps.Keys(g.owners), allocate.Queue.Compare) {
		if at, ok := in.Member(g.owners[q]); ok {
			in.Members[at].Owned = append(in.Members[at].Owned, q)
		}
	}
	return in
}

func (g group) sticky() (allocate.Assignment, error) { return allocate.Sticky{}.Allocate(g.input()) }

// randomGroup has up to 20 members, up to 60 queues and some ownership: none,
// settled, or anything.
func randomGroup(rng *rand.Rand) group {
	g := group{in: sizedInput(1+rng.IntN(60), 1+rng.IntN(20), 1+rng.IntN(4), rng)}
	g.in.Topic = fmt.Sprintf("topic-%d", rng.IntN(1000))
	switch rng.IntN(4) {
	case 0:
	case 1:
		g.owners = allocate.Owners{}
		for _, q := range g.in.Queues {
			if rng.IntN(5) > 0 {
				g.owners[q] = g.in.Members[min(rng.IntN(len(g.in.Members)), rng.IntN(len(g.in.Members)))].ClientID
			}
		}
	default:
		got, err := g.sticky()
		if err != nil {
			panic(err)
		}
		g.owners = got.Owners()
	}
	return g
}

// change adds and removes up to three members and some queues at once.
func (g group) change(rng *rand.Rand) group {
	next := g
	next.in.Members = slices.Clone(g.in.Members)
	for range rng.IntN(4) {
		if rng.IntN(2) == 0 {
			next.in.Members = append(next.in.Members, allocate.Member{ClientID: randomID(rng)})
		} else if len(next.in.Members) > 1 {
			at := rng.IntN(len(next.in.Members))
			next.in.Members = slices.Delete(next.in.Members, at, at+1)
		}
	}
	switch rng.IntN(4) {
	case 0:
		next.in.Queues = slices.Clone(g.in.Queues[:1+rng.IntN(len(g.in.Queues))])
	case 1:
		for i := range int32(1 + rng.IntN(10)) {
			next.in.Queues = append(slices.Clip(next.in.Queues), allocate.Queue{Topic: topic, Broker: "broker-new", ID: i})
		}
	}
	next.in = next.in.Normalize()
	return next
}

// mixture is one moment on the way from g's owners to after: each queue that
// moves is still with its old owner if that one is a member, with nobody, or with
// its new owner already.
func (g group) mixture(after allocate.Owners, rng *rand.Rand) group {
	old := g.owners
	g.owners = allocate.Owners{}
	for q, owner := range after {
		switch rng.IntN(3) {
		case 0:
			g.owners[q] = owner
		case 1:
			if before, ok := old[q]; ok {
				g.owners[q] = before
			}
		default:
			if old[q] == owner {
				g.owners[q] = owner
			}
		}
	}
	return g
}

// mixtures is how many random mixtures to try: 10 000, or as many as
// ALLOCATE_MIXTURES says.
func mixtures(t *testing.T) int {
	t.Helper()
	s := os.Getenv("ALLOCATE_MIXTURES")
	if s == "" {
		return 10_000
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("ALLOCATE_MIXTURES: %v", err)
	}
	return n
}

// TestStickyIsPathConsistentAndMinimal follows changes of groups: whatever part
// of a change has been carried out, the answer is the same, with the fewest moves
// that balance allows, and a fixed point at the end.
func TestStickyIsPathConsistentAndMinimal(t *testing.T) {
	t.Parallel()
	n := mixtures(t)
	moved := 0
	for seed := range uint64(n / mixturesOfAChange) {
		moves, err := followChange(seed)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		moved += moves
	}
	if moved < n/10 {
		t.Errorf("only %d moves in %d mixtures: the changes are too small to tell anything", moved, n)
	}
}

func FuzzStickyPath(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		if _, err := followChange(seed); err != nil {
			t.Fatal(err)
		}
	})
}

const mixturesOfAChange = 10

// followChange checks one random change of a random group and returns its moves.
func followChange(seed uint64) (moves int, err error) {
	rng := rand.New(rand.NewPCG(20, seed))
	next := randomGroup(rng).change(rng)
	want, err := next.sticky()
	if err := errors.Join(err, checkPartition(next.in, want), checkBalance(next.in, want)); err != nil {
		return 0, err
	}
	after := want.Owners()
	moves = allocate.Moves(next.owners, after)
	if minimum := allocate.MinimumMoves(next.owners, next.in.Queues, memberIDs(next.in)); moves != minimum {
		return 0, fmt.Errorf("%d queues moved, the minimum is %d", moves, minimum)
	}
	for range mixturesOfAChange {
		if got, err := next.mixture(after, rng).sticky(); err != nil || !reflect.DeepEqual(got, want) {
			return 0, fmt.Errorf("on the way\n%v (%w), from the beginning\n%v", got, err, want)
		}
	}
	next.owners = after
	if got, err := next.sticky(); err != nil || !reflect.DeepEqual(got, want) {
		return 0, fmt.Errorf("settled\n%v, then\n%v (%w)", want, got, err)
	}
	return moves, nil
}

// TestStickyMovesOnlyWhatAChangeDemands: without a change of members nothing
// moves; when a member leaves only its queues move, and when it returns as many,
// to nobody but it.
func TestStickyMovesOnlyWhatAChangeDemands(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		g := group{in: sizedInput(24, 6, 3, rand.New(rand.NewPCG(seed, 2)))}
		pass := func() (moved []allocate.Queue) {
			t.Helper()
			got, err := allocate.Share(allocate.Sticky{}, g.input())
			if err != nil {
				t.Fatal(err)
			}
			after := got.Owners()
			for q, id := range g.owners {
				if after[q] != id {
					moved = append(moved, q)
				}
			}
			g.owners = after
			slices.SortFunc(moved, allocate.Queue.Compare)
			return moved
		}
		pass()
		for range 10 {
			if moved := pass(); len(moved) > 0 {
				t.Fatalf("seed %d: %v moved without a change", seed, moved)
			}
		}
		settled := maps.Clone(g.owners)
		all := g.in.Members
		leaver := all[2].ClientID
		var its []allocate.Queue
		for q, id := range settled {
			if id == leaver {
				its = append(its, q)
			}
		}
		slices.SortFunc(its, allocate.Queue.Compare)

		g.in.Members = slices.Delete(slices.Clone(all), 2, 3)
		if moved := pass(); !slices.Equal(moved, its) {
			t.Errorf("seed %d: a leave moved %v, want those of the leaver, %v", seed, moved, its)
		}
		g.in.Members = all
		if moved := pass(); len(moved) != len(its) {
			t.Errorf("seed %d: the return moved %v, want as many as %v", seed, moved, its)
		}
		for q, id := range g.owners {
			if id != leaver && settled[q] != id && settled[q] != leaver {
				t.Errorf("seed %d: %v went from %q to %q", seed, q, settled[q], id)
			}
		}
	}
}

// TestRendezvousMovesLittle checks what one member costs that joins 100 with
// 1 000 queues, and leaves again.
func TestRendezvousMovesLittle(t *testing.T) {
	t.Parallel()
	joins, leaves, minJoins, minLeaves := 0, 0, 0, 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		small := sizedInput(1_000, 100, 8, rng)
		big := small
		big.Members = append(slices.Clone(small.Members), allocate.Member{ClientID: randomID(rng)})
		big = big.Normalize()
		owners := func(in allocate.Input) allocate.Owners {
			got, err := allocate.Rendezvous{}.Allocate(in)
			if err != nil {
				t.Fatal(err)
			}
			return got.Owners()
		}
		before, after := owners(small), owners(big)
		joins += allocate.Moves(before, after)
		leaves += allocate.Moves(after, before)
		minJoins += allocate.MinimumMoves(before, big.Queues, memberIDs(big))
		minLeaves += allocate.MinimumMoves(after, small.Queues, memberIDs(small))
	}
	if joins > 3*minJoins || leaves > 3*minLeaves {
		t.Errorf("joins moved %d, leaves %d queues; more than 3 times the minimum of %d and %d",
			joins, leaves, minJoins, minLeaves)
	}
	t.Logf("joins moved %d queues, minimum %d; leaves %d, minimum %d", joins, minJoins, leaves, minLeaves)
}

// TestStickySpreadsExtrasOverTopics checks that nobody collects the extra queue
// of many topics.
func TestStickySpreadsExtrasOverTopics(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 5))
	const topics, members = 1_000, 10
	loads := map[string]int{}
	in := sizedInput(1, members, 1, rng)
	for i := range topics {
		in.Topic = fmt.Sprintf("topic-%d", i)
		in.Queues = []allocate.Queue{{Topic: in.Topic, Broker: "broker-a"}}
		got, err := allocate.Sticky{}.Allocate(in)
		if err != nil {
			t.Fatal(err)
		}
		for id, queues := range got {
			loads[id] += len(queues)
		}
	}
	for _, m := range in.Members {
		if n := loads[m.ClientID]; n < 60 || n > 140 {
			t.Errorf("%q has %d of %d queues, want about %d", m.ClientID, n, topics, topics/members)
		}
	}
}
