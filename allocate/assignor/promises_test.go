package assignor

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

func all() []Assignor {
	return []Assignor{Range(), ServerRange(), RoundRobin(), Sticky(), CooperativeSticky(), Uniform()}
}

// drawInput draws a group of any kind: static members and racks, topics unknown
// or without a reader, claims that are stale, contested or of nothing at all.
// With equal subscriptions all read the same topics.
func drawInput(t *rapid.T, equal bool) Input {
	in := Input{Topics: map[string][]allocate.Queue{}}
	names := []string{"a", "b", "c", "d", "ünknown"}
	var every []allocate.Queue
	known := names[:rapid.IntRange(1, 4).Draw(t, "topics")]
	for i, topic := range known {
		for n := range rapid.IntRange(0, 9).Draw(t, "queues") {
			q := allocate.Queue{Topic: topic, Broker: fmt.Sprintf("b%d", n%(i+1)), ID: int32(n / (i + 1))}
			in.Topics[topic] = append(in.Topics[topic], q)
		}
		every = append(every, in.Topics[topic]...)
	}
	topics := rapid.SliceOfN(rapid.SampledFrom(names), 0, 5)
	shared := topics.Draw(t, "topics of all")
	every = append(every, allocate.Queue{Topic: "gone", Broker: "b0"}, allocate.Queue{Topic: "a", Broker: "b0", ID: 99})
	racks := rapid.SampledFrom([]string{"", "r0", "r1", "r2"})
	if rapid.Bool().Draw(t, "racks") {
		in.Racks = map[string][][]string{}
		for _, topic := range known { // not the map, whose order is not drawn
			for range in.Topics[topic] {
				in.Racks[topic] = append(in.Racks[topic], rapid.SliceOfN(racks, 0, 3).Draw(t, "replicas"))
			}
		}
	}
	for i := range rapid.IntRange(0, 9).Draw(t, "members") {
		m := Member{ID: fmt.Sprintf("m%d", i), Topics: shared, Rack: racks.Draw(t, "rack")}
		if !equal {
			m.Topics = topics.Draw(t, "topics")
		}
		if rapid.Bool().Draw(t, "static") {
			m.Instance = fmt.Sprintf("i%d", 9-i)
		}
		m.Generation = rapid.Int64Range(-1, 3).Draw(t, "generation")
		m.Owned = rapid.SliceOfN(rapid.SampledFrom(every), 0, 8).Draw(t, "owned")
		in.Members = append(in.Members, m)
	}
	return in
}

// settle gives members what the answer says, as of a generation.
func settle(in Input, out map[string][]allocate.Queue, generation int64) Input {
	in.Members = slices.Clone(in.Members)
	for i := range in.Members {
		in.Members[i].Owned = out[in.Members[i].ID]
		in.Members[i].Generation = generation
	}
	return in
}

// listers returns the members that claim q, by id.
func listers(in Input, q allocate.Queue) (out []Member) {
	for _, m := range in.Members {
		if slices.Contains(m.Owned, q) {
			out = append(out, m)
		}
	}
	return out
}

// failure is what checkAnswer finds wrong, "" if nothing.
func checkAnswer(a Assignor, in Input, out map[string][]allocate.Queue) string {
	if len(out) != len(in.Members) {
		return fmt.Sprintf("%d members in the answer for %d", len(out), len(in.Members))
	}
	owner := owners{}
	wanted := map[string]bool{}
	for _, m := range in.Members {
		list, ok := out[m.ID]
		if !ok || !slices.IsSortedFunc(list, allocate.Queue.Compare) {
			return fmt.Sprintf("%s: %v, %v: no sorted list", m.ID, list, ok)
		}
		for _, topic := range m.Topics {
			wanted[topic] = true
		}
		for _, q := range list {
			if other, twice := owner[q]; twice {
				return fmt.Sprintf("%v of %s and %s", q, other, m.ID)
			}
			if !slices.Contains(m.Topics, q.Topic) || !slices.Contains(in.Topics[q.Topic], q) {
				return fmt.Sprintf("%v is not for %s", q, m.ID)
			}
			owner[q] = m.ID
		}
	}
	for topic, queues := range in.Topics {
		for _, q := range queues {
			_, owned := owner[q]
			waits := a.Name() == NameCooperativeSticky && len(listers(in, q)) > 0
			if wanted[topic] && !owned && !waits {
				return fmt.Sprintf("%v has no owner", q)
			}
		}
	}
	return ""
}

