package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/coordination"
)

// inState makes a group of two members in the state.
func inState(t *testing.T, s State) (*world, []*client) {
	w := newWorld(t, nil)
	cs := w.stable(2)
	switch s {
	case Empty:
		for _, c := range cs {
			c.leave()
		}
	case Gathering:
		cs[0].start() // the leader
	case Completing:
		cs[0].start()
		cs[1].start()
		for _, c := range cs {
			c.joined()
		}
	default:
	}
	w.state(s)
	return w, cs
}

// What a request is answered in each state; -1: it is parked.
func TestAnswersByState(t *testing.T) {
	const ok = coordination.OK
	for _, row := range []struct {
		state                                         State
		beat, sync, newJoin, leader, follower, leaves coordination.Code
		afterLeader, afterFollower, afterLeave        State
	}{
		{Empty, coordination.UnknownMember, coordination.UnknownMember, parked, coordination.UnknownMember, coordination.UnknownMember, coordination.UnknownMember, Empty, Empty, Empty},
		{Gathering, coordination.RebalanceInProgress, coordination.RebalanceInProgress, parked, parked, ok, ok, Gathering, Completing, Completing},
		{Completing, ok, parked, parked, ok, ok, ok, Completing, Completing, Gathering},
		{Stable, ok, ok, parked, parked, ok, ok, Gathering, Stable, Gathering},
	} {
		check := func(what string, got, want coordination.Code) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %s is answered %v, want %v", row.state, what, got, want)
			}
		}
		w, cs := inState(t, row.state)
		check("heartbeat", cs[1].beat(), row.beat)
		check("a follower's sync", w.code(cs[1].sync(0)), row.sync)

		w, _ = inState(t, row.state)
		check("a newcomer's join", w.code(w.client("new").start()), row.newJoin)
		w.state(Gathering)

		w, cs = inState(t, row.state)
		check("the leader's join", w.code(cs[0].start()), row.leader)
		w.state(row.afterLeader)

		w, cs = inState(t, row.state)
		check("a follower's unchanged join", w.code(cs[1].start()), row.follower)
		w.state(row.afterFollower)

		w, cs = inState(t, row.state)
		check("a follower's leave", cs[1].leave(), row.leaves)
		w.state(row.afterLeave)
	}
	w, cs := inState(t, Stable)
	id := cs[0].start()
	w.step(Hosting{[]string{"b2"}})
	w.expect(id, coordination.NotCoordinator, "a parked join when another broker coordinates")
	if got := cs[1].beat(); got != coordination.NotCoordinator {
		t.Errorf("heartbeat where another broker coordinates: %v", got)
	}
	if len(w.disk) != 0 {
		t.Errorf("records of a group that others coordinate: %v", w.disk)
	}
}

// What takes a group from one state to another.
func TestTransitions(t *testing.T) {
	changed := func(c *client) { c.topics = []string{"a", "b"}; c.start() }
	for _, row := range []struct {
		name   string
		from   State
		do     func(w *world, cs []*client)
		to     State
		reason string
	}{
		{"all gone", Gathering, func(_ *world, cs []*client) { cs[0].leave(); cs[1].leave() }, Empty, ""},
		{"time is up with one waiting", Gathering, func(w *world, cs []*client) {
			for range 12 {
				w.wait(5 * time.Second)
				cs[1].beat()
			}
		}, Completing, ""},
		{"changed follower", Stable, func(_ *world, cs []*client) { changed(cs[1]) }, Gathering, "changed subscription"},
		{"changed follower", Completing, func(_ *world, cs []*client) { changed(cs[1]) }, Gathering, "changed subscription"},
		{"session expires", Stable, func(w *world, cs []*client) { w.wait(9 * time.Second); cs[0].beat(); w.wait(2 * time.Second) }, Gathering, "no heartbeat for 10s"},
		{"session expires", Completing, func(w *world, cs []*client) { w.wait(9 * time.Second); cs[0].beat(); w.wait(2 * time.Second) }, Gathering, "no heartbeat for 10s"},
		{"a sync is missing", Completing, func(w *world, cs []*client) {
			for range 12 {
				w.wait(5 * time.Second)
				cs[0].beat()
				cs[1].beat()
			}
			w.wait(time.Second)
		}, Empty, "did not sync in time"},
		{"a sync is missing in Stable", Completing, func(w *world, cs []*client) {
			w.expect(cs[0].sync(12), coordination.OK, "leader's sync")
			w.state(Stable)
			for range 12 {
				w.wait(5 * time.Second)
				cs[0].beat()
				cs[1].beat()
			}
			w.wait(time.Second)
		}, Gathering, "1 members did not sync in time"},
		{"plan stored", Completing, func(_ *world, cs []*client) { cs[0].sync(12) }, Stable, ""},
		{"plan on its way", Completing, func(w *world, cs []*client) { w.isSlow = true; cs[0].sync(12) }, Completing, ""},
		{"plan not stored", Completing, func(w *world, cs []*client) {
			w.isSlow = true
			cs[0].sync(12)
			w.step(Persisted{ID: w.slow[0].ID, Failed: true})
		}, Gathering, "could not be stored"},
	} {
		w, cs := inState(t, row.from)
		before, _ := w.c.Describe("g")
		row.do(w, cs)
		d, _ := w.c.Describe("g")
		if d.State != row.to {
			t.Errorf("%s: %s becomes %s, want %s", row.name, row.from, d.State, row.to)
		}
		rs := reasons(w, Preparing)
		if last := rs[len(rs)-1]; !strings.Contains(last, row.reason) {
			t.Errorf("%s: reason %q, want %q in it", row.name, last, row.reason)
		}
		if row.to == Empty && d.Generation.Compare(before.Generation) <= 0 {
			t.Errorf("%s: empty at %v after %v", row.name, d.Generation, before.Generation)
		}
	}
}

