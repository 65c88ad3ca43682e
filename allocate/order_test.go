package allocate_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

func TestStringsCompareAsInJava(t *testing.T) {
	t.Parallel()
	ascending := []string{
		"", "A", "B", "a", "a\x00", "aa", "ab", "b", "broker-1", "broker-10", "broker-2",
		"é", "消", "\ud7ff", "😀", "😀a", "\U0010ffff", "\ue000", "\uffff", "\uffffa",
	}
	for i, a := range ascending {
		for j, b := range ascending {
			want := min(1, max(-1, i-j))
			if got := allocate.CompareStrings(a, b); got != want {
				t.Errorf("CompareStrings(%q, %q) = %d, want %d", a, b, got, want)
			}
		}
	}
}

func FuzzCompareStrings(f *testing.F) {
	f.Add("a", "b", "c")
	f.Add("broker-10", "broker-2", "broker-2@")
	f.Add("😀", "\ue000", "\uffff")
	f.Add("\xff", "\xee\x80", "\xf0")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ab := allocate.CompareStrings(a, b)
		if back := allocate.CompareStrings(b, a); back != -ab || (ab == 0) != (a == b) {
			t.Errorf("%q to %q is %d, back %d", a, b, ab, back)
		}
		if utf8.ValidString(a) && utf8.ValidString(b) {
			if want := compareUTF16(a, b); ab != want {
				t.Errorf("%q to %q is %d, want %d", a, b, ab, want)
			}
		}
		if ab <= 0 && allocate.CompareStrings(b, c) <= 0 && allocate.CompareStrings(a, c) > 0 {
			t.Errorf("not transitive: %q, %q, %q", a, b, c)
		}
	})
}

func TestQueuesSortByTopicThenBrokerThenNumber(t *testing.T) {
	t.Parallel()
	ascending := []allocate.Queue{
		{"A", "z", 9},
		{"a", "broker-10", 0},
		{"a", "broker-10", 2},
		{"a", "broker-10", 10},
		{"a", "broker-2", -2147483648},
		{"a", "broker-2", -1},
		{"a", "broker-2", 2147483647},
		{"b", "a", 0},
	}
	for i, a := range ascending {
		for j, b := range ascending {
			if got, want := a.Compare(b), min(1, max(-1, i-j)); got != want {
				t.Errorf("%v to %v is %d, want %d", a, b, got, want)
			}
		}
	}
}

func TestNormalizeSortsAndRemovesDoubles(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := allocate.Input{Group: "group", Topic: topic}
		in.Queues = append(drawQueues(t, allBrokers, 0), drawQueues(t, allBrokers, 0)...)
		ids := rapid.SliceOfN(rapid.OneOf(rapid.Custom(drawID), rapid.SampledFrom([]string{"", " ", "\t\n"})), 0, 15).Draw(t, "ids")
		for _, id := range ids {
			in.Members = append(in.Members, allocate.Member{
				ClientID: id,
				Data:     rapid.SampledFrom([][]byte{nil, []byte("x"), []byte("y")}).Draw(t, "data"),
			})
		}
		if len(in.Members) > 0 {
			drawOwned(t, &in)
		}
		before := fmt.Sprint(in)
		got := in.Normalize()
		if after := fmt.Sprint(in); after != before {
			t.Fatalf("Normalize changed its input from %s to %s", before, after)
		}
		for i, q := range got.Queues {
			if !slices.Contains(in.Queues, q) || i > 0 && got.Queues[i-1].Compare(q) >= 0 {
				t.Fatalf("queue %v of %v", q, got.Queues)
			}
		}
		for _, q := range in.Queues {
			if _, ok := slices.BinarySearchFunc(got.Queues, q, allocate.Queue.Compare); !ok {
				t.Fatalf("%v is missing", q)
			}
		}
		for _, m := range in.Members {
			at, ok := got.Member(m.ClientID)
			if blank := m.ClientID == "" || m.ClientID == " " || m.ClientID == "\t\n"; ok == blank {
				t.Fatalf("%q found: %v", m.ClientID, ok)
			}
			for _, q := range m.Owned {
				if ok && !slices.Contains(got.Members[at].Owned, q) {
					t.Fatalf("%q does not own %v any more", m.ClientID, q)
				}
			}
		}
		for i := 1; i < len(got.Members); i++ {
			if compareUTF16(got.Members[i-1].ClientID, got.Members[i].ClientID) >= 0 {
				t.Fatalf("members out of order: %v", got.Members)
			}
		}
		if again := got.Normalize(); !reflect.DeepEqual(again, got) {
			t.Fatalf("normalized twice: %v, once: %v", again, got)
		}
		seed := rapid.Uint64().Draw(t, "seed")
		other := shuffled(in, rand.New(rand.NewPCG(seed, 0))).Normalize()
		for i := range other.Members { // the order of Owned means nothing
			slices.SortFunc(other.Members[i].Owned, allocate.Queue.Compare)
			slices.SortFunc(got.Members[i].Owned, allocate.Queue.Compare)
		}
		if fmt.Sprint(other) != fmt.Sprint(got) {
			t.Fatalf("from another order: %v, want %v", other, got)
		}
	})
}

func TestOneMembersPartOfAKeptSnapshotNeedsNoAllocation(t *testing.T) {
	in := bigInput()
	id := in.Members[123].ClientID
	part := make([]allocate.Queue, 0, 10)
	if n := testing.AllocsPerRun(100, func() {
		in = in.Normalize()
		i, _ := in.Member(id)
		from, to := allocate.AveragelyRange(len(in.Queues), len(in.Members), i)
		part = append(part[:0], in.Queues[from:to]...)
		part = allocate.AppendCircle(part[:0], in.Queues, len(in.Members), i)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
