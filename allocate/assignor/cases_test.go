package assignor

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// group reads members from lines "id: topics < claims @ generation", such as
// "m1: a b < a-0 b-3 @ 2", and topics from words like "a=4".
func readGroup(t testing.TB, topics string, lines ...string) Input {
	t.Helper()
	counts := map[string]int{}
	for word := range strings.FieldsSeq(topics) {
		var n int
		topic, count, _ := strings.Cut(word, "=")
		if _, err := fmt.Sscan(count, &n); err != nil {
			t.Fatal(err)
		}
		counts[topic] = n
	}
	in := Input{Topics: partitions(counts)}
	for _, line := range lines {
		line, generation, claimed := strings.Cut(line, " @ ")
		line, owned, _ := strings.Cut(line, " < ")
		id, list, _ := strings.Cut(line, ":")
		m := Member{ID: id, Topics: strings.Fields(list), Generation: NoGeneration}
		for p := range strings.FieldsSeq(owned) {
			m.Owned = append(m.Owned, partition(t, p))
		}
		if claimed {
			if _, err := fmt.Sscan(generation, &m.Generation); err != nil {
				t.Fatal(err)
			}
		}
		in.Members = append(in.Members, m)
	}
	return in
}

// written gives an answer as "m1: a-0 a-1 | m2: b-0".
func written(all map[string][]allocate.Queue) string {
	var out []string
	for id, list := range texts(all) {
		out = append(out, strings.TrimSpace(id+": "+strings.Join(list, " ")))
	}
	slices.Sort(out)
	return strings.Join(out, " | ")
}

