package route

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

func host(broker, address string, epoch, version uint64, queues int32) Host {
	return Host{
		Broker: Broker{Name: broker, Address: address, Stamp: Stamp{epoch, version}},
		Config: Config{Topic: "t", ReadQueues: queues, WriteQueues: queues, Readable: true, Writable: true},
	}
}

func topic(hosts ...Host) Topic { return Topic{Name: "t", Hosts: hosts} }

// Every real difference between two routes is seen from both sides, and another order is none.
func TestF_RTE_03_EveryDifferenceIsSeenFromBothSides(t *testing.T) {
	a, b, c := host("a", "a:1", 1, 1, 4), host("b", "b:1", 1, 1, 4), host("c", "c:1", 1, 1, 4)
	change := func(f func(*Host)) Host {
		h := b
		f(&h)
		return h
	}
	for _, tc := range []struct {
		name string
		x, y Topic
		same bool
	}{
		{"same", topic(a, b), topic(a, b), true},
		{"another order", topic(a, b, c), topic(c, a, b), true},
		{"a newer stamp alone", topic(a, b), topic(a, change(func(h *Host) { h.Broker.Stamp.Version = 9 })), true},
		{"one added", topic(a, b), topic(a, b, c), false},
		{"one replaced", topic(a, b), topic(a, c), false},
		{"all removed", topic(a, b), topic(), false},
		{"another address", topic(a, b), topic(a, change(func(h *Host) { h.Broker.Address = "b:2" })), false},
		{"another cluster", topic(a, b), topic(a, change(func(h *Host) { h.Broker.Cluster = "x" })), false},
		{"more to read", topic(a, b), topic(a, change(func(h *Host) { h.Config.ReadQueues = 8 })), false},
		{"less to write", topic(a, b), topic(a, change(func(h *Host) { h.Config.WriteQueues = 2 })), false},
		{"not readable", topic(a, b), topic(a, change(func(h *Host) { h.Config.Readable = false })), false},
		{"not writable", topic(a, b), topic(a, change(func(h *Host) { h.Config.Writable = false })), false},
		{"another topic", topic(a, b), Topic{Name: "u", Hosts: []Host{a, b}}, false},
		{"doubled instead of another", topic(a, b), topic(a, a), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.x.Equal(tc.y) != tc.same || tc.y.Equal(tc.x) != tc.same {
				t.Errorf("equal is %v and %v, want %v", tc.x.Equal(tc.y), tc.y.Equal(tc.x), tc.same)
			}
		})
	}
}

func TestQueuesAreSortedAndFollowPermissions(t *testing.T) {
	b := host("b", "b:1", 1, 1, 2)
	a := host("a", "a:1", 1, 1, 3)
	a.Config.WriteQueues = 1
	closed := host("c", "c:1", 1, 1, 5)
	closed.Config.Readable, closed.Config.Writable = false, false
	wide := host("d", "d:1", 1, 1, 1)
	wide.Config.WriteQueues = 4 // more than can be read
	r := topic(wide, b, closed, a)
	q := func(broker string, id int32) allocate.Queue {
		return allocate.Queue{Topic: "t", Broker: broker, ID: id}
	}
	if got, want := r.Readable(), []allocate.Queue{q("a", 0), q("a", 1), q("a", 2), q("b", 0), q("b", 1), q("d", 0)}; !slices.Equal(got, want) {
		t.Errorf("readable %v, want %v", got, want)
	}
	if got, want := r.Writable(), []allocate.Queue{q("a", 0), q("b", 0), q("b", 1), q("d", 0)}; !slices.Equal(got, want) {
		t.Errorf("writable %v, want %v", got, want)
	}
	if got := r.Brokers(); !slices.Equal(got, []string{"a", "b", "c", "d"}) {
		t.Errorf("brokers %v", got)
	}
	if h, ok := r.Host("b"); !ok || h != b {
		t.Errorf("host b is %+v, %v", h, ok)
	}
	if _, ok := r.Host("x"); ok {
		t.Error("host x is there")
	}
	if !slices.IsSortedFunc(r.Readable(), allocate.Queue.Compare) {
		t.Error("readable queues are not in the order of strategies")
	}
}

