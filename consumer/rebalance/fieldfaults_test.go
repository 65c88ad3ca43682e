package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func on(topics ...string) []session.Subscription {
	var out []session.Subscription
	for _, t := range topics {
		out = append(out, session.Subscription{Topic: t, Filter: "*"})
	}
	return out
}

func subscribed(topics ...string) func(*Config) {
	return func(c *Config) { c.Subscriptions = on(topics...) }
}

func (m *toyMember) count(topic string) int {
	n := 0
	for q := range m.owns {
		if q.Topic == topic {
			n++
		}
	}
	return n
}

// A topic that a running member drops is shared among those that still
// subscribe to it, at once.
func TestF_OWN_01_UnsubscribedTopicMovesToOthers(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 4}, "other": {"b1": 2}})
	c1, c2 := c.join("c1", subscribed("other", "t")), c.join("c2", subscribed("other", "t"))
	c.run(time.Second)
	c.settled()
	if c1.count("t") != 2 || c2.count("t") != 2 {
		t.Fatalf("settled at %d + %d", c1.count("t"), c2.count("t"))
	}
	c.step(c1, SetSubscriptions{on("other")})
	c.run(200 * time.Millisecond)
	c.settled()
	if c1.count("t") != 0 || c2.count("t") != 4 || c1.count("other") != 1 {
		t.Errorf("c1 has %d, c2 has %d, c1 has %d of the topic it kept", c1.count("t"), c2.count("t"), c1.count("other"))
	}
}

// A topic's queues are shared over the brokers that host it and no others, after
// every change of members.
func TestF_OWN_02_OnlyBrokersOfTheTopicCount(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"x": {"b1": 3, "b2": 3}, "t": {"b3": 16, "b4": 16}})
	for _, id := range ids(3) {
		c.join(id, subscribed("t"))
	}
	c.topics = map[string]map[string]int{"t": {"b3": 16, "b4": 16}} // all that these subscribe to
	for i := range 5 {
		c.run(time.Second)
		if n := len(c.settled()); n != 32 {
			t.Fatalf("%d queues are shared out", n)
		}
		for _, m := range c.sorted() {
			if m.stream["b1"] != 0 || m.stream["b2"] != 0 {
				t.Fatalf("%s has a session to a broker without the topic", m.id)
			}
		}
		c.step(c.members[fmt.Sprintf("c%02d", i)], Leave{})
		c.run(time.Second)
		c.settled()
		c.join(fmt.Sprintf("c%02d", i+3), subscribed("t"))
	}
}

// A member that subscribes to a topic before it exists consumes it as soon as it
// does, whenever that is.
func TestF_OWN_04_TopicCreatedAfterSubscribingIsConsumed(t *testing.T) {
	for after := time.Duration(0); after <= time.Second; after += 50 * time.Millisecond {
		c := newCluster(t, map[string]map[string]int{"other": {"b1": 1}})
		m := c.join("c1", subscribed("other", "t"))
		c.run(after)
		c.topics["t"] = map[string]int{"b1": 4}
		c.reroute()
		c.run(100 * time.Millisecond)
		if m.count("t") != 4 {
			t.Errorf("created after %v: %d of 4 queues are owned", after, m.count("t"))
		}
	}
}

// A strategy that panics for one topic leaves that topic's share as it was and
// touches no other; it is tried again at every tick, and said each time.
func TestF_OWN_07_PanicOfAStrategyCostsItsTopicOnly(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"a": {"b1": 4}, "b": {"b1": 4}})
	custom := func(cfg *Config) { cfg.Strategies = []allocate.Strategy{panicking{"a"}} }
	c1 := c.join("c1", custom)
	c.run(time.Second)
	c2 := c.join("c2", custom)
	c.run(time.Minute)
	if c1.count("a") != 4 || c1.count("b") != 2 || c2.count("b") != 2 {
		t.Errorf("c1 has %d of a and %d of b, c2 %d of b", c1.count("a"), c1.count("b"), c2.count("b"))
	}
	said := 0
	for _, p := range c1.passes {
		if p.Err != nil && strings.Contains(p.Err.Error(), "panicked") {
			said++
		}
	}
	if said < 3 {
		t.Errorf("the fault was said %d times in a minute", said)
	}
}

