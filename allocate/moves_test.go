package allocate_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

func TestMovesCountChangedOwnersOnly(t *testing.T) {
	t.Parallel()
	q := func(id int32) allocate.Queue { return allocate.Queue{Topic: topic, Broker: "a", ID: id} }
	before := allocate.Owners{q(0): "x", q(1): "x", q(2): "y", q(3): "gone", q(4): "y"}
	after := allocate.Owners{q(0): "x", q(1): "y", q(3): "x", q(4): "x", q(5): "x"}
	if got := allocate.Moves(before, after); got != 3 { // 1, 3 and 4; 2 is gone, 5 is new
		t.Errorf("%d moves, want 3", got)
	}
	if got := allocate.Moves(nil, after); got != 0 {
		t.Errorf("%d moves from nothing, want none", got)
	}
}

func TestOwnersNameTheSmallestClientIDOfAQueueClaimedTwice(t *testing.T) {
	t.Parallel()
	q := allocate.Queue{Topic: topic}
	want := allocate.Owners{q: "😀"} // a surrogate, so before U+E000
	a := allocate.Assignment{"\ue000": {q}, "😀": {q}}
	in := allocate.Input{Members: []allocate.Member{{ClientID: "\ue000", Owned: []allocate.Queue{q}}, {ClientID: "😀", Owned: []allocate.Queue{q}}}}
	if got := a.Owners(); !maps.Equal(got, want) {
		t.Errorf("assignment: %v", got)
	}
	if got := in.Owners(); !maps.Equal(got, want) {
		t.Errorf("input: %v", got)
	}
}

func TestMinimumMoves(t *testing.T) {
	t.Parallel()
	queues := func(n int) (out []allocate.Queue) {
		for i := range n {
			out = append(out, allocate.Queue{Topic: topic, Broker: "a", ID: int32(i)})
		}
		return out
	}
	owned := func(ids string) allocate.Owners { // one letter for each queue, space: nobody
		out := allocate.Owners{}
		for i, id := range ids {
			if id != ' ' {
				out[allocate.Queue{Topic: topic, Broker: "a", ID: int32(i)}] = string(id)
			}
		}
		return out
	}
	for _, c := range []struct {
		name    string
		before  string
		queues  int
		members []string
		want    int
	}{
		{"first assignment", "", 8, []string{"a", "b"}, 0},
		{"settled", "aaabb", 5, []string{"a", "b"}, 0},
		{"join", "aaaabbbb", 8, []string{"a", "b", "c"}, 2},
		{"leave", "aaabbbcc", 8, []string{"a", "b"}, 2},
		{"join and leave", "aaabbbcc", 8, []string{"a", "b", "d"}, 2},
		{"all in one hand", "aaaaaaaa", 8, []string{"a", "b", "c"}, 5},
		{"all left", "aaaa", 4, []string{"b"}, 4},
		{"grow", "aabb", 6, []string{"a", "b"}, 0},
		{"shrink", "aaabbb", 3, []string{"a", "b"}, 1},
		{"more members than queues", "aa", 2, []string{"a", "b", "c"}, 1},
		{"members listed twice", "aaaabbbb", 8, []string{"a", "b", "b", "a", "c"}, 2},
		{"nobody there", "aaaa", 4, nil, 0},
		{"no queues", "aaaa", 0, []string{"b"}, 0},
		{"some without owner", "aaaa    ", 8, []string{"a", "b"}, 0},
	} {
		if got := allocate.MinimumMoves(owned(c.before), queues(c.queues), c.members); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	doubled := append(queues(8), queues(8)...)
	if got := allocate.MinimumMoves(owned("aaaabbbb"), doubled, []string{"a", "b", "c"}); got != 2 {
		t.Errorf("queues listed twice: %d, want 2", got)
	}
}

// TestMinimumMovesIsTheLeastOfAllBalancedAssignments tries them all.
func TestMinimumMovesIsTheLeastOfAllBalancedAssignments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		in := sizedInput(rapid.IntRange(1, 6).Draw(t, "queues"), rapid.IntRange(1, 4).Draw(t, "members"), 1, rng)
		before := allocate.Owners{}
		for _, q := range in.Queues {
			if i := rapid.IntRange(-1, len(in.Members)).Draw(t, "owner"); i == len(in.Members) {
				before[q] = "gone"
			} else if i >= 0 {
				before[q] = in.Members[i].ClientID
			}
		}
		least := len(in.Queues)
		var try func(i int, after allocate.Owners, loads []int)
		try = func(i int, after allocate.Owners, loads []int) {
			if i == len(in.Queues) {
				for _, n := range loads {
					if share := len(in.Queues) / len(in.Members); n < share || n > share+1 {
						return
					}
				}
				least = min(least, allocate.Moves(before, after))
				return
			}
			for m := range in.Members {
				after[in.Queues[i]] = in.Members[m].ClientID
				loads[m]++
				try(i+1, after, loads)
				loads[m]--
			}
		}
		try(0, allocate.Owners{}, make([]int, len(in.Members)))
		if got := allocate.MinimumMoves(before, in.Queues, memberIDs(in)); got != least {
			t.Fatalf("%d, the least of all assignments is %d", got, least)
		}
	})
}