// The first gathering waits for the delay, again after each newcomer, then all are
// answered at once with one generation, and the first member leads.
func TestFirstGatheringWaitsForNewcomers(t *testing.T) {
	w := newWorld(t, nil)
	a, b, c := w.client("a"), w.client("b"), w.client("c")
	a.start()
	w.wait(2 * time.Second)
	b.start()
	w.wait(3 * time.Second) // 5 s: the second delay is on
	w.expect(a.join, parked, "join in the second delay")
	c.start()
	w.wait(3900 * time.Millisecond)
	w.expect(a.join, parked, "join in the third delay")
	w.wait(100 * time.Millisecond)
	for _, m := range []*client{a, b, c} {
		m.joined()
		if m.gen != a.gen || m.lead != a.id {
			t.Errorf("%s: generation %v, leader %s", m.name, m.gen, m.lead)
		}
	}
	if len(a.plan) != 3 || b.plan != nil {
		t.Errorf("the leader is told of %v, another of %v", a.plan, b.plan)
	}
}

// A new member gets an id first; the gathering waits for it until it expires.
func TestPendingIDHoldsTheGatheringUp(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(1)
	n := w.client("n")
	n.id = w.expect(w.send(n.joinRequest()), coordination.MemberIDRequired, "first join").(coordination.JoinAnswer).MemberID
	if n.id == "" || !strings.HasPrefix(n.id, "n-") {
		t.Fatalf("member id %q", n.id)
	}
	w.state(Stable)
	cs[0].start()
	w.expect(cs[0].join, parked, "join while an id is out")
	w.wait(11 * time.Second)
	cs[0].joined()
	w.expect(w.send(n.joinRequest()), coordination.UnknownMember, "join with an id that expired")
}

// A parked member is not found dead, but a new one's join does not wait for ever.
func TestParkedMemberDoesNotExpire(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(2)
	n := w.client("n")
	n.start()
	cs[0].start()
	for range 5 { // cs[1] is slow: it lives and does not join
		w.wait(9 * time.Second)
		if got := cs[1].beat(); got != coordination.RebalanceInProgress {
			t.Fatalf("heartbeat in a gathering: %v", got)
		}
	}
	w.expect(n.join, parked, "new member")
	w.expect(cs[0].join, parked, "old member")
	w.wait(15 * time.Second)
	finish(cs[0], n)
	if got := cs[1].beat(); got != coordination.UnknownMember {
		t.Errorf("heartbeat of who did not join in time: %v", got)
	}

	w = newWorld(t, nil)
	slow := w.client("slow")
	slow.inst = "s"
	r := slow.joinRequest()
	r.RebalanceTimeout = time.Hour
	w.send(r)
	w.wait(3 * time.Second)
	n = w.client("n")
	n.start()
	for range 33 {
		w.wait(9 * time.Second)
		w.send(coordination.Heartbeat{Identity: coordination.Identity{Group: "g", MemberID: "s-1", Instance: "s", Generation: w.answers[1].(coordination.JoinAnswer).Generation}})
	}
	w.wait(2 * time.Second)
	w.expect(n.join, parked, "new member before five minutes")
	w.wait(2 * time.Second)
	w.expect(n.join, coordination.UnknownMember, "new member after five minutes")
}

