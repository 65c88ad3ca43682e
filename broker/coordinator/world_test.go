package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// failer is a testing.TB or a rapid.T.
type failer interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is a coordinator with a disk that stores at once, unless it is slow.
type world struct {
	t       failer
	cfg     Config
	c       *Coordinator
	now     time.Time
	wake    time.Time
	disk    map[Key]Record
	slow    []Persist
	isSlow  bool
	ids     int
	req     uint64
	answers map[uint64]coordination.Answer
	open    map[uint64]bool // requests without an answer
	watched []string
	log     []Happened
	// seen is called with every answer.
	seen func(id uint64, a coordination.Answer)
}

func newWorld(t failer, change func(*Config)) *world {
	w := &world{t: t, now: time.Unix(1000, 0), disk: map[Key]Record{}, answers: map[uint64]coordination.Answer{}, open: map[uint64]bool{}}
	w.cfg = Default()
	w.cfg.Broker, w.cfg.BrokerEpoch = "b1", 1
	w.cfg.NewID = func() string { w.ids++; return strconv.Itoa(w.ids) }
	if change != nil {
		change(&w.cfg)
	}
	w.start()
	w.step(Hosting{[]string{"b1"}})
	return w
}

// start begins a life of the broker with what is on disk. Streams are gone.
func (w *world) start() {
	records := slices.Collect(maps.Values(w.disk))
	c, out, err := New(w.cfg, records, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	w.c, w.wake, w.slow = c, time.Time{}, nil
	clear(w.open)
	w.perform(out)
}

// lose starts another broker, which has no records.
func (w *world) lose() {
	clear(w.disk)
	w.start()
	w.step(Hosting{[]string{"b1"}})
}

func (w *world) step(ev Event) { w.perform(w.c.Step(w.now, ev)) }

func (w *world) perform(out []Effect) {
	for _, e := range out {
		switch e := e.(type) {
		case WakeAt:
			w.wake = e.At
		case Answer:
			if !w.open[e.ID] {
				w.t.Fatalf("request %d, which nobody waits for, is answered %+v", e.ID, e.Answer)
			}
			delete(w.open, e.ID)
			w.answers[e.ID] = e.Answer
			if w.seen != nil {
				w.seen(e.ID, e.Answer)
			}
		case Persist:
			w.slow = append(w.slow, e)
		case Watch:
			w.watched = e.Topics
		case Happened:
			w.log = append(w.log, e)
		}
	}
	for !w.isSlow && len(w.slow) > 0 {
		w.store()
	}
}

// store brings the oldest batch to the disk.
func (w *world) store() {
	p := w.slow[0]
	w.slow = w.slow[1:]
	for _, r := range p.Put {
		w.disk[r.Key()] = r
	}
	for _, k := range p.Delete {
		delete(w.disk, k)
	}
	w.step(Persisted{ID: p.ID})
}

// wait lets d pass.
func (w *world) wait(d time.Duration) {
	end := w.now.Add(d)
	for n := 0; !w.wake.IsZero() && !w.wake.After(end); n++ {
		if n > 100_000 {
			w.t.Fatal("the coordinator wakes without end")
		}
		if w.now.Before(w.wake) {
			w.now = w.wake
		}
		w.wake = time.Time{}
		w.step(Wake{})
	}
	w.now = end
}

// send sends a request and returns its id.
func (w *world) send(r coordination.Request) uint64 {
	w.req++
	w.open[w.req] = true
	w.step(Request{w.req, r})
	return w.req
}

func (w *world) cancel(id uint64) {
	delete(w.open, id)
	w.step(Cancelled{id})
}

// code is that of the answer to a request, -1 if there is none.
func (w *world) code(id uint64) coordination.Code {
	a := w.answers[id]
	if a == nil {
		return -1
	}
	c, _ := a.Outcome()
	return c
}

func (w *world) expect(id uint64, want coordination.Code, what string) coordination.Answer {
	w.t.Helper()
	if got := w.code(id); got != want {
		w.t.Fatalf("%s: answered %v (%+v), want %v", what, got, w.answers[id], want)
	}
	return w.answers[id]
}

const parked coordination.Code = -1

func (w *world) state(want State) {
	w.t.Helper()
	d, _ := w.c.Describe("g")
	if d.State != want {
		w.t.Fatalf("group is %q, want %q: %+v", d.State, want, d)
	}
}

func (w *world) topics(n int) {
	w.step(Topics{map[string][]allocate.Queue{"a": queues(0, n)}})
}

func queues(from, to int) (qs []allocate.Queue) {
	for i := from; i < to; i++ {
		qs = append(qs, allocate.Queue{Topic: "a", Broker: "b1", ID: int32(i)})
	}
	return qs
}

// client is a classic member that plays by the rules.
type client struct {
	w      *world
	name   string
	inst   string
	id     string
	gen    coordination.Generation
	leader bool
	plan   []coordination.Joined
	queues []allocate.Queue
	asgn   string
	lead   string
	join   uint64
	with   []string // assignors
	topics []string
}

func (w *world) client(name string) *client {
	return &client{w: w, name: name, with: []string{"range"}, topics: []string{"a"}}
}

func (c *client) who() coordination.Identity {
	return coordination.Identity{Group: "g", MemberID: c.id, Instance: c.inst, Generation: c.gen}
}

func (c *client) joinRequest() coordination.Join {
	return coordination.Join{
		Identity: c.who(), ClientID: c.name, SessionTimeout: 10 * time.Second, RebalanceTimeout: time.Minute,
		Assignors: c.with, Subscription: coordination.Subscription{Topics: c.topics},
	}
}

// start joins, with a second join if an id is required.
func (c *client) start() uint64 {
	c.join = c.w.send(c.joinRequest())
	if a, ok := c.w.answers[c.join].(coordination.JoinAnswer); ok && a.Code == coordination.MemberIDRequired {
		c.id = a.MemberID
		c.join = c.w.send(c.joinRequest())
	}
	return c.join
}

// joined takes the answer to the join.
func (c *client) joined() coordination.JoinAnswer {
	c.w.t.Helper()
	a := c.w.expect(c.join, coordination.OK, "join of "+c.name).(coordination.JoinAnswer)
	c.id, c.gen, c.plan, c.leader, c.asgn, c.lead = a.MemberID, a.Generation, a.Members, a.Leader == a.MemberID, a.Assignor, a.Leader
	return a
}

// sync sends the sync, a leader's with the queues in equal parts in order of ids.
func (c *client) sync(total int) uint64 {
	s := coordination.Sync{Identity: c.who()}
	if c.leader {
		for i, m := range c.plan {
			s.Assignments = append(s.Assignments, coordination.Assignment{
				MemberID: m.MemberID, Queues: queues(total*i/len(c.plan), total*(i+1)/len(c.plan)),
			})
		}
	}
	return c.w.send(s)
}

func (c *client) beat() coordination.Code {
	return c.w.code(c.w.send(coordination.Heartbeat{Identity: c.who()}))
}

func (c *client) resume() coordination.Code {
	return c.w.code(c.w.send(coordination.Resume{
		Identity: c.who(), ClientID: c.name, SessionTimeout: 10 * time.Second, RebalanceTimeout: time.Minute,
		Assignors: c.with, Assignor: c.asgn, Subscription: coordination.Subscription{Topics: c.topics}, Leader: c.lead, Assigned: c.queues,
	}))
}

func (c *client) leave() coordination.Code {
	return c.w.code(c.w.send(coordination.Leave{Identity: c.who()}))
}

// finish lets all take the join's answers, sync and have their queues.
func finish(cs ...*client) {
	for _, c := range cs {
		c.joined()
	}
	ids := make([]uint64, len(cs))
	for i, c := range cs {
		ids[i] = c.sync(12)
	}
	for i, c := range cs {
		c.queues = c.w.expect(ids[i], coordination.OK, "sync of "+c.name).(coordination.SyncAnswer).Queues
	}
}

// stable makes a group of n members that share 12 queues.
func (w *world) stable(n int) []*client {
	w.t.Helper()
	var cs []*client
	for i := range n {
		c := w.client(fmt.Sprintf("c%d", i))
		c.start()
		cs = append(cs, c)
	}
	w.wait(2 * w.cfg.InitialDelay)
	finish(cs...)
	w.state(Stable)
	return cs
}

func reasons(w *world, what What) (rs []string) {
	for _, h := range w.log {
		if h.What == what {
			rs = append(rs, h.Reason)
		}
	}
	return rs
}

func all(cs []*client) (qs []allocate.Queue) {
	for _, c := range cs {
		qs = append(qs, c.queues...)
	}
	slices.SortFunc(qs, allocate.Queue.Compare)
	return qs
}