func TestEveryQueueHasOneOwnerWhoSubscribes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Bool().Draw(t, "equal"))
		for _, a := range all() {
			out, err := a.Assign(in)
			if err != nil {
				t.Fatal(err)
			}
			if wrong := checkAnswer(a, in, out); wrong != "" {
				t.Fatalf("%s: %s", a.Name(), wrong)
			}
		}
	})
}

func TestAnswerDoesNotDependOnOrderAndInputIsLeftAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Bool().Draw(t, "equal"))
		other := copyInput(in)
		other.Members = rapid.Permutation(other.Members).Draw(t, "members")
		for i := range other.Members {
			m := &other.Members[i]
			m.Topics = rapid.Permutation(m.Topics).Draw(t, "topics")
			m.Owned = rapid.Permutation(m.Owned).Draw(t, "owned")
		}
		for _, topic := range slices.Sorted(maps.Keys(other.Topics)) {
			other.Topics[topic] = rapid.Permutation(other.Topics[topic]).Draw(t, "queues")
		}
		before := copyInput(other)
		for _, a := range all() {
			x, err := a.Assign(in)
			if err != nil {
				t.Fatal(err)
			}
			y, err := a.Assign(other)
			if err != nil {
				t.Fatal(err)
			}
			if !maps.EqualFunc(x, y, slices.Equal) {
				t.Fatalf("%s: %v and %v", a.Name(), x, y)
			}
			if !reflect.DeepEqual(before, other) {
				t.Fatalf("%s: changed its input", a.Name())
			}
		}
	})
}

func copyInput(in Input) Input {
	out := in
	out.Members = slices.Clone(in.Members)
	for i := range out.Members {
		out.Members[i].Topics = slices.Clone(out.Members[i].Topics)
		out.Members[i].Owned = slices.Clone(out.Members[i].Owned)
	}
	out.Topics = maps.Clone(in.Topics)
	for topic, queues := range out.Topics {
		out.Topics[topic] = slices.Clone(queues)
	}
	out.Racks = maps.Clone(in.Racks)
	for topic, lists := range out.Racks {
		out.Racks[topic] = make([][]string, len(lists))
		for n, list := range lists {
			out.Racks[topic][n] = slices.Clone(list)
		}
	}
	return out
}

// TestLoadsDifferByAtMostOneWithEqualSubscriptions holds whatever members claim
// and wherever they are: balance comes before racks. Range balances each topic.
func TestLoadsDifferByAtMostOneWithEqualSubscriptions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, true)
		for _, a := range []Assignor{RoundRobin(), Sticky(), Uniform()} {
			out, err := a.Assign(in)
			if err != nil {
				t.Fatal(err)
			}
			if least, most := extent(out); most-least > 1 {
				t.Fatalf("%s: loads from %d to %d", a.Name(), least, most)
			}
		}
		for _, a := range []Assignor{Range(), ServerRange()} {
			for topic := range in.Topics {
				one := in
				one.Topics = map[string][]allocate.Queue{topic: in.Topics[topic]}
				out, err := a.Assign(one)
				if err != nil {
					t.Fatal(err)
				}
				if least, most := extent(out); most-least > 1 {
					t.Fatalf("range: loads of %s from %d to %d", topic, least, most)
				}
			}
		}
	})
}

// kept returns who has the right to each queue: the only claim of the highest
// generation, on a topic that is read.
func kept(in Input) allocate.Owners {
	out := allocate.Owners{}
	for _, queues := range in.Topics {
		for _, q := range queues {
			claimants := listers(in, q)
			slices.SortFunc(claimants, func(a, b Member) int { return int(b.Generation - a.Generation) })
			if len(claimants) == 1 || len(claimants) > 1 && claimants[0].Generation > claimants[1].Generation {
				out[q] = claimants[0].ID
			}
		}
	}
	return out
}