func TestMerge(t *testing.T) {
	old, current, moved := host("b", "b:1", 1, 1, 4), host("b", "b:1", 1, 2, 8), host("b", "b:2", 2, 1, 8)
	other := host("c", "c:1", 1, 1, 4)
	for _, tc := range []struct {
		name   string
		before Topic
		says   []Saying
		want   Topic
	}{
		{"first word", topic(), []Saying{{Ready, []Host{old}}}, topic(old)},
		{"newer version wins", topic(), []Saying{{Ready, []Host{current}}, {Ready, []Host{old}}}, topic(current)},
		{"newer epoch wins over version", topic(current), []Saying{{Ready, []Host{moved}}, {Ready, []Host{current}}}, topic(moved)},
		{"a server that is behind changes nothing", topic(moved), []Saying{{Ready, []Host{old}}}, topic(moved)},
		{"one of two dropped it", topic(old), []Saying{{Ready, nil}, {Ready, []Host{old}}}, topic(old)},
		{"all dropped it", topic(old, other), []Saying{{Ready, []Host{other}}, {Ready, []Host{other}}}, topic(other)},
		{"topic is gone", topic(old), []Saying{{Ready, nil}}, topic()},
		{"no server can be reached", topic(old), []Saying{{Unreachable, nil}, {Unreachable, []Host{other}}}, topic(old)},
		{"the only one is warming", topic(old), []Saying{{Warming, nil}}, topic(old)},
		{"warming adds", topic(old), []Saying{{Warming, []Host{other}}}, topic(old, other)},
		{"warming keeps what it lists", topic(old), []Saying{{Ready, nil}, {Warming, []Host{old}}}, topic(old)},
		{"the word of an unreachable one is not counted", topic(old), []Saying{{Ready, nil}, {Unreachable, []Host{old}}}, topic()},
		{"nobody to ask", topic(old), nil, topic(old)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Merge(tc.before, tc.says); !reflect.DeepEqual(slices.Concat(got.Hosts), slices.Concat(tc.want.Hosts)) || got.Name != "t" {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func drawHosts(t *rapid.T) []Host {
	var out []Host
	for _, b := range []string{"a", "b", "c"} {
		if rapid.Bool().Draw(t, "hosts "+b) {
			out = append(out, host(b, rapid.SampledFrom([]string{b + ":1", b + ":2"}).Draw(t, "address"),
				rapid.Uint64Range(1, 3).Draw(t, "epoch"), rapid.Uint64Range(1, 3).Draw(t, "version"), rapid.Int32Range(0, 4).Draw(t, "queues")))
		}
	}
	return out
}

func drawSays(t *rapid.T) []Saying {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Saying {
		return Saying{State: State(rapid.IntRange(0, 2).Draw(t, "state")), Hosts: drawHosts(t)}
	}), 0, 4).Draw(t, "says")
}

func TestMergeDoesNotDependOnOrderAndIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, says := topic(drawHosts(t)...), drawSays(t)
		got := Merge(before, says)
		chance := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 0))
		mixed, mixedBefore := slices.Clone(says), topic(slices.Clone(before.Hosts)...)
		chance.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
		for i := range mixed {
			mixed[i].Hosts = slices.Clone(mixed[i].Hosts)
			slices.Reverse(mixed[i].Hosts)
		}
		slices.Reverse(mixedBefore.Hosts)
		if again := Merge(mixedBefore, mixed); !reflect.DeepEqual(again, got) {
			t.Fatalf("in another order %+v, before %+v", again, got)
		}
		if again := Merge(got, says); !reflect.DeepEqual(again, got) {
			t.Fatalf("merged again %+v, before %+v", again, got)
		}
		if !slices.IsSortedFunc(got.Hosts, compareHosts) {
			t.Fatalf("not sorted: %+v", got)
		}
	})
}

