package coordinator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// chaos drives a coordinator at random with requests that members could send.
type chaos struct {
	*world
	pick    func(n int) int // 0..n-1
	clients []*client
	peers   []*peer
	told    map[string]coordination.Generation // the greatest generation of each classic group
	of      map[uint64]*client
}

func newChaos(t failer, pick func(int) int) *chaos {
	x := &chaos{pick: pick, told: map[string]coordination.Generation{}, of: map[uint64]*client{}}
	x.world = newWorld(t, func(c *Config) {
		c.InitialDelay = time.Duration(pick(2)) * time.Second
		c.AssignmentInterval = time.Duration(pick(2)) * time.Second
		c.KeepEmpty = time.Minute
		if pick(4) == 0 {
			c.MaxSize = 3
		}
	})
	x.seen = x.hear
	x.topics(6)
	for i := range 5 {
		c := x.client(fmt.Sprint("c", i))
		p := x.peer(fmt.Sprint("p", i))
		if i < 2 {
			c.inst, p.inst = fmt.Sprint("ic", i), fmt.Sprint("ip", i)
		}
		x.clients, x.peers = append(x.clients, c), append(x.peers, p)
	}
	return x
}

func (x *chaos) topics(n int) {
	x.step(Topics{map[string][]allocate.Queue{"a": queues(0, n), "b": nil}})
}

// hear is every answer.
func (x *chaos) hear(id uint64, a coordination.Answer) {
	c := x.of[id]
	delete(x.of, id)
	if c == nil {
		return
	}
	switch a := a.(type) {
	case coordination.JoinAnswer:
		if a.Code == coordination.MemberIDRequired {
			c.id = a.MemberID
		}
		if a.Code == coordination.OK {
			if a.Generation.Compare(x.told["g"]) < 0 {
				x.t.Fatalf("generation %v after %v", a.Generation, x.told["g"])
			}
			x.told["g"] = a.Generation
			c.id, c.gen, c.plan, c.leader, c.asgn, c.lead = a.MemberID, a.Generation, a.Members, a.Leader == a.MemberID, a.Assignor, a.Leader
		}
	case coordination.SyncAnswer:
		if a.Code == coordination.OK {
			c.queues = a.Queues
		}
	case coordination.HeartbeatAnswer, coordination.LeaveAnswer, coordination.ConsumerHeartbeatAnswer, coordination.ResumeAnswer:
	}
}

func (x *chaos) ask(c *client, r coordination.Request) {
	x.req++
	x.open[x.req] = true
	x.of[x.req] = c
	x.step(Request{x.req, r})
}

// check is what must hold after every step.
func (x *chaos) check() {
	kept := map[uint64]bool{}
	for id := range x.c.parked {
		kept[id] = true
	}
	for _, l := range x.c.waiting {
		kept[l.id] = true
	}
	for id := range x.open {
		if !kept[id] {
			x.t.Fatalf("request %d is forgotten", id)
		}
	}
	if len(kept) != len(x.open) {
		x.t.Fatalf("%d requests wait, %d are open", len(kept), len(x.open))
	}
	for _, l := range x.c.List() {
		g := x.c.groups[l.Group]
		joined := 0
		owner := map[allocate.Queue]string{}
		for _, m := range g.order {
			if g.members[m.id] != m || m.instance != "" && g.static[m.instance] != m {
				x.t.Fatalf("member %s is not found", m.id)
			}
			if m.join != 0 {
				joined++
			}
			if !g.consumer {
				continue
			}
			for _, q := range append(append([]allocate.Queue(nil), m.assigned...), m.revoking...) {
				if owner[q] != "" || g.owners[q] != m {
					x.t.Fatalf("%v is of %s and %q", q, m.id, owner[q])
				}
				owner[q] = m.id
			}
		}
		if joined != g.joined || len(g.order) != len(g.members) || len(owner) != len(g.owners) {
			x.t.Fatalf("group %s: %d joins counted as %d, %d of %d members, %d of %d queues", l.Group, joined, g.joined,
				len(g.order), len(g.members), len(owner), len(g.owners))
		}
	}
}