// TestSmallGroupsAreSharedAsDescribed has a case for each rule that a reader of
// the comments may want to see at work.
func TestSmallGroupsAreSharedAsDescribed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		promise string
		by      Assignor
		in      Input
		want    string
	}{
		{
			"range: the first members collect the extras of every topic", Range(),
			readGroup(t, "a=3 b=3", "m1: a b", "m2: a b"),
			"m1: a-0 a-1 b-0 b-1 | m2: a-2 b-2",
		},
		{
			"roundrobin: a member is passed over where it does not subscribe", RoundRobin(),
			readGroup(t, "a=1 b=4", "m1: a b", "m2: b", "m3: a"),
			"m1: a-0 b-1 b-3 | m2: b-0 b-2 | m3:",
		},
		{
			"sticky: the higher generation wins", Sticky(),
			readGroup(t, "a=2", "m1: a < a-0 a-1 @ 1", "m2: a < a-0 @ 2"),
			"m1: a-1 | m2: a-0",
		},
		{
			"sticky: a claim without a generation counts if there is no other", Sticky(),
			readGroup(t, "a=3", "m1: a < a-1 a-2", "m2: a < a-1 @ 0"),
			"m1: a-0 a-2 | m2: a-1",
		},
		{
			"sticky: two claims of one generation count for neither, a third of a higher one does", Sticky(),
			readGroup(t, "a=3", "m1: a < a-2 a-1 @ 1", "m2: a < a-2 a-1 @ 1", "m3: a < a-2 @ 2"),
			"m1: a-0 | m2: a-1 | m3: a-2",
		},
		{
			"sticky: beyond its part a member keeps the smallest numbers of all topics", Sticky(),
			readGroup(t, "a=2 b=2", "m1: a b < a-0 a-1 b-0 b-1 @ 1", "m2: a b"),
			"m1: a-0 b-0 | m2: a-1 b-1",
		},
		{
			"sticky: a member without topics gets nothing, even if it comes first", Sticky(),
			readGroup(t, "a=4", "m0:", "m1: a", "m2: a"),
			"m0: | m1: a-0 a-2 | m2: a-1 a-3",
		},
		{
			"sticky: a queue goes back to whom an older generation names once that one has fewer", Sticky(),
			readGroup(t, "a=5 b=1", "m1: a < a-0 a-1 a-2 a-3 a-4 @ 2", "m2: a", "m3: a b < a-1 @ 1"),
			"m1: a-3 a-4 | m2: a-0 a-2 | m3: a-1 b-0",
		},
		{
			"sticky: once somebody has unsubscribed, kept queues move as well as free ones", Sticky(),
			readGroup(t, "a=1 b=4", "m1: b < b-0 @ 1", "m2: a b", "m3: a < b-1 b-2 @ 1"),
			"m1: b-1 b-3 | m2: b-0 b-2 | m3: a-0",
		},
		{
			"sticky: a topic that is not there makes no difference between subscriptions", Sticky(),
			readGroup(t, "a=3", "m1: a gone < a-0 a-1 a-2 @ 1", "m2: a"),
			"m1: a-0 a-1 | m2: a-2",
		},
		{
			"cooperative: what changes hands is left out first", CooperativeSticky(),
			readGroup(t, "a=4", "m1: a < a-0 a-1 a-2 a-3 @ 1", "m2: a"),
			"m1: a-0 a-1 | m2:",
		},
		{
			"cooperative: and given out when its owner has joined again", CooperativeSticky(),
			readGroup(t, "a=4", "m1: a < a-0 a-1 @ 2", "m2: a < @ 2"),
			"m1: a-0 a-1 | m2: a-2 a-3",
		},
		{
			"cooperative: a queue held by somebody who does not subscribe any more is left out, too", CooperativeSticky(),
			readGroup(t, "a=2 b=2", "m1: b < a-0 a-1 @ 1", "m2: a b"),
			"m1: b-0 b-1 | m2:",
		},
		{
			"cooperative: an outdated claim keeps nobody from what is his", CooperativeSticky(),
			readGroup(t, "a=2", "m1: a < a-0 @ 1", "m2: a < a-0 a-1 @ 2"),
			"m1: | m2: a-0",
		},
		{
			"uniform: the larger parts are with the smallest ids, whoever holds more", Uniform(),
			readGroup(t, "a=3", "m1: a < a-0 @ 1", "m2: a < a-1 a-2 @ 1"),
			"m1: a-0 a-2 | m2: a-1",
		},
		{
			"uniform: topics are evened out where subscriptions differ", Uniform(),
			readGroup(t, "a=4 b=2", "m1: a < a-0 a-1 a-2 a-3 @ 1", "m2: a b", "m3: b"),
			"m1: a-0 a-1 a-2 | m2: a-3 b-0 | m3: b-1",
		},
		{
			"uniform: of topics with as many queues for each subscriber the one with fewer comes first", Uniform(),
			readGroup(t, "a=2 b=1", "m1: a b", "m2: a"),
			"m1: b-0 | m2: a-0 a-1",
		},
		{
			"topics without queues or metadata count for nobody", Sticky(),
			readGroup(t, "a=1 empty=0", "m1: empty unknown", "m2: a unknown"),
			"m1: | m2: a-0",
		},
		{"nobody gets nothing", Uniform(), readGroup(t, "a=3"), ""},
	} {
		t.Run(c.promise, func(t *testing.T) {
			t.Parallel()
			if got := written(assign(t, c.by, c.in)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPartitionIsThePlaceInTheSortedQueues has a topic on two brokers.
func TestPartitionIsThePlaceInTheSortedQueues(t *testing.T) {
	t.Parallel()
	q := func(broker string, id int32) allocate.Queue {
		return allocate.Queue{Topic: "t", Broker: broker, ID: id}
	}
	in := Input{
		Members: []Member{{ID: "m1", Topics: []string{"t"}}, {ID: "m2", Topics: []string{"t"}}},
		Topics:  map[string][]allocate.Queue{"t": {q("b2", 1), q("b1", 10), q("b2", 0), q("b1", 9)}},
	}
	out := assign(t, Range(), in)
	if want := []allocate.Queue{q("b1", 9), q("b1", 10)}; !slices.Equal(out["m1"], want) {
		t.Errorf("m1 has %v, want %v", out["m1"], want)
	}
	if want := []allocate.Queue{q("b2", 0), q("b2", 1)}; !slices.Equal(out["m2"], want) {
		t.Errorf("m2 has %v, want %v", out["m2"], want)
	}
}

// TestMembersAreInTheOrderOfJava compares by UTF-16 units: a character above
// U+FFFF comes before U+FF5E. Static members come first.
func TestMembersAreInTheOrderOfJava(t *testing.T) {
	t.Parallel()
	in := readGroup(t, "a=4", "\uff5e: a", "\U0001f600: a", "x: a", "z: a")
	in.Members[3].Instance = "zz"
	want := "x: a-1 | z: a-0 | \uff5e: a-3 | \U0001f600: a-2"
	for _, a := range []Assignor{Range(), RoundRobin()} {
		if got := written(assign(t, a, in)); got != want {
			t.Errorf("%s: %s, want %s", a.Name(), got, want)
		}
	}
}

// TestReadersAreNearTheirQueuesWhereBalanceAllows gives the queues of rack r1 to
// the member in r1 as far as its part goes. The group coordinator does not look.
func TestReadersAreNearTheirQueuesWhereBalanceAllows(t *testing.T) {
	t.Parallel()
	in := readGroup(t, "a=4", "m1: a", "m2: a")
	in.Members[0].Rack, in.Members[1].Rack = "r1", "r2"
	in.Racks = map[string][][]string{"a": {{"r2"}, {"r1"}, {"r1"}, {"r1"}}}
	for _, c := range []struct {
		by   Assignor
		want string
	}{
		{Range(), "m1: a-1 a-2 | m2: a-0 a-3"},
		{Sticky(), "m1: a-1 a-2 | m2: a-0 a-3"},
		{CooperativeSticky(), "m1: a-1 a-2 | m2: a-0 a-3"},
		{ServerRange(), "m1: a-0 a-1 | m2: a-2 a-3"},
		{RoundRobin(), "m1: a-0 a-2 | m2: a-1 a-3"},
		{Uniform(), "m1: a-0 a-1 | m2: a-2 a-3"},
	} {
		if got := written(assign(t, c.by, in)); got != c.want {
			t.Errorf("%s: %s, want %s", c.by.Name(), got, c.want)
		}
	}
	in.Racks["a"] = [][]string{{"r1", "r3"}, {"r3", "r1"}, {"r1", "r3"}, {"r1", "r3"}}
	if got, want := written(assign(t, Sticky(), in)), "m1: a-0 a-2 | m2: a-1 a-3"; got != want {
		t.Errorf("every queue in all racks: %s, want %s", got, want)
	}
	in = readGroup(t, "a=2 b=2", "m1: a", "m2: a b", "m3: b")
	in.Members[0].Rack, in.Members[1].Rack, in.Members[2].Rack = "r1", "r2", "r1"
	in.Racks = map[string][][]string{"a": {{"r2"}, {"r1"}}, "b": {{"r2"}, {"r1"}}}
	if got, want := written(assign(t, Range(), in)), "m1: a-1 | m2: a-0 b-0 | m3: b-1"; got != want {
		t.Errorf("equally many queues, other subscribers: %s, want %s", got, want)
	}
}

// TestSendingQueuesBackComesToAnEnd has a group in which that goes on for ever
// unless a queue is sent back only where it brings loads closer.
func TestSendingQueuesBackComesToAnEnd(t *testing.T) {
	t.Parallel()
	in := readGroup(
		t, "t0=5 t1=2 t2=3 t3=6 t4=3 t5=7",
		"m0: t2",
		"m1: t2 t4 t5",
		"m2: t0 t2 t4 t5 < t0-1 t0-3 t5-6 @ 1",
		"m3: t1 t2 t3 t4 t5 < t3-2 @ 1",
		"m4: t0 t1 < t0-0 t0-2 t0-4 t1-0 @ 1",
		"m5: t2 t3 t5 < t3-1 t3-4 t3-5 t5-4 t5-5 @ 1",
		"m6: t4 t5 < t5-3 @ 1",
		"m7: t1 t2 t4 < t1-1 t2-0 t2-1 t2-2 t4-0 t4-1 t4-2 @ 1",
	)
	out := assign(t, Sticky(), in)
	if wrong := checkAnswer(Sticky(), in, out); wrong != "" {
		t.Fatal(wrong)
	}
	if least, most := extent(out); least != 2 || most != 4 {
		t.Errorf("loads from %d to %d: %s", least, most, written(out))
	}
}