func TestVote(t *testing.T) {
	for _, row := range []struct {
		with [][]string
		want string
	}{
		{[][]string{{"range", "sticky"}, {"sticky", "range"}, {"sticky", "range"}}, "sticky"},
		{[][]string{{"x", "sticky"}, {"y", "sticky"}}, "sticky"},
		{[][]string{{"sticky", "range"}, {"range", "sticky"}}, "range"}, // a tie: the first name
	} {
		w := newWorld(t, nil)
		var cs []*client
		for _, with := range row.with {
			c := w.client("c")
			c.with = with
			c.start()
			cs = append(cs, c)
		}
		w.wait(10 * time.Second)
		if a := cs[0].joined(); a.Assignor != row.want {
			t.Errorf("%q: %s, want %s", row.with, a.Assignor, row.want)
		}
		other := w.client("other")
		other.with = []string{"none"}
		w.expect(other.start(), coordination.InconsistentProtocol, "no assignor in common")
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.MaxSize = 2 })
	w.stable(2)
	w.expect(w.client("n").start(), coordination.GroupMaxSize, "third of two")
	for _, d := range []time.Duration{0, 5 * time.Second, time.Hour} {
		r := w.client("n").joinRequest()
		r.SessionTimeout = d
		w.expect(w.send(r), coordination.InvalidSessionTimeout, "session timeout "+d.String())
	}
	r := w.client("n").joinRequest()
	r.Group = ""
	w.expect(w.send(r), coordination.InvalidRequest, "no group")
}

func TestGenerationIsChecked(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(2)
	cs[0].gen.Counter--
	if got := cs[0].beat(); got != coordination.IllegalGeneration {
		t.Errorf("old generation: %v", got)
	}
	w.expect(cs[0].sync(0), coordination.IllegalGeneration, "sync of an old generation")
	cs[0].gen.Counter += 2
	if got := cs[0].beat(); got != coordination.LoadInProgress {
		t.Errorf("a generation to come: %v", got)
	}
}

// The next generation is above every one that a broker knows of.
func TestExceed(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(1)
	was := cs[0].gen
	seen := coordination.Generation{Broker: was.Broker + 5, Counter: 77}
	r := cs[0].joinRequest()
	r.Exceed = seen
	cs[0].join = w.send(r)
	if a := cs[0].joined(); a.Generation.Compare(seen) <= 0 {
		t.Errorf("generation %v, to exceed %v", a.Generation, seen)
	}
	was = cs[0].gen
	cs[0].start() // completing: answered at once
	cs[0].sync(1)
	cs[0].start()
	if a := cs[0].joined(); a.Generation.Broker != was.Broker || a.Generation.Counter != was.Counter+1 {
		t.Errorf("generation %v after %v", a.Generation, was)
	}
}

