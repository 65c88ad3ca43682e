package route

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/route"
)

// epoch is when tables of tests start.
func epoch() time.Time { return time.Unix(1_700_000_000, 0) }

func newTable(t interface{ Fatal(...any) }) *Table {
	tab, err := New(Config{Expiry: 10 * time.Second, MaxBrokers: 10, MaxTopics: 10}, epoch())
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// The stories in testdata/stories run one table through the life of a cluster.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		tab := newTable(t)
		now := epoch()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				fmt.Fprintln(&out, step(t, tab, &now, d, strings.Fields(line)))
			}
			if d.Input == "" {
				fmt.Fprintln(&out, step(t, tab, &now, d, nil))
			}
			return out.String()
		})
	})
}

// step runs one line of a story:
//
//	register: BROKER@ADDRESS EPOCH.VERSION stream=N [full] [leaving] [+TOPIC=QUEUES] [-TOPIC]
//	after: DURATION, which also expires
//	routes
func step(t *testing.T, tab *Table, now *time.Time, d *datadriven.TestData, f []string) string {
	t.Helper()
	switch d.Cmd {
	case "register":
		var m Register
		m.Entry.Name, m.Entry.Address, _ = strings.Cut(f[0], "@")
		scan(t, f[1], "%d.%d", &m.Entry.Stamp.Epoch, &m.Entry.Stamp.Version)
		scan(t, f[2], "stream=%d", &m.Stream)
		for _, w := range f[3:] {
			switch {
			case w == "full":
				m.Full = true
			case w == "leaving":
				m.Leaving = true
			case w[0] == '-':
				m.Removed = append(m.Removed, w[1:])
			default:
				name, n, _ := strings.Cut(w[1:], "=")
				c := route.Config{Topic: name, Readable: true, Writable: true}
				scan(t, n, "%d", &c.ReadQueues)
				c.WriteQueues = c.ReadQueues
				m.Topics = append(m.Topics, c)
			}
		}
		r, err := tab.Apply(*now, m)
		switch {
		case err != nil:
			return "error: " + err.Error()
		case r.NeedFull:
			return "need full"
		case r.SupersededBy > 0:
			return fmt.Sprintf("superseded by %d", r.SupersededBy)
		}
		return changes(r.Change)
	case "after":
		by, err := time.ParseDuration(f[0])
		if err != nil {
			t.Fatal(err)
		}
		*now = now.Add(by)
		return changes(tab.Expire(*now))
	case "routes":
		return strings.TrimSuffix(show(tab.Snapshot(*now)), "\n")
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func scan(t *testing.T, text, format string, into ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(text, format, into...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func changes(c Change) string {
	out := []string{"topics " + strings.Join(c.Topics, ",")}
	if len(c.Topics) == 0 {
		out[0] = "ok"
	}
	if c.Brokers {
		out = append(out, "brokers")
	}
	for _, b := range c.Expired {
		out = append(out, "expired "+b.Name)
	}
	return strings.Join(out, "; ")
}

func show(s Snapshot) string {
	var out strings.Builder
	fmt.Fprintf(&out, "index %d warming %v\n", s.Index, s.Warming)
	for _, b := range s.Brokers() {
		fmt.Fprintf(&out, "broker %s at %s, %v\n", b.Name, b.Address, b.Stamp)
	}
	for _, t := range s.All() {
		fmt.Fprintf(&out, "%s:", t.Name)
		for _, h := range t.Hosts {
			fmt.Fprintf(&out, " %s=%d", h.Broker.Name, h.Config.ReadQueues)
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

// A registration as drawn for the property below.
func drawRegister(t *rapid.T) Register {
	m := Register{
		Stream: rapid.Uint64Range(1, 4).Draw(t, "stream"),
		Full:   rapid.Bool().Draw(t, "full"), Leaving: rapid.IntRange(0, 9).Draw(t, "leaving") == 0,
	}
	m.Entry = route.Broker{
		Name:    rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "broker"),
		Address: rapid.SampledFrom([]string{"x:1", "y:1"}).Draw(t, "address"),
		Stamp:   route.Stamp{Epoch: rapid.Uint64Range(1, 3).Draw(t, "epoch"), Version: rapid.Uint64Range(1, 5).Draw(t, "version")},
	}
	for _, name := range []string{"t", "t1", "t10", "u"} {
		switch rapid.IntRange(0, 3).Draw(t, name) {
		case 0:
			m.Topics = append(m.Topics, route.Config{Topic: name, ReadQueues: rapid.Int32Range(1, 3).Draw(t, "queues")})
		case 1:
			if !m.Full {
				m.Removed = append(m.Removed, name)
			}
		}
	}
	return m
}

// Whoever applies the named changes to a copy has the tables, with every way to
// read them; a broker is only ever shown with all that its last full word and
// the deltas after it said.
func TestChangesNameEveryDifference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tab := newTable(t)
		now := epoch()
		copied := map[string]route.Topic{}
		model := map[string]map[string]route.Config{} // broker -> topic -> config
		var before []route.Broker
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			var change Change
			if rapid.IntRange(0, 9).Draw(t, "expire") == 0 {
				now = now.Add(time.Duration(rapid.IntRange(1, 12).Draw(t, "seconds")) * time.Second)
				change = tab.Expire(now)
				for _, b := range change.Expired {
					delete(model, b.Name)
				}
			} else {
				m := drawRegister(t)
				r, err := tab.Apply(now, m)
				if err != nil {
					t.Fatal(err)
				}
				change = r.Change
				switch {
				case r.NeedFull || r.SupersededBy > 0:
					if !change.empty() {
						t.Fatalf("refused and changed %+v", change)
					}
				case m.Leaving:
					if change.Brokers {
						delete(model, m.Entry.Name)
					}
				default:
					if m.Full {
						model[m.Entry.Name] = map[string]route.Config{}
					}
					for _, c := range m.Topics {
						model[m.Entry.Name][c.Topic] = c
					}
					for _, name := range m.Removed {
						delete(model[m.Entry.Name], name)
					}
				}
			}
			snap := tab.Snapshot(now)
			for _, name := range change.Topics {
				copied[name] = snap.Topic(name)
				if len(copied[name].Hosts) == 0 {
					delete(copied, name)
				}
			}
			all := snap.All()
			if len(all) != len(copied) {
				t.Fatalf("%d topics, the copy has %d", len(all), len(copied))
			}
			hosts, topics := map[string]map[string]route.Config{}, map[string]bool{}
			for _, r := range all {
				if !r.Equal(copied[r.Name]) || !reflect.DeepEqual(r, snap.Topic(r.Name)) {
					t.Fatalf("route %+v, copy %+v, alone %+v", r, copied[r.Name], snap.Topic(r.Name))
				}
				topics[r.Name] = true
				for _, h := range r.Hosts {
					if hosts[h.Broker.Name] == nil {
						hosts[h.Broker.Name] = map[string]route.Config{}
					}
					hosts[h.Broker.Name][r.Name] = h.Config
				}
			}
			for b, want := range model {
				if len(want) > 0 && !reflect.DeepEqual(hosts[b], want) {
					t.Fatalf("broker %s hosts %v, said %v", b, hosts[b], want)
				}
			}
			brokers, n := tab.Counts()
			if brokers != len(model) || n != len(topics) || len(snap.Brokers()) != len(model) {
				t.Fatalf("counts %d brokers %d topics, want %d and %d", brokers, n, len(model), len(topics))
			}
			if !change.Brokers && !slices.EqualFunc(before, snap.Brokers(), func(a, b route.Broker) bool {
				a.Stamp.Version, b.Stamp.Version = 0, 0
				return a == b
			}) {
				t.Fatalf("brokers changed from %v to %v without a word", before, snap.Brokers())
			}
			before = snap.Brokers()
		}
	})
}

func TestSnapshotDoesNotChange(t *testing.T) {
	tab := newTable(t)
	entry := route.Broker{Name: "b", Address: "b:1", Stamp: route.Stamp{Epoch: 1, Version: 1}}
	apply := func(m Register) {
		t.Helper()
		if r, err := tab.Apply(epoch(), m); err != nil || r.NeedFull {
			t.Fatal(r, err)
		}
	}
	apply(Register{Stream: 1, Entry: entry, Full: true, Topics: []route.Config{{Topic: "t", ReadQueues: 1}}})
	snap := tab.Snapshot(epoch())
	before := show(snap)
	entry.Stamp.Version = 2
	apply(Register{Stream: 1, Entry: entry, Topics: []route.Config{{Topic: "t", ReadQueues: 9}, {Topic: "u", ReadQueues: 1}}})
	if show(snap) != before {
		t.Errorf("snapshot changed from\n%s to\n%s", before, show(snap))
	}
	if show(tab.Snapshot(epoch())) == before {
		t.Error("the table did not change")
	}
}

func TestLimitsAreErrorsAndChangeNothing(t *testing.T) {
	tab := newTable(t)
	var topics []route.Config
	for i := range 11 {
		topics = append(topics, route.Config{Topic: fmt.Sprint("t", i), ReadQueues: 1})
	}
	entry := func(i int) route.Broker {
		return route.Broker{Name: fmt.Sprint("b", i), Address: "b:1", Stamp: route.Stamp{Epoch: 1, Version: 1}}
	}
	_, err := tab.Apply(epoch(), Register{Stream: 1, Entry: entry(0), Full: true, Topics: topics})
	if limit, ok := errors.AsType[*ErrLimit](err); !ok || limit.What != "topics" {
		t.Errorf("11 topics: %v", err)
	}
	for i := range 10 { // all host the same ten
		if _, err := tab.Apply(epoch(), Register{Stream: 1, Entry: entry(i), Full: true, Topics: topics[:10]}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = tab.Apply(epoch(), Register{Stream: 1, Entry: entry(10), Full: true})
	if limit, ok := errors.AsType[*ErrLimit](err); !ok || limit.What != "brokers" {
		t.Errorf("11 brokers: %v", err)
	}
	if brokers, n := tab.Counts(); brokers != 10 || n != 10 {
		t.Errorf("%d brokers, %d topics", brokers, n)
	}
}

func TestPostponeGivesEveryBrokerAnotherExpiry(t *testing.T) {
	tab := newTable(t)
	if _, err := tab.Apply(epoch(), Register{Stream: 1, Full: true, Entry: route.Broker{Name: "b", Address: "b:1", Stamp: route.Stamp{Epoch: 1}}}); err != nil {
		t.Fatal(err)
	}
	late := epoch().Add(time.Hour)
	if due := tab.Wake(late); !due.Equal(epoch().Add(10 * time.Second)) {
		t.Errorf("due at %v", due)
	}
	tab.Postpone(late)
	if c := tab.Expire(late.Add(9 * time.Second)); len(c.Expired) > 0 {
		t.Errorf("expired %v", c.Expired)
	}
	if c := tab.Expire(late.Add(10 * time.Second)); len(c.Expired) != 1 {
		t.Errorf("expired %v", c.Expired)
	}
}

func BenchmarkDeltaAmong5000Topics(b *testing.B) {
	tab, err := New(Config{Expiry: time.Hour, MaxBrokers: 10, MaxTopics: 10_000}, epoch())
	if err != nil {
		b.Fatal(err)
	}
	m := Register{Stream: 1, Full: true, Entry: route.Broker{Name: "b", Address: "b:1", Stamp: route.Stamp{Epoch: 1}}}
	for i := range 5000 {
		m.Topics = append(m.Topics, route.Config{Topic: fmt.Sprint("topic-", i), ReadQueues: 4})
	}
	if _, err := tab.Apply(epoch(), m); err != nil {
		b.Fatal(err)
	}
	m.Full = false
	i := int32(0)
	for b.Loop() {
		i++
		m.Topics = []route.Config{{Topic: fmt.Sprint("topic-", i%5000), ReadQueues: 4 + i}}
		m.Entry.Stamp.Version++
		if r, err := tab.Apply(epoch(), m); err != nil || len(r.Topics) != 1 {
			b.Fatal(r, err)
		}
	}
}
