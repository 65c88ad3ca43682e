package admin

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDeadBrokerIsReportedAndTheOthersAnswer(t *testing.T) {
	f := newFakeCluster(t, true)
	brokers, failures, err := f.Brokers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := values(brokers, func(b Broker) string { return fmt.Sprint(b.Name, b.Reachable, b.Epoch) })
	if want := []string{"atrue 7", "btrue 7", "cfalse 5"}; !slices.Equal(got, want) {
		t.Errorf("brokers %v, want %v", got, want)
	}
	if len(failures) != 1 || failures[0].Server != "c" || failures[0].Reason != "connection refused" || brokers[2].Error != "connection refused" {
		t.Errorf("failures %v, broker %+v", failures, brokers[2])
	}
}

func TestSilentBrokerCostsTheTimeoutAndNoMore(t *testing.T) {
	f := newFakeCluster(t, false)
	f.b.hang = true
	c, err := Open(Config{NameServers: f.cfg.NameServers, Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	brokers, failures, err := c.Brokers(t.Context())
	if err != nil || !brokers[0].Reachable || brokers[1].Reachable {
		t.Fatalf("brokers %+v, error %v", brokers, err)
	}
	if len(failures) != 1 || failures[0].Reason != "no answer in time" {
		t.Errorf("failures %v", failures)
	}
}

func TestNameServersThatAnswerAreMergedAndTheOthersNamed(t *testing.T) {
	f := newFakeCluster(t, false)
	dead := deadAddress(t)
	older := &fakeNameServer{answer: &tacitv1.GetRoutesResponse{Warming: true, Brokers: []*tacitv1.BrokerEntry{
		{Broker: "a", Address: "127.0.0.1:1", BrokerEpoch: 4, ConfigVersion: 9},
	}}}
	behind := serve(t, func(s *grpc.Server) { tacitv1.RegisterNameServerServiceServer(s, older) })
	c, err := Open(Config{NameServers: append(slices.Clone(f.cfg.NameServers), dead, behind)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cl, err := c.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if a, _ := cl.Broker("a"); a.Stamp.Epoch != 5 || len(cl.Brokers) != 2 || cl.Warming {
		t.Errorf("cluster %+v", cl)
	}
	if len(cl.Failures) != 1 || cl.Failures[0].String() != dead+": connection refused" {
		t.Errorf("failures %v", cl.Failures)
	}
}

func TestNoNameServerIsAnErrorThatSaysWhy(t *testing.T) {
	dead := deadAddress(t)
	c, err := Open(Config{NameServers: []string{dead}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Cluster(t.Context())
	if !errors.Is(err, rpcerr.ErrUnreachable) || err.Error() != "no name server answers: "+dead+": connection refused" {
		t.Errorf("error %v", err)
	}
}

func TestWrongPortIsSaid(t *testing.T) {
	f := newFakeCluster(t, false)
	broker := f.ns.answer.GetBrokers()[0].GetAddress()
	c, err := Open(Config{NameServers: []string{broker}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err = c.Cluster(t.Context()); err == nil || !strings.Contains(err.Error(), "is it the right port?") {
		t.Errorf("error %v", err)
	}
}

func TestSettingsAreChecked(t *testing.T) {
	for _, cfg := range []Config{{}, {NameServers: []string{"nohost"}}, {NameServers: []string{"a:1"}, Timeout: -1}} {
		if _, err := Open(cfg); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

func TestTopicSumsItsBrokersAndListsQueuesOfADeadOne(t *testing.T) {
	f := newFakeCluster(t, true)
	topics, failures, err := f.Topics(t.Context(), "orders")
	if err != nil || len(topics) != 1 {
		t.Fatalf("topics %v, error %v", topics, err)
	}
	o := topics[0]
	if o.ReadQueues != 6 || o.WriteQueues != 6 || o.Messages != 2*(9+4) || len(o.Queues) != 6 {
		t.Errorf("topic %+v", o)
	}
	if last := o.Queues[5]; last.Broker != "c" || last.Max != nil || o.Hosts[2].Error == "" || len(failures) != 1 {
		t.Errorf("queue of the dead broker %+v, host %+v, failures %v", last, o.Hosts[2], failures)
	}
	if _, _, err := f.Topics(t.Context(), "absent"); !errors.Is(err, rpcerr.ErrTopicNotFound) {
		t.Errorf("absent topic: %v", err)
	}
}

func TestSpreadIsEvenAndKeepsExtrasWhereTheyAre(t *testing.T) {
	got := Spread(7, map[string]int32{"a": 2, "b": 3, "c": 2})
	if want := map[string]int32{"a": 2, "b": 3, "c": 2}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("spread %v, want %v", got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		present := rapid.MapOfN(rapid.StringMatching(`[a-z]{1,3}`), rapid.Int32Range(0, 50), 1, 9).Draw(t, "present")
		total := rapid.Int32Range(0, 500).Draw(t, "total")
		got := Spread(total, present)
		var sum int32
		low, high := int32(math.MaxInt32), int32(0)
		for _, n := range got {
			sum += n
			low, high = min(low, n), max(high, n)
		}
		if sum != total || high-low > 1 || len(got) != len(present) {
			t.Fatalf("Spread(%d, %v) = %v", total, present, got)
		}
		if again := Spread(total, got); fmt.Sprint(again) != fmt.Sprint(got) {
			t.Fatalf("spread of a spread: %v, then %v", got, again)
		}
	})
}

func TestNewTopicIsSpreadOverAllBrokers(t *testing.T) {
	f := newFakeCluster(t, false)
	changes, err := f.CreateTopic(t.Context(), "new", TopicChange{Queues: new(int32(5))})
	if err != nil {
		t.Fatal(err)
	}
	got := values(changes, func(c HostChange) string {
		return fmt.Sprint(c.Broker, c.ReadQueues, c.WriteQueues, c.Readable, c.Writable)
	})
	if want := []string{"a3 3 true true", "b2 2 true true"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
	if _, err := f.CreateTopic(t.Context(), "orders", TopicChange{Queues: new(int32(5))}); !errors.Is(err, rpcerr.ErrTopicExists) {
		t.Errorf("existing topic: %v", err)
	}
	if _, err := f.CreateTopic(t.Context(), "x", TopicChange{Queues: new(int32(0))}); !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("no queues: %v", err)
	}
	if _, err := f.CreateTopic(t.Context(), "x", TopicChange{Queues: new(int32(1)), Brokers: []string{"z"}}); !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("unknown broker: %v", err)
	}
}

func TestQueuesGoInTwoStepsAndStayPendingWhileUnread(t *testing.T) {
	f := newFakeCluster(t, false)
	f.a.backlog = true
	changes, err := f.AlterTopic(t.Context(), "orders", TopicChange{Queues: new(int32(2))})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := changes[0], changes[1]; a.Pending == "" || a.ReadQueues != 2 || a.WriteQueues != 1 || b.Pending != "" || b.ReadQueues != 1 || b.Before != 2 {
		t.Errorf("changes %+v", changes)
	}
	steps := values(f.b.puts, func(r *tacitv1.PutTopicRequest) string {
		return fmt.Sprint(r.GetConfig().GetReadQueues(), "/", r.GetConfig().GetWriteQueues())
	})
	if want := []string{"2/1", "1/1"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if _, err := f.AlterTopic(t.Context(), "orders", TopicChange{Queues: new(int32(1))}); !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("fewer queues than brokers: %v", err)
	}
	f.a.backlog = false
	if changes, err = f.AlterTopic(t.Context(), "orders", TopicChange{Writable: new(false)}); err != nil || changes[0].Writable || changes[0].ReadQueues != 2 {
		t.Errorf("permissions alone: %+v, %v", changes, err)
	}
}

// The lag view lists all queues, with an owner or without, and no lag is negative.
func TestF_RTE_06_LagViewListsQueuesWithoutOwner(t *testing.T) {
	f := newFakeCluster(t, true)
	f.a.groups["g"] = describe("a", []string{"1"}, lease("a", 0, "1", 4), lease("a", 1, "", -1))
	f.b.groups["g"] = describe("b", []string{"1"}, lease("b", 0, "1", 99), lease("b", 1, "1", 0))
	g, failures, err := f.DescribeGroup(t.Context(), "g")
	if err != nil || len(failures) != 1 {
		t.Fatalf("failures %v, error %v", failures, err)
	}
	got := values(g.Queues, func(q GroupQueue) string {
		lag := "?"
		if q.Lag != nil {
			lag = fmt.Sprint(*q.Lag)
		}
		return fmt.Sprintf("%s/%d %s %s", q.Broker, q.ID, q.Owner, lag)
	})
	want := []string{
		"a/0 1 6",
		"a/1  9",           // no owner, never committed, but the group has begun: all of it is to be read
		"b/0 1 0",          // committed past the end
		"b/1 1 9",          // committed below what is still stored
		"c/0  ?", "c/1  ?", // the broker is dead
	}
	if !slices.Equal(got, want) {
		t.Errorf("queues\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if g.Lag() != 24 || len(g.Members) != 1 || len(g.Members[0].Queues) != 3 || len(g.Members[0].Brokers) != 2 || g.Members[0].Host != "10.0.0.1" {
		t.Errorf("lag %d, members %+v", g.Lag(), g.Members)
	}
}

func TestLagOfAGroupThatNeverCommittedIsNotGuessed(t *testing.T) {
	f := newFakeCluster(t, false)
	f.a.groups["g"] = describe("a", []string{"1"}, lease("a", 0, "1", -1))
	g, _, err := f.DescribeGroup(t.Context(), "g")
	if err != nil || g.Queues[0].Lag != nil || g.Queues[0].Committed != nil {
		t.Errorf("%+v, %v", g, err)
	}
	if most := g.Queues[0].LagAtMost; most == nil || *most != 9 {
		t.Errorf("queue %+v", g.Queues[0])
	}
	if most := g.LagAtMost(); g.Lag() != 0 || most == nil || *most != 9 {
		t.Errorf("lag %d, at most %v", g.Lag(), most)
	}
	f.a.groups["g"] = describe("a", []string{"1"}, lease("a", 0, "1", 4))
	if g, _, err = f.DescribeGroup(t.Context(), "g"); err != nil || g.Lag() != 6 || g.LagAtMost() != nil {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestStateIsThatOfTheViewInUse(t *testing.T) {
	rank := session.RankBrokers("g", "orders", []string{"a", "b"})
	for _, c := range []struct {
		name            string
		first, second   func(*tacitv1.DescribeGroupResponse) *tacitv1.DescribeGroupResponse
		state           State
		fromFirst, none bool
	}{
		{name: "settled", first: viewOf(false, true), second: viewOf(false, false), state: Settled, fromFirst: true},
		{name: "changing", first: viewOf(false, false), second: viewOf(false, true), state: Changing, fromFirst: true},
		{name: "warming, the next in rank serves", first: viewOf(true, false), second: viewOf(false, true), state: Settled},
		{name: "all warming", first: viewOf(true, false), second: viewOf(true, false), state: Warming, none: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeCluster(t, false)
			by := map[string]*fakeBroker{"a": f.a, "b": f.b}
			by[rank[0]].groups["g"] = c.first(describe(rank[0], []string{"1"}, lease(rank[0], 0, "1", 1)))
			by[rank[1]].groups["g"] = c.second(describe(rank[1], []string{"1"}, lease(rank[1], 0, "1", 1)))
			g, _, err := f.DescribeGroup(t.Context(), "g")
			if err != nil || g.State != c.state {
				t.Fatalf("state %v, error %v", g, err)
			}
			want := rank[1]
			if c.fromFirst {
				want = rank[0]
			}
			if c.none {
				want = ""
			}
			if g.Topics[0].ViewBroker != want || g.Topics[0].Members != 1 {
				t.Errorf("topic %+v, want view of %q", g.Topics[0], want)
			}
		})
	}
}

// A broadcasting group shares nothing: it is settled as long as it has members, and
// what brokers have stored for it says nothing of its members' progress.
func TestBroadcastingGroupIsSettledAndItsLagIsNotGuessed(t *testing.T) {
	for _, withDead := range []bool{false, true} {
		f := newFakeCluster(t, withDead)
		for name, b := range map[string]*fakeBroker{"a": f.a, "b": f.b} {
			b.groups["g"] = describe(name, []string{"1", "2"}, lease(name, 0, "", -1), lease(name, 1, "", 4))
			b.groups["g"].Mode = tacitv1.HandOver_HAND_OVER_BROADCASTING
		}
		g, _, err := f.DescribeGroup(t.Context(), "g")
		if err != nil || g.State != Settled || g.Topics[0].State != Settled || !g.Broadcasting() {
			t.Fatalf("%+v, %v", g, err)
		}
		if g.Lag() != 0 || g.LagAtMost() != nil || slices.ContainsFunc(g.Queues, func(q GroupQueue) bool { return q.Lag != nil || q.LagAtMost != nil }) {
			t.Errorf("lag %d of at most %v, queues %+v", g.Lag(), g.LagAtMost(), g.Queues)
		}
		if len(g.Queues) < 4 || len(g.Members[0].Queues) != len(g.Queues) || len(g.Members[1].Queues) != len(g.Queues) {
			t.Errorf("members %+v: want each to have all of %+v", g.Members, g.Queues)
		}
		if down := g.Down(); slices.Contains(down, "c") != withDead || len(down) > 1 {
			t.Errorf("down %v", down)
		}
	}
}

// A group may be settled while a broker of its topics is down: which one is said
// with the state, for its queues stand still.
func TestBrokersThatAreDownAreSaidWithTheState(t *testing.T) {
	f := newFakeCluster(t, true)
	for name, b := range map[string]*fakeBroker{"a": f.a, "b": f.b} {
		b.groups["g"] = view(describe(name, []string{"1"}, lease(name, 0, "1", 4), lease(name, 1, "1", 4)), false, true, "1")
	}
	g, _, err := f.DescribeGroup(t.Context(), "g")
	if err != nil || !slices.Equal(g.Topics[0].Down, []string{"c"}) || !slices.Equal(g.Down(), []string{"c"}) {
		t.Fatalf("%+v, %v", g, err)
	}
	if all, _, err := f.Groups(t.Context()); err != nil || len(all) != 1 || !slices.Equal(all[0].Down(), []string{"c"}) {
		t.Errorf("%+v, %v", all, err)
	}
}

func viewOf(warming, settled bool) func(*tacitv1.DescribeGroupResponse) *tacitv1.DescribeGroupResponse {
	return func(r *tacitv1.DescribeGroupResponse) *tacitv1.DescribeGroupResponse {
		return view(r, warming, settled, "1")
	}
}

func TestGroupsListsWhatAnyBrokerKnows(t *testing.T) {
	f := newFakeCluster(t, false)
	f.a.groups["g"] = describe("a", nil, lease("a", 0, "", 4))
	f.b.groups["h"] = describe("b", []string{"1"}, lease("b", 0, "1", 4))
	groups, failures, err := f.Groups(t.Context())
	if err != nil || len(failures) != 0 {
		t.Fatal(failures, err)
	}
	got := values(groups, func(g Group) string { return fmt.Sprint(g.Name, " ", g.State, " ", len(g.Members)) })
	if want := []string{"g empty 0", "h changing 1"}; !slices.Equal(got, want) {
		t.Errorf("groups %q, want %q", got, want)
	}
	if _, _, err := f.DescribeGroup(t.Context(), "nobody"); !errors.Is(err, rpcerr.ErrGroupNotFound) {
		t.Errorf("absent group: %v", err)
	}
}

func TestResetPreviewsEveryQueueAndChangesNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		reset Reset
		want  []string
	}{
		{"earliest", Reset{Kind: ToEarliest}, []string{"a/0 4>1", "a/1 ->1", "b/0 ->1", "b/1 ->1"}},
		{"latest", Reset{Kind: ToLatest}, []string{"a/0 4>10", "a/1 ->5", "b/0 ->10", "b/1 ->5"}},
		{"offset", Reset{Kind: ToOffset, Offset: 7}, []string{"a/0 4>7", "a/1 ->5!", "b/0 ->7", "b/1 ->5!"}},
		{"time", Reset{Kind: ToTime, Time: time.Unix(1, 0)}, []string{"a/0 4>2", "a/1 ->2", "b/0 ->3", "b/1 ->3"}},
		{"shift over all", Reset{Kind: ByShift, Shift: math.MaxInt64}, []string{"a/0 4>10!", "a/1 ->5!", "b/0 ->10!", "b/1 ->5!"}},
		{"shift", Reset{Kind: ByShift, Shift: -2}, []string{"a/0 4>2", "a/1 ->3", "b/0 ->8", "b/1 ->3"}},
		{"one broker", Reset{Kind: ToEarliest, Brokers: []string{"b"}, IDs: []int32{1}}, []string{"b/1 ->1"}},
		{"topic named", Reset{Kind: ToEarliest, Topics: []string{"orders"}, IDs: []int32{0}}, []string{"a/0 4>1", "b/0 ->1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeCluster(t, false)
			f.a.groups["g"] = describe("a", []string{"1"}, lease("a", 0, "1", 4))
			f.a.offset, f.b.offset = 2, 3
			c.reset.Group = "g"
			changes, failures, err := f.ResetOffsets(t.Context(), c.reset)
			if err != nil || len(failures) != 0 {
				t.Fatal(failures, err)
			}
			got := values(changes, func(ch OffsetChange) string {
				before, mark := "-", ""
				if ch.Before != nil {
					before = fmt.Sprint(*ch.Before)
				}
				if ch.Clamped {
					mark = "!"
				}
				return fmt.Sprintf("%s/%d %s>%d%s", ch.Broker, ch.ID, before, ch.After, mark)
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("changes %q, want %q", got, c.want)
			}
			if len(f.a.resets)+len(f.b.resets) != 0 {
				t.Error("a preview changed something")
			}
		})
	}
}

func TestResetRefusesHeldQueuesUnlessForced(t *testing.T) {
	f := newFakeCluster(t, false)
	f.a.groups["g"] = describe("a", []string{"1"}, lease("a", 0, "1", 4))
	r := Reset{Group: "g", Kind: ToEarliest, Execute: true}
	if _, _, err := f.ResetOffsets(t.Context(), r); !errors.Is(err, rpcerr.ErrGroupActive) || len(f.a.resets)+len(f.b.resets) != 0 {
		t.Fatalf("error %v, resets %v", err, f.a.resets)
	}
	r.Force = true
	changes, _, err := f.ResetOffsets(t.Context(), r)
	if err != nil || len(f.a.resets) != 1 || !f.a.resets[0].GetForce() || len(f.a.resets[0].GetOffsets()) != 2 || len(f.b.resets) != 1 {
		t.Fatalf("error %v, resets %v", err, f.a.resets)
	}
	if *changes[0].Before != 3 || changes[0].After != 1 {
		t.Errorf("change %+v, want what the broker answered", changes[0])
	}
}

// What was carried out is told of each queue: not of those in a preview, of brokers
// that refuse, nor of those that do not answer.
func TestResetTellsWhichQueuesItChanged(t *testing.T) {
	for _, c := range []struct {
		name    string
		execute bool
		dead    bool
		deny    bool
		want    []string
	}{
		{"preview", false, false, false, []string{"a/0 false", "a/1 false", "b/0 false", "b/1 false"}},
		{"all", true, false, false, []string{"a/0 true", "a/1 true", "b/0 true", "b/1 true"}},
		{"a dead broker", true, true, false, []string{"a/0 true", "a/1 true", "b/0 true", "b/1 true"}},
		{"a broker that refuses", true, false, true, []string{"a/0 true", "a/1 true", "b/0 false", "b/1 false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeCluster(t, c.dead)
			f.b.deny = c.deny
			changes, failures, err := f.ResetOffsets(t.Context(), Reset{Group: "g", Topics: []string{"orders"}, Kind: ToEarliest, Execute: c.execute})
			if (err != nil) != c.deny || (len(failures) > 0) != c.dead {
				t.Fatal(failures, err)
			}
			got := values(changes, func(ch OffsetChange) string { return fmt.Sprintf("%s/%d %v", ch.Broker, ch.ID, ch.Executed) })
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestDeleteOfAGroupWithMembersIsRefused(t *testing.T) {
	f := newFakeCluster(t, false)
	f.a.groups["g"] = describe("a", []string{"1"}, lease("a", 0, "1", 4))
	if _, _, err := f.DeleteGroup(t.Context(), "g"); !errors.Is(err, rpcerr.ErrGroupActive) {
		t.Errorf("error %v", err)
	}
}