func TestMergeIsMonotone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, says := topic(drawHosts(t)...), drawSays(t)
		got := Merge(before, says)
		ready := slices.ContainsFunc(says, func(s Saying) bool { return s.State == Ready })
		for _, h := range before.Hosts {
			now, ok := got.Host(h.Broker.Name)
			if ok && now.Broker.Stamp.Compare(h.Broker.Stamp) < 0 {
				t.Fatalf("%s went back from %v to %v", h.Broker.Name, h.Broker.Stamp, now.Broker.Stamp)
			}
			if !ok && !ready {
				t.Fatalf("%s left though no server is ready", h.Broker.Name)
			}
		}
		for _, s := range says {
			for _, h := range s.Hosts {
				if _, ok := got.Host(h.Broker.Name); !ok && s.State != Unreachable {
					t.Fatalf("%s is listed and left out", h.Broker.Name)
				}
			}
		}
		// One more server that cannot be reached changes nothing, one that warms
		// up removes nothing.
		if with := Merge(before, append(slices.Clone(says), Saying{Unreachable, drawHosts(t)})); !reflect.DeepEqual(with, got) {
			t.Fatalf("with an unreachable server %+v, without %+v", with, got)
		}
		with := Merge(before, append(slices.Clone(says), Saying{Warming, drawHosts(t)}))
		for _, h := range got.Hosts {
			if _, ok := with.Host(h.Broker.Name); !ok {
				t.Fatalf("a warming server removed %s", h.Broker.Name)
			}
		}
	})
}

func TestTableNamesWhatChanged(t *testing.T) {
	tab := NewTable()
	u := func(name string, h ...Host) Topic {
		for i := range h {
			h[i].Config.Topic = name
		}
		return Topic{Name: name, Hosts: h}
	}
	a, b := host("a", "a:1", 1, 1, 4), host("b", "b:1", 1, 1, 4)
	step := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: changed %v, want %v", what, got, want)
		}
	}
	lookup := func(name string, want Known, hosts int) {
		t.Helper()
		if r, known := tab.Lookup(name); known != want || len(r.Hosts) != hosts || r.Name != name {
			t.Errorf("%s is %v with %d hosts, want %v with %d", name, known, len(r.Hosts), want, hosts)
		}
	}
	lookup("x", Unknown, 0)
	step("first of n1, warming", tab.Apply("n1", Update{Full: true, Warming: true, Topics: []Topic{u("x", a), u("y")}}), "x")
	lookup("x", Found, 1)
	lookup("y", Unknown, 0)
	step("n1 is warm", tab.Apply("n1", Update{}), "y")
	lookup("y", Absent, 0)
	step("n2 knows more", tab.Apply("n2", Update{Full: true, Topics: []Topic{u("x", a, b), u("y", b)}}), "x", "y")
	step("same again", tab.Apply("n2", Update{Full: true, Topics: []Topic{u("x", b, a), u("y", b)}}))
	step("n2 loses b, n1 never had it", tab.Apply("n2", Update{Topics: []Topic{u("x", a)}}), "x")
	step("n2 out of reach", tab.Unreachable("n2"), "y")
	lookup("y", Absent, 0)
	step("n1 out of reach too", tab.Unreachable("n1"))
	lookup("x", Found, 1)
	step("n1 restarted, empty", tab.Apply("n1", Update{Full: true, Warming: true, Topics: []Topic{u("x"), u("y")}}))
	lookup("x", Found, 1)
	step("n1 warm and still empty", tab.Apply("n1", Update{}), "x")
	lookup("x", Absent, 0)
	step("another list", tab.Remove("n1"))
	step("another list", tab.Remove("n2"))
	step("n3", tab.Apply("n3", Update{Full: true, Topics: []Topic{u("x", b)}}), "x")
	b.Broker.Stamp.Version = 2
	step("b changed something else", tab.Apply("n3", Update{Topics: []Topic{u("x", b)}}))
	b.Broker.Stamp.Epoch = 2
	step("b started again", tab.Apply("n3", Update{Topics: []Topic{u("x", b)}}), "x")
	if tab.Pending("x") || !tab.Pending("z") {
		t.Errorf("pending is %v for x and %v for z", tab.Pending("x"), tab.Pending("z"))
	}
	if tab.State("n3") != Ready || tab.State("n1") != Unreachable {
		t.Errorf("states %v %v", tab.State("n3"), tab.State("n1"))
	}
	tab.Forget("x")
	lookup("x", Unknown, 0)
	step("never heard of", tab.Unreachable("n9"))
	step("never heard of", tab.Remove("n9"))
}