// Each case of a static member that comes back.
func TestStaticRestart(t *testing.T) {
	make2 := func() (*world, *client, *client) {
		w := newWorld(t, nil)
		a, b := w.client("a"), w.client("b")
		a.inst, b.inst = "ia", "ib"
		a.with, b.with = []string{"range", "sticky"}, []string{"range", "sticky"}
		a.start()
		b.start()
		w.wait(6 * time.Second)
		finish(a, b)
		return w, a, b
	}
	again := func(c *client) *client {
		n := *c
		n.id, n.gen, n.queues = "", coordination.Generation{}, nil
		return &n
	}
	for _, leads := range []bool{true, false} {
		w, a, b := make2()
		old, other := b, a
		if leads {
			old, other = a, b
		}
		n := again(old)
		n.start()
		ans := n.joined()
		if ans.SkipAssignment != leads || ans.Generation != old.gen || n.id == old.id {
			t.Errorf("leader %v: %+v", leads, ans)
		}
		w.state(Stable)
		if got := w.expect(n.sync(0), coordination.OK, "sync").(coordination.SyncAnswer).Queues; !slices.Equal(got, old.queues) {
			t.Errorf("leader %v: it gets %v, had %v", leads, got, old.queues)
		}
		if got := old.beat(); got != coordination.FencedInstance {
			t.Errorf("the old process is answered %v", got)
		}
		w.start()
		w.step(Hosting{[]string{"b1"}})
		if n.beat() != coordination.OK || other.beat() != coordination.OK {
			t.Errorf("the new id is not on disk")
		}
	}
	{ // another subscription, same vote: no rebalance
		w, _, b := make2()
		n := again(b)
		n.topics = []string{"a", "z"}
		n.start()
		n.joined()
		w.state(Stable)
	}
	{ // another vote
		w, a, b := make2()
		n := again(b)
		n.with = []string{"sticky"}
		n.start()
		w.expect(n.join, parked, "join that changes the vote")
		w.state(Gathering)
		a.start()
		if n.joined(); n.asgn != "sticky" {
			t.Errorf("assignor %s", n.asgn)
		}
	}
	{ // before the assignment is there
		w, a, b := make2()
		a.start()
		b.start() // unchanged: parked, as the group gathers
		a.joined()
		b.joined()
		s := b.sync(0)
		n := again(b)
		n.start()
		w.expect(s, coordination.FencedInstance, "parked sync of the old process")
		w.state(Gathering)
	}
	{ // while gathering
		w, a, b := make2()
		a.start()
		n := again(b)
		n.start()
		n.joined()
		w.state(Completing)
		if got := b.leave(); got != coordination.FencedInstance {
			t.Errorf("leave of the old process: %v", got)
		}
	}
	{ // a tool throws one out; one that stays away expires
		w, a, b := make2()
		id := w.send(coordination.Leave{Identity: coordination.Identity{Group: "g"}, Members: []coordination.Identity{{Instance: "ib"}, {Instance: "nobody"}}})
		ms := w.expect(id, coordination.OK, "leave").(coordination.LeaveAnswer).Members
		if len(ms) != 2 || ms[0].Code != coordination.OK || ms[1].Code != coordination.UnknownMember {
			t.Errorf("results %v", ms)
		}
		w.state(Gathering)
		_ = b
		a.start()
		finish(a)
		w.wait(11 * time.Second)
		w.state(Empty)
	}
}

