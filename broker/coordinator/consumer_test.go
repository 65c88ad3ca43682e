package coordinator

import (
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// peer is a member of the consumer protocol that plays by the rules.
type peer struct {
	w     *world
	name  string
	inst  string
	id    string
	epoch coordination.Generation
	has   []allocate.Queue // what it may use
	owns  []allocate.Queue // what it has not given up
}

func (w *world) peer(name string) *peer { return &peer{w: w, name: name} }

func (p *peer) request() coordination.ConsumerHeartbeat {
	r := coordination.ConsumerHeartbeat{
		Identity: coordination.Identity{Group: "g", MemberID: p.id, Instance: p.inst, Generation: p.epoch}, ClientID: p.name,
	}
	if p.epoch.IsZero() {
		r.RebalanceTimeout, r.Topics, r.HasOwned = time.Minute, []string{"a"}, true
	}
	return r
}

// beat sends a heartbeat and takes what the answer has.
func (p *peer) beat() coordination.ConsumerHeartbeatAnswer { return p.beats(p.request()) }

// ack sends a heartbeat that says what the peer owns.
func (p *peer) ack() coordination.ConsumerHeartbeatAnswer {
	r := p.request()
	p.owns = p.has
	r.Owned, r.HasOwned = p.owns, true
	return p.beats(r)
}

func (p *peer) beats(r coordination.ConsumerHeartbeat) coordination.ConsumerHeartbeatAnswer {
	a, _ := p.w.answers[p.w.send(r)].(coordination.ConsumerHeartbeatAnswer)
	if a.Code == coordination.OK {
		p.id, p.epoch = a.MemberID, a.Generation
		if a.HasQueues {
			p.has = a.Queues
		}
	}
	return a
}

func (p *peer) resume() coordination.Code {
	return p.w.code(p.w.send(coordination.Resume{
		Identity: coordination.Identity{Group: "g", MemberID: p.id, Instance: p.inst, Generation: p.epoch}, ClientID: p.name,
		RebalanceTimeout: time.Minute, Subscription: coordination.Subscription{Topics: []string{"a"}}, Assigned: p.has, Consumer: true,
	}))
}

// peers makes a stable group of n.
func peers(w *world, n int) (ps []*peer) {
	for i := range n {
		p := w.peer("p" + string(rune('0'+i)))
		p.beat()
		ps = append(ps, p)
	}
	for range 3 {
		w.wait(2 * time.Second)
		for _, p := range ps {
			p.beat()
			p.ack()
		}
	}
	w.state(Stable)
	return ps
}

func disjoint(t *testing.T, ps []*peer, total int) {
	t.Helper()
	var qs []allocate.Queue
	for _, p := range ps {
		qs = append(qs, p.has...)
	}
	slices.SortFunc(qs, allocate.Queue.Compare)
	if !slices.Equal(qs, queues(0, total)) {
		t.Errorf("members have %v", qs)
	}
}

func consumerWorld(t *testing.T, change func(*Config)) *world {
	w := newWorld(t, change)
	w.topics(12)
	return w
}

// The first member has everything with its first heartbeat. A second one gets its
// part when the first has given it up, and learns of it at its own heartbeat.
func TestMoveInTwoSteps(t *testing.T) {
	w := consumerWorld(t, func(c *Config) { c.AssignmentInterval = 0 })
	a, b := w.peer("a"), w.peer("b")
	if ans := a.beat(); len(ans.Queues) != 12 || ans.Interval != 5*time.Second {
		t.Fatalf("first heartbeat: %+v", ans)
	}
	was := a.epoch
	if ans := b.beat(); len(ans.Queues) != 0 || !ans.HasQueues || ans.Generation.Compare(was) <= 0 {
		t.Fatalf("newcomer: %+v", ans)
	}
	ans := a.beat()
	if len(ans.Queues) != 6 || ans.Generation != was {
		t.Fatalf("told to give up: %+v", ans)
	}
	r := a.request()
	r.Owned, r.HasOwned = queues(0, 12), true // not yet
	if ans := a.beats(r); ans.Generation != was {
		t.Fatalf("epoch advanced before queues were given up: %+v", ans)
	}
	if ans := b.beat(); ans.HasQueues {
		t.Fatalf("newcomer before that: %+v", ans)
	}
	w.state(Reconciling)
	if ans := a.ack(); ans.Generation != b.epoch {
		t.Fatalf("given up: %+v, newcomer at %v", ans, b.epoch)
	}
	if ans := b.beat(); len(ans.Queues) != 6 {
		t.Fatalf("newcomer: %+v", ans)
	}
	w.state(Stable)
	if ans := a.beat(); ans.HasQueues {
		t.Errorf("told again without need: %+v", ans)
	}
	disjoint(t, []*peer{a, b}, 12)
}

// Many joins at once cost one computation in the interval.
func TestOneTargetInTheInterval(t *testing.T) {
	w := consumerWorld(t, nil)
	ps := peers(w, 1)
	w.wait(2 * time.Second)
	before := len(reasons(w, Assigned))
	for range 20 {
		p := w.peer("n")
		p.beat()
		ps = append(ps, p)
	}
	w.state(Assigning)
	w.wait(time.Second)
	if n := len(reasons(w, Assigned)) - before; n != 2 {
		t.Errorf("%d targets for 20 joins within an interval, want 2", n)
	}
	for range 5 {
		for _, p := range ps {
			p.beat()
			p.ack()
		}
	}
	w.state(Stable)
	disjoint(t, ps, 12)
}

func TestFencing(t *testing.T) {
	w := consumerWorld(t, nil)
	ps := peers(w, 2)
	p := ps[0]
	good := *p
	p.epoch.Counter--
	r := p.request()
	if a := p.beats(r); p.w.code(p.w.req) != coordination.OK && a.Code != coordination.FencedEpoch {
		t.Errorf("an epoch below: %+v", a)
	}
	*p = good
	m := w.c.groups["g"].members[p.id]
	r.Generation, r.HasOwned, r.Owned = m.previous, true, p.has
	if m.previous == m.epoch {
		t.Fatal("the story has no previous epoch")
	}
	if a := p.beats(r); a.Code != coordination.OK || !a.HasQueues || a.Generation != good.epoch {
		t.Errorf("a lost answer: %+v", a)
	}
	r.Owned = queues(0, 12)
	if a := p.beats(r); a.Code != coordination.FencedEpoch {
		t.Errorf("the previous epoch with queues it no longer has: %+v", a)
	}
	r.Owned, r.HasOwned = nil, false
	if a := p.beats(r); a.Code != coordination.FencedEpoch {
		t.Errorf("the previous epoch without saying what it owns: %+v", a)
	}
	// A fenced member joins again with its id and has nothing until told.
	p.epoch, p.has = coordination.Generation{}, nil
	if a := p.beat(); a.Code != coordination.OK || a.MemberID != good.id || !slices.Equal(a.Queues, good.has) {
		t.Errorf("joined again: %+v", a)
	}
	p.epoch.Counter += 9
	if a := p.beat(); a.Code != coordination.LoadInProgress {
		t.Errorf("an epoch that is not known here: %+v", a)
	}
	x := w.peer("x")
	x.id, x.epoch = "x-9", good.epoch
	if a := x.beat(); a.Code != coordination.UnknownMember {
		t.Errorf("not a member: %+v", a)
	}
	bad := w.peer("y").request()
	bad.Assignor = "none"
	w.expect(w.send(bad), coordination.UnsupportedAssignor, "unknown assignor")
	w.expect(w.client("classic").start(), coordination.InconsistentProtocol, "classic join")
}

// Who does not give up its queues within its rebalance timeout is removed, who is
// silent for a session timeout too, who leaves at once.
func TestMembersThatGo(t *testing.T) {
	w := consumerWorld(t, nil)
	ps := peers(w, 2)
	n := w.peer("n")
	n.beat()
	for range 16 {
		w.wait(4 * time.Second)
		for _, p := range append(ps, n) {
			p.beat() // never acknowledges
		}
	}
	for _, p := range ps {
		if a := p.beat(); a.Code != coordination.UnknownMember {
			t.Errorf("who gives nothing up: %+v", a)
		}
	}
	w.wait(time.Second)
	n.beat()
	disjoint(t, []*peer{n}, 12)

	w = consumerWorld(t, nil)
	ps = peers(w, 3)
	for range 10 {
		w.wait(5 * time.Second)
		ps[0].beat()
		ps[1].beat()
	}
	disjoint(t, ps[:2], 12)
	r := ps[1].request()
	r.Leaving = coordination.Leaves
	w.expect(w.send(r), coordination.OK, "leave")
	w.wait(2 * time.Second)
	ps[0].beat()
	disjoint(t, ps[:1], 12)
	r = ps[0].request()
	r.Leaving = coordination.Leaves
	w.expect(w.send(r), coordination.OK, "leave")
	w.state(Empty)
	if w.expect(w.client("c").start(), parked, "classic join of an empty group"); !slices.Equal(w.watched, nil) {
		t.Errorf("watched: %v", w.watched)
	}
}

// A static member that leaves for a while finds its queues again; a second process
// with its instance id waits until it has gone.
func TestStaticConsumer(t *testing.T) {
	w := consumerWorld(t, nil)
	a, b := w.peer("a"), w.peer("b")
	a.inst, b.inst = "ia", "ib"
	for range 4 {
		for _, p := range []*peer{a, b} {
			p.beat()
			p.ack()
		}
		w.wait(2 * time.Second)
	}
	w.state(Stable)
	again := w.peer("a2")
	again.inst = "ia"
	if ans := again.beat(); ans.Code != coordination.UnreleasedInstance {
		t.Errorf("second process: %+v", ans)
	}
	r := a.request()
	r.Leaving = coordination.LeavesForAWhile
	w.expect(w.send(r), coordination.OK, "leave for a while")
	if ans := a.beat(); ans.Code != coordination.UnknownMember {
		t.Errorf("heartbeat after the leave: %+v", ans)
	}
	w.start()
	w.topics(12)
	w.step(Hosting{[]string{"b1"}})
	w.wait(40 * time.Second)
	b.beat()
	d, _ := w.c.Describe("g")
	if ans := again.beat(); ans.Code != coordination.OK || !slices.Equal(ans.Queues, a.has) || ans.Generation != a.epoch || ans.MemberID == a.id {
		t.Errorf("back: %+v, it had %v at %v", ans, a.has, a.epoch)
	}
	if now, _ := w.c.Describe("g"); now.Generation != d.Generation {
		t.Errorf("group epoch %v after %v", now.Generation, d.Generation)
	}
	if ans := a.beat(); ans.Code != coordination.FencedInstance {
		t.Errorf("the old process: %+v", ans)
	}
	r = again.request()
	r.Leaving = coordination.LeavesForAWhile
	w.send(r)
	for range 10 {
		w.wait(5 * time.Second)
		b.beat()
	}
	disjoint(t, []*peer{b}, 12)
}

// More queues reach the members without anybody asking.
func TestMoreQueues(t *testing.T) {
	w := consumerWorld(t, nil)
	ps := peers(w, 2)
	w.wait(2 * time.Second)
	w.topics(20)
	for _, p := range ps {
		p.beat()
	}
	disjoint(t, ps, 20)
}

// Without the queues of a topic there is no target, and those who have queues keep
// them.
func TestUnknownTopicChangesNothing(t *testing.T) {
	w := consumerWorld(t, nil)
	ps := peers(w, 2)
	had := slices.Clone(ps[0].has)
	w.start()
	w.step(Hosting{[]string{"b1"}})
	w.step(Topics{map[string][]allocate.Queue{"other": nil}})
	for _, p := range ps {
		if a := p.beat(); a.Code != coordination.OK || a.HasQueues {
			t.Errorf("%s: %+v", p.name, a)
		}
	}
	w.topics(12)
	w.state(Stable)
	if d, _ := w.c.Describe("g"); d.Generation != ps[0].epoch || !slices.Equal(d.Members[0].Assigned, had) {
		t.Errorf("after the topic became known: %+v", d)
	}
}

// Records and what members tell make the group up again, with no new epoch if all
// came; who did not loses its queues when the window ends.
func TestConsumerGroupSurvives(t *testing.T) {
	for _, lost := range []bool{false, true} {
		for _, come := range []int{3, 2} {
			w := consumerWorld(t, nil)
			ps := peers(w, 3)
			if lost {
				w.lose()
			} else {
				w.start()
				w.step(Hosting{[]string{"b1"}})
			}
			w.topics(12)
			for _, p := range ps[:come] {
				if a := p.beat(); lost != (a.Code == coordination.LoadInProgress) {
					t.Fatalf("lost %v: %+v", lost, a)
				}
				if lost && p.resume() != coordination.OK {
					t.Fatalf("resume: %v", w.code(w.req))
				}
			}
			epoch := ps[0].epoch
			for range 12 {
				w.wait(4 * time.Second)
				for _, p := range ps[:come] {
					if a := p.beat(); a.Code != coordination.OK || a.Generation != epoch && come == 3 {
						t.Fatalf("lost %v: %+v", lost, a)
					}
				}
			}
			for _, p := range ps[:come] {
				p.ack()
				p.beat()
			}
			w.state(Stable)
			disjoint(t, ps[:come], 12)
		}
	}
}

// Of two members that say they have a queue the one behind loses.
func TestResumedClaimsAreDisjoint(t *testing.T) {
	w := consumerWorld(t, nil)
	ps := peers(w, 2)
	w.lose()
	w.topics(12)
	ps[0].has = queues(0, 12)
	ps[0].resume()
	ps[1].epoch.Counter++
	if got := ps[1].resume(); got != coordination.OK {
		t.Errorf("resume of the later epoch: %v", got)
	}
	if a := ps[0].beat(); a.Code == coordination.OK {
		t.Errorf("heartbeat of the one behind: %+v", a)
	}
	if got := ps[0].resume(); got != coordination.FencedEpoch {
		t.Errorf("its resume: %v", got)
	}
}

// No answer tells what is not on disk.
func TestAnswersWaitForTheDisk(t *testing.T) {
	w := consumerWorld(t, nil)
	w.isSlow = true
	p := w.peer("p")
	id := w.send(p.request())
	w.expect(id, parked, "first heartbeat before the disk")
	w.store()
	a := w.expect(id, coordination.OK, "first heartbeat").(coordination.ConsumerHeartbeatAnswer)
	p.id, p.epoch = a.MemberID, a.Generation
	if ans := p.beat(); ans.Code != coordination.OK {
		t.Errorf("a heartbeat that changes nothing waits: %+v", ans)
	}
	x := w.send(w.peer("x").request())
	y := w.send(p.request())
	w.expect(y, parked, "heartbeat while a change of the group is on its way")
	w.step(Persisted{ID: w.slow[len(w.slow)-1].ID, Failed: true})
	w.expect(x, coordination.NotAvailable, "what could not be stored")
	w.expect(y, coordination.NotAvailable, "what could not be stored")
}