func (x *chaos) act() {
	x.now = x.now.Add(time.Millisecond)
	c, p := x.clients[x.pick(len(x.clients))], x.peers[x.pick(len(x.peers))]
	switch x.pick(24) {
	case 0, 1, 2, 3:
		r := c.joinRequest()
		if x.pick(4) == 0 {
			r.Assignors = []string{"sticky", "range"}
		}
		if x.pick(6) == 0 {
			r.MemberID = ""
		}
		x.ask(c, r)
	case 4, 5, 6, 7:
		s := coordination.Sync{Identity: c.who()}
		for i, m := range c.plan {
			s.Assignments = append(s.Assignments, coordination.Assignment{MemberID: m.MemberID, Queues: queues(i, i+1)})
		}
		x.ask(c, s)
	case 8, 9:
		x.ask(c, coordination.Heartbeat{Identity: c.who()})
	case 10:
		x.ask(c, coordination.Leave{Identity: c.who()})
	case 11, 12:
		if !c.gen.IsZero() {
			x.ask(c, coordination.Resume{
				Identity: c.who(), SessionTimeout: 10 * time.Second, RebalanceTimeout: time.Minute, Assignors: c.with,
				Assignor: c.asgn, Subscription: coordination.Subscription{Topics: c.topics}, Leader: c.lead, Assigned: c.queues,
			})
		}
	case 13, 14, 15, 16:
		r := p.request()
		r.Group = "h"
		if x.pick(3) == 0 {
			r.Owned, r.HasOwned = p.has, true
		}
		if x.pick(10) == 0 {
			r.Generation = coordination.Generation{}
		}
		if x.pick(10) == 0 {
			r.Leaving = coordination.Leaving(x.pick(3))
		}
		if x.pick(10) == 0 {
			r.Topics = [][]string{{"a"}, {"a", "b"}, {}}[x.pick(3)]
		}
		p.beats(r)
	case 17:
		if !p.epoch.IsZero() {
			x.send(coordination.Resume{
				Identity:     coordination.Identity{Group: "h", MemberID: p.id, Instance: p.inst, Generation: p.epoch},
				Subscription: coordination.Subscription{Topics: []string{"a"}}, Assigned: p.has, Consumer: true,
			})
		}
	case 18:
		x.wait(time.Duration(x.pick(20)) * time.Second)
	case 19:
		x.isSlow = x.pick(2) == 0
		for len(x.slow) > 0 && x.pick(3) > 0 {
			x.store()
		}
	case 20:
		if ids := slices.Sorted(maps.Keys(x.open)); len(ids) > 0 {
			x.cancel(ids[x.pick(len(ids))])
		}
	case 21:
		x.topics(4 + x.pick(4))
	case 22:
		switch x.pick(4) {
		case 0:
			x.start()
			d, _ := x.c.Describe("g")
			x.told["g"] = d.Generation // a gathering that was lost may have had a later one
			x.step(Hosting{[]string{"b1"}})
			x.topics(6)
		case 1:
			x.lose()
			clear(x.told) // who comes first may have been told of an earlier generation only
			x.topics(6)
		case 2:
			x.step(Hosting{[]string{"b2"}})
			clear(x.told)
			x.step(Hosting{[]string{"b1"}})
		case 3:
			for len(x.slow) > 1 {
				x.store()
			}
			if len(x.slow) > 0 {
				last := x.slow[0]
				x.slow = nil
				x.step(Persisted{ID: last.ID, Failed: true})
			}
		}
	case 23:
		x.step(Wake{}) // too early
	}
	x.check()
}

// settle lets three members of each protocol play by the rules until nothing changes.
func (x *chaos) settle() {
	x.isSlow = false
	for len(x.slow) > 0 {
		x.store()
	}
	for _, id := range slices.Sorted(maps.Keys(x.open)) {
		x.cancel(id)
	}
	x.topics(12)
	x.cfg.MaxSize = 0
	x.c.cfg.MaxSize = 0
	type life struct {
		*client
		join, sync uint64
		done       bool
	}
	var cs []*life
	var ps []*peer
	for i := range 3 {
		cs = append(cs, &life{client: x.client(fmt.Sprint("s", i))})
		p := x.peer(fmt.Sprint("t", i))
		ps = append(ps, p)
	}
	for range 400 {
		x.wait(time.Second)
		for _, c := range cs {
			switch {
			case c.join != 0 && x.open[c.join], c.sync != 0 && x.open[c.sync]:
			case c.join != 0:
				a := x.answers[c.join].(coordination.JoinAnswer)
				c.join, c.client.join = 0, c.join
				switch a.Code {
				case coordination.OK:
					c.joined()
					c.sync = c.client.sync(12)
				case coordination.MemberIDRequired:
					c.id = a.MemberID
				default:
					c.id = ""
				}
			case c.sync != 0:
				a := x.answers[c.sync].(coordination.SyncAnswer)
				c.sync = 0
				c.done = a.Code == coordination.OK
				c.queues = a.Queues
			case c.done:
				if got := c.beat(); got != coordination.OK {
					c.done = false
					if got == coordination.UnknownMember {
						c.id = ""
					}
				}
			default:
				c.join = x.send(c.joinRequest())
			}
		}
		for _, p := range ps {
			for _, r := range []coordination.ConsumerHeartbeat{p.request(), p.request()} {
				r.Group = "h"
				if !p.epoch.IsZero() {
					r.MemberID, r.Generation = p.id, p.epoch
					r.Owned, r.HasOwned = p.has, true
				}
				if a := p.beats(r); a.Code == coordination.UnknownMember || a.Code == coordination.FencedEpoch {
					p.epoch, p.has = coordination.Generation{}, nil
				}
			}
		}
		x.check()
	}
	for _, g := range []string{"g", "h"} {
		if d, _ := x.c.Describe(g); d.State != Stable || len(d.Members) != 3 {
			x.t.Fatalf("does not settle: %+v", d)
		}
	}
	qs := map[allocate.Queue]int{}
	for _, c := range cs {
		for _, q := range c.queues {
			qs[q]++
		}
	}
	for _, p := range ps {
		for _, q := range p.has {
			qs[q] += 100
		}
	}
	for _, q := range queues(0, 12) {
		if qs[q] != 101 {
			x.t.Fatalf("%v: owners %d", q, qs[q])
		}
	}
}