// A full answer takes away what it does not name, a delta does not.
func TestTableTellsFullFromDelta(t *testing.T) {
	tab := NewTable()
	a := host("a", "a:1", 1, 1, 4)
	x, y := Topic{"x", []Host{a}}, Topic{"y", []Host{a}}
	tab.Apply("n", Update{Full: true, Topics: []Topic{x, y}})
	if got := tab.Apply("n", Update{Topics: []Topic{x}}); len(got) > 0 {
		t.Errorf("delta changed %v", got)
	}
	if got := tab.Apply("n", Update{Full: true, Topics: []Topic{x}}); !slices.Equal(got, []string{"y"}) {
		t.Errorf("full changed %v, want y", got)
	}
	if got := tab.Topics(); len(got) != 1 || got[0].Name != "x" {
		t.Errorf("topics %v", got)
	}
}

// What a name server said before its restart counts until it is ready again, or
// has been warming for too long.
func TestRestartedServerKeepsItsWordWhileItWarms(t *testing.T) {
	a, b := host("a", "a:1", 1, 1, 4), host("b", "b:1", 1, 1, 4)
	for _, end := range []string{"ready without b", "settled", "unreachable", "ready with b"} {
		t.Run(end, func(t *testing.T) {
			tab := NewTable()
			tab.Apply("n1", Update{Full: true, Topics: []Topic{topic(a, b)}})
			tab.Apply("n2", Update{Full: true, Topics: []Topic{topic(a)}}) // is cut off from b
			for range 2 {                                                  // it may be asked again meanwhile
				if got := tab.Apply("n1", Update{Full: true, Warming: true, Topics: []Topic{topic(a)}}); len(got) > 0 {
					t.Errorf("its restart changed %v", got)
				}
			}
			want := "a"
			switch end {
			case "ready without b":
				tab.Apply("n1", Update{})
			case "settled":
				tab.Settle("n1")
			case "unreachable":
				tab.Unreachable("n1")
				tab.Apply("n1", Update{Full: true, Warming: true})
			default:
				tab.Apply("n1", Update{Warming: true, Topics: []Topic{topic(a, b)}})
				tab.Apply("n1", Update{})
				want = "a b"
			}
			if r, _ := tab.Lookup("t"); strings.Join(r.Brokers(), " ") != want {
				t.Errorf("hosts %v, want %s", r.Brokers(), want)
			}
		})
	}
}

// A delta from a server that never told the whole is not the whole.
func TestDeltaBeforeFullRemovesNothing(t *testing.T) {
	tab := NewTable()
	a, b := host("a", "a:1", 1, 1, 4), host("b", "b:1", 1, 1, 4)
	tab.Apply("n1", Update{Full: true, Topics: []Topic{topic(a)}})
	tab.Remove("n1")
	tab.Apply("n2", Update{Topics: []Topic{topic(b)}})
	if r, _ := tab.Lookup("t"); len(r.Hosts) != 2 {
		t.Errorf("hosts %v", r.Brokers())
	}
}

func TestBrokersAreMergedLikeTopics(t *testing.T) {
	tab := NewTable()
	a, b := host("a", "a:1", 1, 1, 4).Broker, host("b", "b:1", 1, 1, 4).Broker
	newer := a
	newer.Address, newer.Stamp.Epoch = "a:2", 2
	tab.Apply("n1", Update{Full: true, HasBrokers: true, Brokers: []Broker{b, a}})
	tab.Apply("n2", Update{Full: true, HasBrokers: true, Brokers: []Broker{newer}})
	if got := tab.Brokers(); !slices.Equal(got, []Broker{newer, b}) {
		t.Errorf("brokers %v", got)
	}
	tab.Apply("n1", Update{HasBrokers: true, Brokers: []Broker{newer}})
	if got := tab.Brokers(); !slices.Equal(got, []Broker{newer}) {
		t.Errorf("brokers %v", got)
	}
	if got := tab.Topics(); len(got) > 0 {
		t.Errorf("topics %v", got)
	}
}