func TestStickyMovesAsFewQueuesAsBalanceAllows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, true)
		in.Racks = nil // for them queues do move
		out, err := Sticky().Assign(in)
		if err != nil {
			t.Fatal(err)
		}
		var queues []allocate.Queue
		var members []string
		for i, m := range in.Members {
			members = append(members, m.ID)
			for _, topic := range slices.Compact(slices.Sorted(slices.Values(m.Topics))) {
				if i == 0 {
					queues = append(queues, in.Topics[topic]...)
				}
			}
		}
		before := kept(in)
		least := allocate.MinimumMoves(before, queues, members)
		if moves := allocate.Moves(before, allocate.Assignment(out).Owners()); moves != least {
			t.Fatalf("%d moves, %d are enough", moves, least)
		}
	})
}

// TestSettledGroupStaysAsItIs repeats a rebalance without a change. Sticky with
// racks is no fixed point: it tries anew to bring readers to their queues.
func TestSettledGroupStaysAsItIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Bool().Draw(t, "equal"))
		in.Racks = nil
		for _, a := range all() {
			first := rebalance(t, a, in, 4)
			second, err := a.Assign(settle(in, first, 9))
			if err != nil {
				t.Fatal(err)
			}
			if !maps.EqualFunc(first, second, slices.Equal) {
				t.Fatalf("%s: %v, then %v", a.Name(), first, second)
			}
		}
	})
}

// rebalance runs rebalances as members do: while one of them has to give
// something up, they join again with what they have. It fails the test if that
// takes more than three. Racks are for the first alone.
func rebalance(t *rapid.T, a Assignor, in Input, generation int64) map[string][]allocate.Queue {
	for n := 1; ; n++ {
		out, err := a.Assign(in)
		if err != nil {
			t.Fatal(err)
		}
		if a.Name() != NameCooperativeSticky {
			return out
		}
		gives := slices.ContainsFunc(in.Members, func(m Member) bool {
			return slices.ContainsFunc(m.Owned, func(q allocate.Queue) bool { return !slices.Contains(out[m.ID], q) })
		})
		if !gives {
			return out
		}
		if n == 3 {
			t.Fatalf("%s: three rebalances are not enough: %+v", a.Name(), in)
		}
		in = settle(in, out, generation+int64(n))
		in.Racks = nil
	}
}

// TestCooperativeSettlesWithinThreeRebalances changes a group in several ways at
// once, over and over. At the end of each change every queue that somebody reads
// has an owner.
func TestCooperativeSettlesWithinThreeRebalances(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		equal := rapid.Bool().Draw(t, "equal")
		in := drawInput(t, equal)
		for range 3 {
			out := rebalance(t, CooperativeSticky(), in, 4)
			if wrong := checkAnswer(Sticky(), in, out); wrong != "" { // nothing left out
				t.Fatal(wrong)
			}
			old := settle(in, out, 9)
			in = drawInput(t, equal)
			for i := range min(len(in.Members), len(old.Members)) {
				in.Members[i].Owned = old.Members[i].Owned
				in.Members[i].Generation = 9
			}
		}
	})
}

// TestCooperativeNeverGivesWhatAnotherHolds also holds for contested claims: a
// queue is with whom it was in the newest generation, or with nobody, until all
// others have stopped naming it.
func TestCooperativeNeverGivesWhatAnotherHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t, rapid.Bool().Draw(t, "equal"))
		out, err := CooperativeSticky().Assign(in)
		if err != nil {
			t.Fatal(err)
		}
		rightful := kept(in)
		for id, queues := range out {
			for _, q := range queues {
				others := slices.DeleteFunc(listers(in, q), func(m Member) bool { return m.ID == id })
				if len(others) > 0 && rightful[q] != id {
					t.Fatalf("%v goes to %s, %s holds it", q, id, others[0].ID)
				}
			}
		}
	})
}