// Whatever members send, in whatever order, with restarts and losses: no request is
// forgotten or answered twice, generations only grow, no queue is in two current
// assignments, and when only well-behaved members are left the groups settle.
func TestAnyHistoryIsSafeAndSettles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		n := rapid.IntRange(0, 150).Draw(t, "acts")
		chance := rand.New(rand.NewPCG(seed, 1))
		x := newChaos(t, chance.IntN)
		for range n {
			x.act()
		}
		x.settle()
	})
}

// Every history of requests, also of those that no member sends, ends in answers.
func FuzzStep(f *testing.F) {
	f.Add([]byte("0123456789abcdefghijklmnopqrstuvwxyz"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2000 {
			return
		}
		at := 0
		pick := func(n int) int {
			if at >= len(data) {
				return 0
			}
			at++
			return int(data[at-1]) % n
		}
		x := newChaos(t, pick)
		for at < len(data) {
			if pick(3) > 0 {
				x.act()
				continue
			}
			gen := func() coordination.Generation {
				n := []uint64{0, 1, 1_000_000, 1_000_001, 1 << 62, 1<<64 - 1}
				return coordination.Generation{Broker: n[pick(6)], Counter: n[pick(6)]}
			}
			ids := []string{"", "c0-1", "ic0-1", "c1-2", "p0-1", "ip1-2", x.clients[0].id, x.peers[0].id}
			who := coordination.Identity{Group: []string{"g", "h", "i", ""}[pick(4)], MemberID: ids[pick(8)], Instance: []string{"", "ic0", "ip0"}[pick(3)], Generation: gen()}
			d := []time.Duration{0, -1, time.Minute, 1<<63 - 1}[pick(4)]
			sub := coordination.Subscription{Topics: []string{"b", "a", "a"}[:pick(4)], Generation: gen()}
			qs := queues(pick(5), pick(9))
			x.send([]coordination.Request{
				coordination.Join{Identity: who, SessionTimeout: max(d, time.Minute), RebalanceTimeout: d, Assignors: []string{"range", "range"}[:pick(3)], Subscription: sub, Exceed: gen()},
				coordination.Sync{Identity: who, Assignments: []coordination.Assignment{{MemberID: ids[pick(8)], Queues: qs}}},
				coordination.Heartbeat{Identity: who},
				coordination.Leave{Identity: who, Members: []coordination.Identity{who, {Instance: "ic0"}, {MemberID: ids[pick(8)]}}[:pick(4)]},
				coordination.ConsumerHeartbeat{Identity: who, Topics: sub.Topics, RebalanceTimeout: d, Owned: qs, HasOwned: pick(2) == 0, Leaving: coordination.Leaving(pick(4)), Exceed: gen(), Assignor: []string{"", "range", "none"}[pick(3)]},
				coordination.Resume{Identity: who, SessionTimeout: d, RebalanceTimeout: d, Assignors: []string{"range"}[:pick(2)], Subscription: sub, Assigned: qs, Consumer: pick(2) == 0, Leader: ids[pick(8)]},
			}[pick(6)])
			clear(x.told) // such requests may be from far in the future
			x.check()
		}
	})
}
