package group

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// A queue that was never held is granted to exactly one of those who ask at the same moment.
func TestF_OWN_05_OneOfTwoAskersIsGranted(t *testing.T) {
	h := newHub(t, 1)
	for run := range 1000 {
		s := SessionID(2*run + 1)
		for i := range SessionID(2) {
			f := session.Hello{
				Group: fmt.Sprintf("g%d", run), ClientID: fmt.Sprintf("c%d", i), Incarnation: session.Incarnation{Counter: 1},
				Offers: []session.Offer{{Strategy: "sticky"}}, Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
			}
			h.send(s+i, f)
		}
		first := SessionID(run % 2)
		h.send(s+first, session.Acquire{Queues: []allocate.Queue{qa(0)}})
		h.send(s+1-first, session.Acquire{Queues: []allocate.Queue{qa(0)}})
		_, one := last[session.Granted](h, s+first)
		_, two := last[session.Granted](h, s+1-first)
		_, told := last[session.LeaseWanted](h, s+first)
		if !one || two || !told {
			t.Fatalf("run %d: first granted %v, second granted %v, first told of the second %v", run, one, two, told)
		}
	}
}

// A commit of the former owner after a takeover is refused and does not lower the stored offset.
func TestF_HND_06_FormerOwnerCannotCommitAfterTakeover(t *testing.T) {
	h := newHub(t, 1)
	k := lease.Key{Group: "g", Queue: qa(0)}
	h.hello(1, "c1", "a")
	h.hello(2, "c2", "a")
	h.send(1, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	g1, _ := last[session.Granted](h, 1)
	h.send(2, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	for range 4 { // c1 is silent and learns nothing
		h.wait(3 * time.Second)
		h.send(2, session.Heartbeat{})
	}
	g2, ok := last[session.Granted](h, 2)
	if !ok {
		t.Fatal("the queue did not move to c2")
	}
	if err := h.commit(k, g2.Grants[0].Epoch, 50); err != nil {
		t.Fatalf("commit of the new owner: %v", err)
	}
	if err := h.commit(k, g1.Grants[0].Epoch, 10); !errors.Is(err, lease.ErrStaleEpoch) {
		t.Errorf("commit of the former owner: %v", err)
	}
	if err := h.r.Check("g", qa(0), g1.Grants[0].Epoch); !errors.Is(err, lease.ErrStaleEpoch) {
		t.Errorf("pull of the former owner: %v", err)
	}
	h.send(1, session.Released{Leases: []session.Release{{Queue: qa(0), Epoch: g1.Grants[0].Epoch, Offset: 99, HasOffset: true}}})
	if h.offsets[k] != 50 {
		t.Errorf("stored offset %d, want 50", h.offsets[k])
	}
}

// The second of two live processes with one client id is refused at once, with an error that says why.
func TestF_IDN_02_SecondProcessWithOneIDIsRefused(t *testing.T) {
	h := newHub(t, 2)
	h.hello(1, "c1", "a")
	h.hello(2, "c1", "a")
	f, ok := last[session.Refused](h, 2)
	if !ok || f.Reason != session.ReasonDuplicateClientID || !f.Reason.Final() || !strings.Contains(f.Text, `"c1"`) || !h.closed[2] {
		t.Errorf("second process: %+v, closed %v", f, h.closed[2])
	}
	if _, refused := last[session.Refused](h, 1); refused || h.closed[1] {
		t.Error("the first one is disturbed")
	}
	if ids := h.members(1, "a"); !slices.Equal(ids, []string{"c1"}) {
		t.Errorf("members %v", ids)
	}
}

// A queue stays with its holder until that has given it back, however many wait for it.
func TestF_ORD_02_HolderKeepsTheQueueUntilItReleases(t *testing.T) {
	h := newHub(t, 1)
	h.hello(1, "c1", "a")
	h.send(1, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	h.hello(2, "c2", "a")
	h.send(2, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	for range 20 { // a handler of a minute
		h.wait(3 * time.Second)
		h.send(1, session.Heartbeat{})
		h.send(2, session.Heartbeat{})
	}
	if _, ok := last[session.Granted](h, 2); ok {
		t.Fatal("granted while the holder has not released it")
	}
	g, _ := last[session.Granted](h, 1)
	h.send(1, session.Released{Leases: []session.Release{{Queue: qa(0), Epoch: g.Grants[0].Epoch, Offset: 7, HasOffset: true}}})
	if _, ok := last[session.Granted](h, 2); !ok {
		t.Error("not granted after the release")
	}
	if k := (lease.Key{Group: "g", Queue: qa(0)}); h.offsets[k] != 7 {
		t.Errorf("progress %d was not stored with the release", h.offsets[k])
	}
}

// Negative offsets are refused and the stored value stays.
func TestF_OFF_08_NegativeOffsetsAreRefused(t *testing.T) {
	h := newHub(t, 1)
	k := lease.Key{Group: "g", Queue: qa(0)}
	if err := h.commit(k, session.Epoch{}, 5); err != nil {
		t.Fatal(err)
	}
	if err := h.commit(k, session.Epoch{}, -1); !errors.Is(err, lease.ErrNegativeOffset) {
		t.Errorf("commit of -1: %v", err)
	}
	h.hello(1, "c1", "a")
	h.send(1, session.Released{Leases: []session.Release{{Queue: qa(0), Offset: -1, HasOffset: true}}})
	if f, ok := last[session.Refused](h, 1); !ok || f.Reason != session.ReasonBadRequest {
		t.Errorf("release with -1: %+v", f)
	}
	if h.offsets[k] != 5 {
		t.Errorf("stored %d", h.offsets[k])
	}
}

// A member that drops a topic is in no view of it any more, so that its queues move to the others.
func TestF_OWN_01_UnsubscribedTopicMovesToOthers(t *testing.T) {
	h := newHub(t, 4)
	h.hello(1, "c1", "a", "b")
	h.hello(2, "c2", "a", "b")
	if ids := h.members(2, "a"); !slices.Equal(ids, []string{"c1", "c2"}) {
		t.Fatalf("members %v", ids)
	}
	h.send(1, session.Subscribe{Subscriptions: []session.Subscription{{Topic: "b", Filter: "*"}}})
	h.wait(session.NoticeWindow)
	if f, ok := last[session.GroupChanged](h, 2); !ok || f.Topic != "a" || !slices.Equal(f.Left, []string{"c1"}) {
		t.Errorf("notice %+v", f)
	}
	if ids := h.members(2, "a"); !slices.Equal(ids, []string{"c2"}) {
		t.Errorf("members of a: %v", ids)
	}
	if ids := h.members(1, "b"); !slices.Equal(ids, []string{"c1", "c2"}) {
		t.Errorf("members of b: %v", ids)
	}
}

// Each topic is shared among those members of the group that subscribe to it.
func TestF_SUB_01_TopicsAreSharedAmongTheirSubscribers(t *testing.T) {
	h := newHub(t, 4)
	h.hello(1, "c1", "a")
	h.hello(2, "c2", "b")
	if ids := h.members(1, "a"); !slices.Equal(ids, []string{"c1"}) {
		t.Errorf("members of a: %v", ids)
	}
	if ids := h.members(2, "b"); !slices.Equal(ids, []string{"c2"}) {
		t.Errorf("members of b: %v", ids)
	}
}

// A member that filters a topic differently from the group is refused, with both filters named.
func TestF_SUB_02_DifferentFilterIsRefused(t *testing.T) {
	h := newHub(t, 2)
	hello := func(s SessionID, id, filter string) {
		h.send(s, session.Hello{
			Group: "g", ClientID: id, Incarnation: session.Incarnation{Counter: 1}, Offers: []session.Offer{{Strategy: "sticky"}},
			Subscriptions: []session.Subscription{{Topic: "a", Filter: filter}},
		})
	}
	hello(1, "c1", "x")
	hello(2, "c2", "y")
	f, ok := last[session.Refused](h, 2)
	if !ok || f.Reason != session.ReasonFilterMismatch || !strings.Contains(f.Text, `"x"`) || !strings.Contains(f.Text, `"y"`) {
		t.Errorf("refused %+v", f)
	}
	if s := h.r.Stats(); s.Refused[session.ReasonFilterMismatch] != 1 {
		t.Errorf("counted %d", s.Refused[session.ReasonFilterMismatch])
	}
}

// Nothing that was done before a reset counts after it: no commit in flight, no process queue that comes back.
func TestF_CTL_06_ResetIsNotUndoneByWhatIsInFlight(t *testing.T) {
	h := newHub(t, 1)
	k := lease.Key{Group: "g", Queue: qa(0)}
	h.hello(1, "c1", "a")
	h.send(1, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	g, _ := last[session.Granted](h, 1)
	old := g.Grants[0].Epoch
	if err := h.commit(k, old, 40); err != nil {
		t.Fatal(err)
	}
	h.step(Reset{Req: 900, Key: k, Offset: 3})
	if err := h.answers[900]; !errors.Is(err, lease.ErrLeaseHeld) {
		t.Errorf("reset of a held queue: %v", err)
	}
	h.step(Reset{Req: 901, Key: k, Offset: 3, Force: true})
	if err := h.answers[901]; err != nil {
		t.Fatalf("forced reset: %v", err)
	}
	if f, ok := last[session.LeaseLost](h, 1); !ok || f.Leases[0].Epoch != old {
		t.Errorf("the holder is told %+v", f)
	}
	if err := h.commit(k, old, 41); err == nil {
		t.Error("a commit in flight counts")
	}
	h.step(Closed{Session: 1})
	h.send(2, session.Hello{
		Group: "g", ClientID: "c1", Incarnation: session.Incarnation{Counter: 1, Random: 1}, Offers: []session.Offer{{Strategy: "sticky"}},
		Held: []session.Owned{{Queue: qa(0), Epoch: old}},
	})
	w, _ := last[session.Welcome](h, 2)
	if len(w.Grants) != 0 {
		t.Errorf("the holder of before comes back with %+v", w.Grants)
	}
	if f, ok := last[session.LeaseLost](h, 2); !ok || f.Leases[0].Epoch != old {
		t.Errorf("the holder of before is told %+v", f)
	}
	h.hello(3, "c2", "a")
	h.send(3, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	if f, ok := last[session.Granted](h, 3); ok {
		t.Errorf("granted to another before the holder has answered: %+v", f)
	}
	h.send(2, session.Released{Leases: []session.Release{{Queue: qa(0), Epoch: old, Offset: 50, HasOffset: true}}})
	if f, ok := last[session.Granted](h, 3); !ok || f.Grants[0].Epoch.Compare(old) <= 0 {
		t.Errorf("granted %+v once the holder has answered", f)
	}
	if h.offsets[k] != 3 {
		t.Errorf("stored offset %d, want 3", h.offsets[k])
	}
}

// A thousand members that join within a window cost one version, one list and one
// message each.
func TestBurstOfJoinsIsOneVersion(t *testing.T) {
	const n = 1000
	h := newHub(t, 16)
	for i := range n {
		h.hello(SessionID(i+1), fmt.Sprintf("c%04d", i), "a")
		h.send(SessionID(i+1), session.FetchView{Topic: "a", Seq: 1})
		h.now = h.now.Add(50 * time.Microsecond)
	}
	h.wait(Window(n))
	s := h.r.Stats()
	if s.Versions != 1 || s.ViewsServed != n || s.Notices != 0 || s.Warming != 0 {
		t.Errorf("%d versions, %d views served, %d notices, %d told to wait", s.Versions, s.ViewsServed, s.Notices, s.Warming)
	}
	first, _ := last[session.ViewAnswer](h, 1)
	end, _ := last[session.ViewAnswer](h, n)
	if len(first.View.Members) != n || &first.View.Members[0] != &end.View.Members[0] {
		t.Error("the list is not shared")
	}
	// A thousand more join a ready group: one notice for each of the first, one view for each new one.
	for i := range n {
		h.hello(SessionID(n+i+1), fmt.Sprintf("d%04d", i), "a")
		h.send(SessionID(n+i+1), session.FetchView{Topic: "a", Seq: 1})
	}
	h.wait(2 * Window(2*n)) // the second window in a row is twice as long
	if d := h.r.Stats(); d.Versions != 2 || d.Notices != n || d.ViewsServed != 2*n {
		t.Errorf("%d versions, %d notices, %d views served", d.Versions, d.Notices, d.ViewsServed)
	}
}

// Windows of a very large group are doubled while changes follow one another, but
// whoever takes over the queues of a member that left hears of it within seconds.
func TestChangesInARowWaitFiveSecondsAtMost(t *testing.T) {
	const n = 6000
	h := newHub(t, 1)
	h.r = New(Config{Broker: "b1", BrokerEpoch: 1, SessionTimeout: time.Minute}, nil, h.now)
	h.host(1)
	for i := range n {
		h.hello(SessionID(i+1), fmt.Sprintf("c%05d", i), "a")
	}
	h.wait(session.PatienceWindows * Window(n))
	for i := range 5 {
		before, begun := h.r.Stats().Versions, h.now
		h.step(Closed{Session: SessionID(i + 1), ByPeer: true})
		for h.r.Stats().Versions == before {
			if h.wait(100 * time.Millisecond); h.now.Sub(begun) > 5*time.Second {
				t.Fatalf("leave %d has no version after 5 s", i+1)
			}
		}
	}
}

// An empty group, and what is remembered of its leases, is forgotten after a while;
// versions go on growing all the same.
func TestEmptyGroupsAreForgotten(t *testing.T) {
	h := newHub(t, 1)
	for run := range 3 {
		s := SessionID(run + 1)
		h.hello(s, "c1", "a")
		h.send(s, session.Acquire{Queues: []allocate.Queue{qa(0)}})
		h.wait(session.NoticeWindow)
		v, ok := last[session.ViewReady](h, s)
		if !ok || v.Version.Counter != uint64(run+1) {
			t.Errorf("run %d: view %v", run, v.Version)
		}
		h.step(Closed{Session: s, ByPeer: true})
		if len(h.r.groups) != 1 || len(h.r.leases.Describe("g")) != 1 {
			t.Errorf("run %d: %d groups, leases %v", run, len(h.r.groups), h.r.leases.Describe("g"))
		}
		h.wait(2 * time.Minute)
		if len(h.r.groups) != 0 || len(h.r.leases.Describe("g")) != 0 || len(h.r.timers.heap) != 0 {
			t.Errorf("run %d: %d groups, %d timers are left", run, len(h.r.groups), len(h.r.timers.heap))
		}
	}
}

// Settled is seen as it happens, with the time since the change.
func TestSettlesAreRecorded(t *testing.T) {
	h := newHub(t, 1)
	h.hello(1, "c1", "a")
	h.wait(session.NoticeWindow)
	h.send(1, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	g, _ := last[session.Granted](h, 1)
	h.wait(5 * time.Millisecond)
	h.send(1, session.Report{
		Topic: "a", Owned: []session.Owned{{Queue: qa(0), Epoch: g.Grants[0].Epoch}},
		Expected: session.OwnersDigest("a", []session.Holding{{Queue: qa(0), ClientID: "c1"}}),
	})
	want := []Settle{{Group: "g", Topic: "a", Took: session.NoticeWindow + 5*time.Millisecond}}
	if got := h.r.TakeSettles(); !slices.Equal(got, want) {
		t.Errorf("settles %v, want %v", got, want)
	}
	if got := h.r.TakeSettles(); len(got) != 0 {
		t.Errorf("taken twice: %v", got)
	}
	if l := h.r.ListGroups(); len(l) != 1 || !l[0].Settled || l[0].Members != 1 {
		t.Errorf("groups %+v", l)
	}
	if s := h.r.Stats(); s.Settled != 1 || s.Sessions != 1 || s.Leases.Grants != 1 {
		t.Errorf("stats %+v", s)
	}
}

// Each switch removes its rule.
func TestBrokenVariantsBreakTheirRule(t *testing.T) {
	ask := session.Acquire{Queues: []allocate.Queue{qa(0)}}
	broken := func(b Broken) *hub {
		h := newHub(t, 1)
		h.r = New(Config{Broker: "b1", BrokerEpoch: 1, Broken: b}, nil, h.now)
		h.host(1)
		h.hello(1, "c1", "a")
		h.send(1, ask)
		return h
	}
	for _, c := range []struct {
		name   string
		broken Broken
		breaks func(h *hub) bool
	}{
		{"no commit epoch check", Broken{NoCommitEpochCheck: true}, func(h *hub) bool {
			return h.commit(lease.Key{Group: "g", Queue: qa(0)}, session.Epoch{Broker: 7}, 1) == nil
		}},
		{"grant before release", Broken{GrantBeforeRelease: true}, func(h *hub) bool {
			h.hello(2, "c2", "a")
			h.send(2, ask)
			_, ok := last[session.Granted](h, 2)
			return ok
		}},
		{"release without epoch", Broken{ReleaseWithoutEpoch: true}, func(h *hub) bool {
			h.hello(2, "c2", "a")
			h.send(2, ask)
			h.send(1, session.Released{Leases: []session.Release{{Queue: qa(0)}}})
			_, ok := last[session.Granted](h, 2)
			return ok
		}},
		{"no warm-up", Broken{NoWarmUp: true}, func(h *hub) bool {
			h.send(2, session.Hello{
				Group: "g", ClientID: "c2", Offers: []session.Offer{{Strategy: "sticky"}}, Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
				Views: []session.ViewRef{{Topic: "a", Version: session.Version{Broker: "b2", Epoch: 1}, Members: 7}},
			})
			h.wait(session.NoticeWindow)
			v, _ := last[session.ViewReady](h, 2)
			return !v.Version.IsZero()
		}},
		{"quiet ignores drains", Broken{QuietIgnoresDrains: true}, func(h *hub) bool {
			h.send(1, session.Report{Topic: "a", Full: true, Draining: true, Expected: 5})
			h.wait(time.Second)
			_, ok := last[session.OwnersChanged](h, 1)
			return ok
		}},
		{"no healing", Broken{NoHealing: true}, func(h *hub) bool {
			h.send(1, session.Report{Topic: "a", Full: true, Expected: 5})
			g, _ := last[session.Granted](h, 1)
			h.send(1, session.Released{Leases: []session.Release{{Queue: qa(0), Epoch: g.Grants[0].Epoch}}})
			h.wait(time.Second)
			h.send(1, session.Heartbeat{})
			_, owners := last[session.OwnersChanged](h, 1)
			_, nudge := last[session.Nudge](h, 1)
			ack, _ := last[session.HeartbeatAck](h, 1)
			return !owners && !nudge && len(ack.Views) == 0
		}},
	} {
		if c.breaks(broken(Broken{})) {
			t.Errorf("%s: broken without the switch", c.name)
		}
		if !c.breaks(broken(c.broken)) {
			t.Errorf("%s: not broken", c.name)
		}
	}
}

// A member whose welcome waits for the disk cannot fill the memory with answers.
func TestAnswersBeforeTheWelcomeAreBounded(t *testing.T) {
	r := New(Config{Broker: "b1", BrokerEpoch: 1}, nil, time.Unix(1000, 0))
	now := time.Unix(1000, 0)
	r.Step(now, LocalQueues{[]allocate.Queue{qa(0)}})
	r.Step(now, Received{1, session.Hello{
		Group: "g", ClientID: "c1", Offers: []session.Offer{{Strategy: "sticky"}}, Held: []session.Owned{{Queue: qa(0), Epoch: session.Epoch{Broker: 1}}},
	}})
	for range maxHeld {
		if out := r.Step(now, Received{1, session.Heartbeat{}}); len(out) != 0 {
			t.Fatalf("before the welcome: %v", out)
		}
	}
	out := r.Step(now, Received{1, session.Heartbeat{}})
	if len(out) != 2 || out[0].(Send).Frame.(session.Refused).Reason != session.ReasonBadRequest {
		t.Fatalf("one too many: %v", out)
	}
	for _, eff := range r.Step(now, Persisted{1}) {
		if _, ok := eff.(Send); ok {
			t.Errorf("after its end: %v", eff)
		}
	}
}

// One fetch of a session waits, the newest.
func TestNewerFetchReplacesTheOneThatWaits(t *testing.T) {
	h := newHub(t, 1)
	h.hello(1, "c1", "a")
	for seq := range uint64(100) {
		h.send(1, session.FetchView{Topic: "a", Seq: seq})
	}
	h.wait(session.NoticeWindow)
	var seqs []uint64
	for _, f := range h.got[1] {
		if a, ok := f.(session.ViewAnswer); ok {
			seqs = append(seqs, a.Seq)
		}
	}
	if !slices.Equal(seqs, []uint64{99}) {
		t.Errorf("answered %v", seqs)
	}
}

// A topic without queues has nothing to agree about: its view is settled.
func TestTopicWithoutQueuesIsSettled(t *testing.T) {
	h := newHub(t, 0)
	h.hello(1, "c1", "a")
	h.wait(time.Second)
	if d, _ := h.r.Describe("g"); len(d.Views) != 1 || !d.Views[0].Settled {
		t.Errorf("%+v", d.Views)
	}
	if _, ok := last[session.OwnersChanged](h, 1); ok {
		t.Error("quiet signal about nothing")
	}
}

// A life that comes with another instance id than before is refused.
func TestInstanceOfALifeStays(t *testing.T) {
	h := newHub(t, 1)
	hello := session.Hello{Group: "g", ClientID: "c1", Offers: []session.Offer{{Strategy: "sticky"}}}
	h.send(1, hello)
	hello.Instance = "i"
	h.send(2, hello)
	if f, ok := last[session.Refused](h, 2); !ok || f.Reason != session.ReasonBadRequest {
		t.Errorf("%+v", f)
	}
}

// A member that relied on a long timeout is not expired earlier because a later
// hello, whose answer it may never have seen, agreed on a shorter one.
func TestShorterTimeoutDoesNotShortenWhatWasPromised(t *testing.T) {
	h := newHub(t, 1)
	hello := session.Hello{
		Group: "g", ClientID: "c1", Offers: []session.Offer{{Strategy: "sticky"}}, SessionTimeout: 10 * time.Second,
		Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
	}
	h.send(1, hello)
	h.send(1, session.Acquire{Queues: []allocate.Queue{qa(0)}})
	h.wait(time.Second)
	h.send(1, session.Heartbeat{})
	h.step(Closed{Session: 1})
	g, _ := last[session.Granted](h, 1)
	hello.SessionTimeout = time.Second
	hello.Held = []session.Owned{{Queue: qa(0), Epoch: g.Grants[0].Epoch}}
	h.send(2, hello)
	h.send(2, session.Heartbeat{})
	h.wait(9 * time.Second)
	if h.closed[2] {
		t.Fatal("expired while the first session's promise stands")
	}
	h.wait(2 * time.Second)
	if !h.closed[2] {
		t.Error("never expired")
	}
}