func TestMalformedInputIsNamed(t *testing.T) {
	t.Parallel()
	topics := partitions(map[string]int{"t": 2})
	one := []Member{{ID: "m", Topics: []string{"t"}}}
	for want, in := range map[string]Input{
		`member id "m": twice`:                                        {Members: []Member{{ID: "m"}, {ID: "n"}, {ID: "m"}}},
		`member with topics ["t"]: empty id`:                          {Members: []Member{{Topics: []string{"t"}}}},
		`topics["t"]: queue {Topic:t Broker:b ID:1}`:                  {Members: one, Topics: map[string][]allocate.Queue{"t": {queue("t", 1), queue("t", 0), queue("t", 1)}}},
		`topics["t"]: queue {Topic:u Broker:b ID:0} of another topic`: {Members: one, Topics: map[string][]allocate.Queue{"t": {queue("u", 0)}}},
		`racks["t"]: 1 lists for 2 queues`:                            {Members: one, Topics: topics, Racks: map[string][][]string{"t": {{"r"}}}},
	} {
		for _, a := range all() {
			_, err := a.Assign(in)
			if strings.HasPrefix(want, "racks") && (a == RoundRobin() || a == Uniform() || a == ServerRange()) {
				if err != nil {
					t.Errorf("%s: %v, though it does not look at racks", a.Name(), err)
				}
				continue
			}
			if !errors.Is(err, ErrInput) || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %v, want %s", a.Name(), err, want)
			}
		}
	}
}

func TestNamesLeadToTheirAssignors(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		a, err := ByName(name)
		if err != nil || a.Name() != name {
			t.Errorf("%q: %v, %v", name, a, err)
		}
		if got, want := Cooperative(name), name == "cooperative-sticky"; got != want {
			t.Errorf("%q cooperative: %v", name, got)
		}
	}
	if !slices.IsSorted(Names()) || len(Names()) != 5 {
		t.Errorf("names %v", Names())
	}
	if _, err := ByName("Range"); !errors.Is(err, ErrUnknownAssignor) || !strings.Contains(err.Error(), `"Range"`) {
		t.Errorf("%v", err)
	}
}

func FuzzAssign(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x03\x05\x07\x02" + "some members, some topics, some claims of old generations"))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := inputOf(data)
		for _, a := range all() {
			out, err := a.Assign(in)
			if err != nil {
				t.Fatal(err)
			}
			if wrong := checkAnswer(a, in, out); wrong != "" {
				t.Fatalf("%s: %s in %+v", a.Name(), wrong, in)
			}
		}
	})
}

// inputOf reads a group from bytes: what is beyond them is zero.
func inputOf(data []byte) Input {
	next := func(n int) int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b) % n
	}
	in := Input{Topics: map[string][]allocate.Queue{}, Racks: map[string][][]string{}}
	topics := 1 + next(5)
	for i := range topics {
		topic := fmt.Sprintf("t%d", i)
		for n := range next(20) {
			in.Topics[topic] = append(in.Topics[topic], allocate.Queue{Topic: topic, Broker: fmt.Sprint(next(3)), ID: int32(n)})
		}
		if next(2) == 1 {
			for range in.Topics[topic] {
				in.Racks[topic] = append(in.Racks[topic], []string{fmt.Sprint(next(3)), fmt.Sprint(next(3))})
			}
		}
	}
	for i := range next(12) {
		m := Member{ID: fmt.Sprintf("m%d", i), Generation: int64(next(5)) - 2}
		for range next(6) {
			m.Topics = append(m.Topics, fmt.Sprintf("t%d", next(topics+1)))
		}
		for range next(9) {
			topic := fmt.Sprintf("t%d", next(topics+1))
			m.Owned = append(m.Owned, allocate.Queue{Topic: topic, Broker: fmt.Sprint(next(3)), ID: int32(next(21))})
		}
		if next(3) == 0 {
			m.Instance = fmt.Sprintf("i%d", next(4))
		}
		if next(2) == 1 {
			m.Rack = fmt.Sprint(next(3))
		}
		in.Members = append(in.Members, m)
	}
	return in
}