// A broker that starts again has its groups as they were, with fresh sessions.
func TestRestartKeepsAStableGroup(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(3)
	w.wait(9 * time.Second)
	w.start()
	w.wait(time.Second)
	if got := cs[0].beat(); got != coordination.NotAvailable {
		t.Errorf("before the hosts are known: %v", got)
	}
	w.step(Hosting{[]string{"b1"}})
	w.wait(8 * time.Second)
	for _, c := range cs {
		if got := c.beat(); got != coordination.OK {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	cs[1].start()
	if a := cs[1].joined(); a.Generation != cs[0].gen {
		t.Errorf("generation %v after %v", a.Generation, cs[0].gen)
	}
	// A gathering is not on disk: the parked join is lost and sent again.
	cs[0].start()
	w.start()
	w.step(Hosting{[]string{"b1"}})
	w.state(Stable)
	cs[0].start()
	w.state(Gathering)
	cs[1].start()
	cs[2].start()
	finish(cs...)
}

// Another broker has no records: what the members say makes the group up again,
// with no rebalance if all came.
func TestLostCoordinatorNeedsNoRebalance(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(3)
	w.lose()
	for _, c := range []int{2, 0, 1} {
		if got := cs[c].beat(); got != coordination.LoadInProgress {
			t.Fatalf("%s: %v", cs[c].name, got)
		}
		if got := cs[c].resume(); got != coordination.OK {
			t.Fatalf("%s: %v", cs[c].name, got)
		}
		if got := cs[c].beat(); got != coordination.OK {
			t.Fatalf("%s: %v", cs[c].name, got)
		}
	}
	if !slices.Equal(w.watched, []string{"a"}) {
		t.Errorf("watched: %v", w.watched)
	}
	w.topics(12)
	for range 10 {
		w.wait(2 * time.Second)
		for _, c := range cs {
			if got := c.beat(); got != coordination.OK {
				t.Fatalf("%s: %v", c.name, got)
			}
		}
	}
	w.state(Stable)
	if len(w.watched) != 0 {
		t.Errorf("still watched: %v", w.watched)
	}
	w.start() // and it is on disk now
	w.step(Hosting{[]string{"b1"}})
	if got := cs[2].beat(); got != coordination.OK {
		t.Errorf("after a restart: %v", got)
	}
}

// Who does not come back is missed when the window ends; a gathering waits for it
// until then.
func TestMemberLostWithTheCoordinator(t *testing.T) {
	for _, join := range []bool{false, true} {
		w := newWorld(t, nil)
		cs := w.stable(3)
		w.lose()
		w.topics(12)
		cs[0].resume()
		cs[1].resume()
		n := w.client("n")
		if join {
			n.start()
			cs[0].start()
			cs[1].start()
			w.state(Gathering)
		}
		w.wait(9 * time.Second)
		if join {
			w.expect(n.join, parked, "newcomer while a member may come back")
		} else {
			cs[0].beat()
			cs[1].beat()
		}
		w.wait(2 * time.Second)
		if join {
			finish(cs[0], cs[1], n)
		} else {
			w.state(Gathering)
			if rs := reasons(w, Preparing); !strings.Contains(rs[len(rs)-1], "did not come back") {
				t.Errorf("reasons %q", rs)
			}
			cs[0].start()
			cs[1].start()
			finish(cs[0], cs[1])
		}
		if got := cs[2].beat(); got != coordination.IllegalGeneration && got != coordination.UnknownMember {
			t.Errorf("join %v: who comes too late is answered %v", join, got)
		}
	}
}

// A newcomer that is faster than the old members does not shut them out.
func TestNewcomerBeforeTheOldMembers(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(2)
	was := cs[0].gen
	w.lose()
	n := w.client("n")
	n.start()
	for _, c := range cs {
		if got := c.beat(); got != coordination.LoadInProgress {
			t.Fatalf("%s: %v", c.name, got)
		}
		if got := c.resume(); got != coordination.RebalanceInProgress { // the newcomer's
			t.Fatalf("%s: %v", c.name, got)
		}
		if got := c.w.code(w.send(coordination.Heartbeat{Identity: c.who()})); got == coordination.UnknownMember {
			t.Fatalf("%s: %v", c.name, got)
		}
	}
	w.wait(3 * time.Second)
	cs[0].start()
	cs[1].start()
	w.wait(3 * time.Second)
	finish(cs[0], cs[1], n)
	if n.gen.Compare(was) <= 0 {
		t.Errorf("generation %v after %v", n.gen, was)
	}
	if !slices.Equal(all([]*client{cs[0], cs[1], n}), queues(0, 12)) {
		t.Errorf("queues %v", all([]*client{cs[0], cs[1], n}))
	}
}

// A coordinator that comes back with old records takes the later generation over.
func TestOldRecordsGiveWay(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(2)
	for _, c := range cs {
		c.gen.Counter += 3
	}
	for _, c := range cs {
		if got := c.beat(); got != coordination.LoadInProgress {
			t.Fatalf("%s: %v", c.name, got)
		}
		if got := c.resume(); got != coordination.OK {
			t.Fatalf("%s: %v", c.name, got)
		}
	}
	w.topics(12)
	for range 6 {
		w.wait(2 * time.Second)
		if cs[0].beat() != coordination.OK || cs[1].beat() != coordination.OK {
			t.Fatalf("heartbeats refused")
		}
	}
	w.state(Stable)
}

// The sync that a lost coordinator never answered is a reason for a rebalance.
func TestSyncLostWithTheCoordinator(t *testing.T) {
	w, cs := inState(t, Completing)
	w.lose()
	for _, c := range cs {
		c.queues = nil
		w.expect(c.sync(12), coordination.LoadInProgress, "sync")
		c.resume()
		w.expect(c.sync(12), coordination.RebalanceInProgress, "sync")
	}
	w.state(Gathering)
	w.topics(12)
	w.wait(time.Second)
	for _, c := range cs {
		c.start()
	}
	w.wait(10 * time.Second)
	finish(cs...)
}

// An empty group is forgotten after a while, its records with it.
func TestEmptyGroupIsForgotten(t *testing.T) {
	w, _ := inState(t, Empty)
	if len(w.disk) != 1 {
		t.Errorf("on disk: %v", w.disk)
	}
	w.wait(w.cfg.KeepEmpty + time.Second)
	if _, known := w.c.Describe("g"); known || len(w.disk) != 0 {
		t.Errorf("still known %v, on disk %v", known, w.disk)
	}
}

// A stream that ends takes its parked join with it, not the member.
func TestCancelledJoin(t *testing.T) {
	w := newWorld(t, nil)
	cs := w.stable(2)
	cs[0].start()
	w.cancel(cs[0].join)
	cs[1].start()
	w.expect(cs[1].join, parked, "join while the other's was cut off")
	cs[0].start()
	finish(cs...)
}