// Each topic is shared among the members that subscribe to it.
func TestF_SUB_01_TopicsAreSharedAmongTheirSubscribers(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"a": {"b1": 4}, "b": {"b1": 4}})
	c1, c2 := c.join("c1", subscribed("a")), c.join("c2", subscribed("b"))
	c.run(time.Second)
	c.settled()
	if c1.count("a") != 4 || c2.count("b") != 4 {
		t.Errorf("c1 has %d of a, c2 has %d of b", c1.count("a"), c2.count("b"))
	}
}

// A member whose filter differs from its group's is told so and owns nothing: no
// message is skipped silently.
func TestF_SUB_02_FilterMismatchEndsTheMember(t *testing.T) {
	e, err := New(Config{Group: "g", ClientID: "c2", Subscriptions: []session.Subscription{{Topic: "t", Filter: "y"}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e.Step(now, Routes{[]Topic{{Name: "t", Brokers: []string{"b1"}}}})
	hello, ok := sent[session.Hello](e.Step(now, Connected{"b1"}))
	if !ok || hello.Subscriptions[0].Filter != "y" {
		t.Fatalf("the hello is %+v", hello)
	}
	out := e.Step(now, Received{"b1", session.Refused{Reason: session.ReasonFilterMismatch, Text: `topic "t" is filtered by "x" in this group`}})
	failed, ok := out[len(out)-1].(Failed)
	if !ok || failed.Reason != session.ReasonFilterMismatch || failed.Text == "" || failed.Broker != "b1" {
		t.Errorf("the last effect is %#v", out[len(out)-1])
	}
}

func sent[F session.ToBroker](effects []Effect) (f F, ok bool) {
	for _, eff := range effects {
		if s, isSend := eff.(Send); isSend {
			if f, ok = s.Frame.(F); ok {
				return f, true
			}
		}
	}
	return f, false
}

// Running members share out queues that are added to a topic.
func TestF_RTE_02_AddedQueuesAreShared(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 4}})
	c.join("c1", nil)
	c.join("c2", nil)
	c.run(time.Second)
	before := c.settled()
	c.topics["t"]["b1"] = 12
	c.reroute()
	c.run(200 * time.Millisecond)
	after := c.settled()
	if n := allocate.Moves(before, after); n != 0 {
		t.Errorf("growing moved %d queues", n)
	}
}

// Each member computes anew after its own notice, whenever it comes: growth with
// staggered notices settles, and no queue stays unread.
func TestF_RTE_06_StaggeredGrowthSettles(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 1}})
	for _, id := range ids(3) {
		c.join(id, nil)
	}
	c.run(time.Second)
	c.settled()
	c.topics["t"] = map[string]int{"b1": 3, "b2": 3}
	c.broker("b2")
	for _, m := range c.sorted() {
		c.step(m, Routes{[]Topic{c.route("t")}})
		c.run(300 * time.Millisecond)
	}
	c.brokers["b1"].changed("t")
	c.run(300 * time.Millisecond)
	c.brokers["b2"].changed("t")
	c.run(time.Second)
	c.settled()
}

// However fast a queue is taken away and given back, a member has it once, and
// asks for it only when its last request was answered.
func TestF_HND_01_FastJoinsAndLeavesKeepOneOwner(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 2, "b2": 2}})
	c.join("c00", nil)
	c.run(time.Second)
	for i := range 100 {
		m := c.join(fmt.Sprintf("d%02d", i), nil)
		for range 3 {
			c.run(100 * time.Millisecond)
			c.owners()
		}
		c.step(m, Leave{})
		for range 3 {
			c.run(100 * time.Millisecond)
			c.owners()
		}
		if !m.left {
			t.Fatalf("%s did not leave", m.id)
		}
	}
	c.settled()
}

// A queue that moves is dispatched by its new owner only after the old one has
// stopped, and from where that one stopped.
func TestF_HND_02_NewOwnerBeginsWhereTheOldOneStopped(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 4}})
	c.drain = 300 * time.Millisecond
	c1 := c.join("c1", nil)
	c.run(time.Second)
	for q := range c1.owns {
		c1.at[q] = 500 + int64(q.ID)
	}
	c2 := c.join("c2", nil)
	c.run(200 * time.Millisecond)
	if len(c2.owns) != 0 || len(c1.owns) != 4 {
		t.Fatalf("while handlers run c1 has %d, c2 has %d", len(c1.owns), len(c2.owns))
	}
	c.run(time.Second)
	c.settled()
	for q := range c2.owns {
		if c2.at[q] != 500+int64(q.ID) {
			t.Errorf("%v begins at %d", q, c2.at[q])
		}
	}
}