// Who asked for everything is told of a topic's absence by its missing.
func TestServersAskedForEverythingTellAbsenceBySilence(t *testing.T) {
	tab := NewTable()
	a := host("a", "a:1", 1, 1, 4)
	all := func(ts ...Topic) Update {
		return Update{Full: true, HasBrokers: true, Brokers: []Broker{a.Broker}, Topics: ts}
	}
	tab.Apply("n1", all(topic(a)))
	tab.Apply("n2", all())
	if r, known := tab.Lookup("t"); known != Found || len(r.Hosts) != 1 {
		t.Errorf("t is %v at %v", known, r.Brokers())
	}
	if _, known := tab.Lookup("never"); known != Absent || tab.Pending("never") {
		t.Errorf("a topic nobody has is %v, pending %v", known, tab.Pending("never"))
	}
	if got := tab.Unreachable("n1"); !slices.Equal(got, []string{"t"}) {
		t.Errorf("changed %v", got)
	}
	if _, known := tab.Lookup("t"); known != Absent || len(tab.merged) > 1 {
		t.Errorf("t is %v, %d entries are kept", known, len(tab.merged))
	}
}

// Two clients that heard the same of all servers in another order have the same
// routes, whatever they saw on the way, once every server is ready.
func TestTablesAgreeOnceServersDo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		final := drawHosts(t)
		tables := []*Table{NewTable(), NewTable()}
		for _, tab := range tables {
			for range rapid.IntRange(0, 6).Draw(t, "steps") {
				n := rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "server")
				hosts := drawHosts(t)
				for i := range hosts { // nothing newer than what all agree on in the end
					hosts[i].Broker.Stamp = Stamp{1, 1}
				}
				switch rapid.IntRange(0, 2).Draw(t, "what") {
				case 0:
					tab.Unreachable(n)
				case 1:
					tab.Apply(n, Update{Full: true, Warming: true, Topics: []Topic{topic(hosts...)}})
				default:
					tab.Apply(n, Update{Full: rapid.Bool().Draw(t, "full"), Topics: []Topic{topic(hosts...)}})
				}
			}
		}
		for i := range final {
			final[i].Broker.Stamp = Stamp{2, 1}
		}
		for i, tab := range tables {
			order := []string{"n1", "n2"}
			if i == 1 {
				slices.Reverse(order)
			}
			for _, n := range order {
				tab.Apply(n, Update{Full: true, Topics: []Topic{topic(final...)}})
			}
			if r, _ := tab.Lookup("t"); !reflect.DeepEqual(slices.Concat(r.Hosts), slices.Concat(final)) {
				t.Fatalf("table %d has %+v, want %+v", i, r.Hosts, final)
			}
		}
	})
}

func TestNamesAreChecked(t *testing.T) {
	for _, good := range []string{"b", "broker-a.example_1", strings.Repeat("x", MaxNameLength)} {
		if err := CheckBroker(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a b", "a\n", "é", strings.Repeat("x", MaxNameLength+1)} {
		err := CheckBroker(bad)
		if err == nil || len(err.Error()) > 200 {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if err := CheckCluster(""); err != nil {
		t.Error(err)
	}
}

// Name servers, clients and brokers take the same names of brokers: they stand in
// queue names, file names and addresses of the cluster.
func TestNamesOfBrokersAreTheSameEverywhere(t *testing.T) {
	long := strings.Repeat("b", MaxNameLength)
	for name, ok := range map[string]bool{
		"broker-a": true, "B_1.example.com": true, "0": true, long: true,
		"": false, long + "b": false, "a/b": false, "a:b": false, "a b": false, "a;b": false, "a,b": false, "b\u00fc": false, "a\x00": false, "*": false, "<b>": false,
	} {
		if err := CheckBroker(name); (err == nil) != ok {
			t.Errorf("broker %q: %v", name, err)
		}
		if err := CheckCluster(name); (err == nil) != (ok || name == "") {
			t.Errorf("cluster %q: %v", name, err)
		}
	}
}