// A former owner stops one session timeout after the last heartbeat that was
// answered, whatever it has heard of its successor, and a late grant is void.
func TestF_HND_06_FormerOwnerStopsByItsOwnClock(t *testing.T) {
	v := bigView(10, 100)
	e, now := settledEngine(t, v, 0)
	held := v.Members[0].Owned
	until := now.Add(DefaultSessionTimeout)
	q := held[0].Queue
	out := e.Step(until, Received{q.Broker, session.Granted{Grants: []session.Grant{{Queue: q, Epoch: session.Epoch{Broker: 9, Counter: 9}}}}})
	lost := 0
	for _, eff := range out {
		switch eff.(type) {
		case Lose:
			lost++
		case Assign:
			t.Errorf("%v after the session ran out", eff)
		default:
		}
	}
	if lost != len(held) {
		t.Errorf("%d of %d queues are lost", lost, len(held))
	}
}

// Progress belongs to a queue: a member that gains one begins at that queue's
// offset, whatever it has read of others.
func TestF_HND_08_EachQueueBeginsAtItsOwnOffset(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 4}})
	c1, c2 := c.join("c1", nil), c.join("c2", nil)
	c.run(time.Second)
	c.settled()
	want := map[allocate.Queue]int64{}
	for _, m := range []*toyMember{c1, c2} {
		for q := range m.owns {
			m.at[q] = []int64{1000, 700, 300, 10}[q.ID]
			want[q] = m.at[q]
		}
	}
	c.step(c2, Leave{})
	c.run(time.Second)
	c.settled()
	for q, at := range want {
		if c1.at[q] != at {
			t.Errorf("%v goes on at %d, not %d", q, c1.at[q], at)
		}
	}
}

// A member whose handlers make no progress gives its queues up though its
// heartbeats go on, and takes part again when it recovers.
func TestF_MEM_03_StalledMemberGivesItsQueuesUp(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"t": {"b1": 4}})
	c1, c2 := c.join("c1", nil), c.join("c2", nil)
	c.run(time.Second)
	c.settled()
	c.step(c1, Stalled{})
	c.run(30 * time.Second)
	c.settled()
	if len(c1.owns) != 0 || len(c2.owns) != 4 || c1.stream["b1"] == 0 {
		t.Fatalf("c1 has %d and its session %v, c2 has %d", len(c1.owns), c1.stream["b1"] != 0, len(c2.owns))
	}
	c.step(c1, Recovered{})
	c.run(time.Second)
	c.settled()
	if len(c1.owns) != 2 {
		t.Errorf("c1 has %d queues after it recovered", len(c1.owns))
	}
}

// A changed subscription takes effect whatever the member's clock says: nothing in
// it is versioned by time.
func TestF_STO_04_SubscriptionCountsAfterTheClockStepsBack(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	start := func(now time.Time, random uint64) *Engine {
		e, err := New(Config{
			Group: "g", ClientID: "c1", Incarnation: session.Incarnation{Counter: 1, Random: random},
			Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		e.Step(now, Routes{[]Topic{{Name: "a", Brokers: []string{"b1"}}, {Name: "b", Brokers: []string{"b1"}}}})
		e.Step(now, Connected{"b1"})
		e.Step(now, Received{"b1", session.Welcome{Broker: "b1", BrokerEpoch: 1, SessionTimeout: 10 * time.Second}})
		return e
	}
	both := []session.Subscription{{Topic: "a", Filter: "*"}, {Topic: "b", Filter: "*"}}
	e := start(now, 2)
	f, ok := sent[session.Subscribe](e.Step(now.Add(-time.Hour), SetSubscriptions{both}))
	if !ok || !slices.Equal(f.Subscriptions, both) {
		t.Errorf("the broker is told %+v", f)
	}
	// Started again with the clock back, under a smaller random number too.
	e = start(now.Add(-2*time.Hour), 1)
	f, ok = sent[session.Subscribe](e.Step(now.Add(-2*time.Hour), SetSubscriptions{both}))
	if !ok || !slices.Equal(f.Subscriptions, both) {
		t.Errorf("after a restart the broker is told %+v", f)
	}
}
