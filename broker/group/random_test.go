package group

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// rig feeds a registry with events made of numbers that somebody picks, and checks
// what every history must keep.
type rig struct {
	pick  func(n int) int // 0..n-1
	fail  func(format string, args ...any)
	r     *Registry
	now   time.Time
	wake  time.Time
	store []uint64
	peers map[SessionID]*peer
	next  SessionID
	log   strings.Builder // all effects, to compare runs
	keep  bool
	req   uint64
	// held is what client ids were last granted, to name it and give it back.
	held map[string]map[allocate.Queue]session.Epoch
}

// peer is the other end of a session.
type peer struct {
	id      string
	greeted bool // it got its first frame
	ended   bool // it was closed by the broker
	views   map[string]session.View
}

func newRig(pick func(int) int, fail func(string, ...any)) *rig {
	g := &rig{pick: pick, fail: fail, now: time.Unix(1_000_000, 0), peers: map[SessionID]*peer{}, held: map[string]map[allocate.Queue]session.Epoch{}}
	var stored []lease.Record
	for i := range pick(3) {
		stored = append(stored, lease.Record{
			Key: lease.Key{Group: "g", Queue: g.queue()}, Epoch: session.Epoch{Broker: 1, Counter: uint64(i)},
			Holder: g.id(), Incarnation: g.incarnation(), TimeoutMillis: 1000,
		})
	}
	g.r = New(Config{Broker: "b1", BrokerEpoch: 2, SessionTimeout: time.Second}, stored, g.now)
	return g
}

func (g *rig) id() string { return fmt.Sprintf("c%d", g.pick(5)) }

func (g *rig) incarnation() session.Incarnation {
	if g.pick(6) > 0 {
		return session.Incarnation{Counter: 1, Random: 1}
	}
	return session.Incarnation{Counter: uint64(1 + g.pick(2)), Random: uint64(g.pick(2))}
}

func (g *rig) topic() string { return []string{"a", "a", "a", "b", "nowhere"}[g.pick(5)] }

func (g *rig) queue() allocate.Queue {
	return allocate.Queue{Topic: g.topic(), Broker: fmt.Sprintf("b%d", 1+g.pick(2)), ID: int32(g.pick(4))}
}

func (g *rig) epoch() session.Epoch {
	return session.Epoch{Broker: uint64(g.pick(3)), Counter: uint64(g.pick(12))}
}

func (g *rig) queues() (out []allocate.Queue) {
	for range g.pick(4) {
		out = append(out, g.queue())
	}
	return out
}

func (g *rig) owned(topic string) (out []session.Owned) {
	for range g.pick(4) {
		q := g.queue()
		if topic != "" {
			q.Topic = topic
		}
		out = append(out, session.Owned{Queue: q, Epoch: g.epoch()})
	}
	return out
}

func (g *rig) subs() (out []session.Subscription) {
	for range g.pick(3) {
		s := session.Subscription{Topic: g.topic(), Filter: "*"}
		if g.pick(20) == 0 {
			s.Filter = "x"
		}
		out = append(out, s)
	}
	return append(out, session.Subscription{Topic: "a", Filter: "*"})
}

func (g *rig) silent() (out []session.Silence) {
	for range g.pick(2) {
		out = append(out, session.Silence{Broker: fmt.Sprintf("b%d", 1+g.pick(3)), Unreachable: g.pick(2) == 0})
	}
	return out
}

func (g *rig) hello() session.Hello {
	h := session.Hello{
		Group: "g", ClientID: g.id(), Incarnation: g.incarnation(), SessionTimeout: time.Duration(g.pick(3)) * time.Second,
		Subscriptions: g.subs(), Offers: []session.Offer{{Strategy: "sticky", Data: []byte{byte(g.pick(2))}}},
		Silent: g.silent(), Leaving: g.pick(10) == 0,
	}
	h.Held = g.holds(h.ClientID)
	switch g.pick(30) {
	case 0, 4, 5:
		h.Instance = h.ClientID
		h.Incarnation.Counter = uint64(1 + g.pick(3))
	case 1:
		h.Mode = session.Mode(g.pick(4))
	case 2:
		h.Offers = append(h.Offers, session.Offer{Strategy: "averagely"})
	case 3:
		h.Group = strings.Repeat("g", 1+g.pick(300))
	}
	if g.pick(3) == 0 {
		h.Views = []session.ViewRef{{
			Topic:   g.topic(),
			Version: session.Version{Broker: fmt.Sprintf("b%d", 1+g.pick(2)), Epoch: uint64(1 + g.pick(2)), Counter: uint64(g.pick(5))},
			Members: session.MembersDigest("a", []string{"c0", "c1"}[:g.pick(3)]),
		}}
	}
	return h
}

// holds is most of what a client id was granted, and sometimes something else.
func (g *rig) holds(id string) (out []session.Owned) {
	if g.pick(6) == 0 {
		out = g.owned("")
	}
	for _, t := range []string{"a", "b"} {
		for i := range int32(4) {
			q := allocate.Queue{Topic: t, Broker: "b1", ID: i}
			if e, ok := g.held[id][q]; ok && g.pick(4) > 0 {
				out = append(out, session.Owned{Queue: q, Epoch: e})
			}
		}
	}
	return out
}

func (g *rig) frame(p *peer) session.ToBroker {
	switch g.pick(40) {
	default:
		return g.report(p)
	case 0:
		return g.hello()
	case 2:
		return session.Heartbeat{Seq: uint64(g.pick(9))}
	case 3, 4, 5, 6, 7:
		return session.FetchView{Topic: g.topic(), Seq: uint64(g.pick(9))}
	case 8, 9, 20, 21, 22:
		return session.Acquire{Queues: g.queues(), ViewBroker: []string{"", "b1", "b2"}[g.pick(3)]}
	case 10:
		return session.Withdraw{Queues: g.queues()}
	case 11, 17, 18, 19:
		rel := session.Released{}
		for _, o := range g.holds(p.id) {
			rel.Leases = append(rel.Leases, session.Release{Queue: o.Queue, Epoch: o.Epoch, Offset: int64(g.pick(9)), HasOffset: g.pick(2) == 0})
		}
		return rel
	case 12:
		return session.Subscribe{Subscriptions: g.subs()}
	case 13:
		return session.Reach{Silent: g.silent()}
	case 14, 15:
		ids := []string{"c0", "c1"}[:g.pick(3)]
		return session.MemberList{Topic: g.topic(), Members: session.MembersDigest("a", ids), IDs: ids}
	case 16:
		return []session.ToBroker{session.Leaving{}, session.Goodbye{}, nil, session.Acquire{Queues: make([]allocate.Queue, 2)}}[g.pick(4)]
	}
}

func (g *rig) report(p *peer) session.Report {
	t := g.topic()
	rep := session.Report{Topic: t, Full: g.pick(2) == 0, Owned: g.owned(t), NotOwned: g.queues(), Draining: g.pick(4) == 0}
	if t == "a" && g.pick(2) == 0 {
		rep.NotOwned, rep.Owned = nil, nil
		for _, o := range g.holds(p.id) {
			if o.Queue.Topic == t {
				rep.Owned = append(rep.Owned, o)
			}
		}
	}
	rep.Expected = session.OwnersDigest(t, []session.Holding{{Queue: g.queue(), ClientID: "c1"}})
	if v, ok := p.views[t]; ok && g.pick(2) == 0 {
		rep.Expected = v.Owners
	}
	return rep
}

func (g *rig) routes() Routes {
	var r Routes
	for _, name := range []string{"a", "b"}[:g.pick(3)] {
		t := Topic{Name: name}
		for _, b := range []string{"b1", "b2"}[:1+g.pick(2)] {
			t.Brokers = append(t.Brokers, b)
			for id := range g.pick(4) {
				t.Queues = append(t.Queues, allocate.Queue{Topic: name, Broker: b, ID: int32(id)})
			}
		}
		r.Topics = append(r.Topics, t)
	}
	return r
}

func (g *rig) local() LocalQueues {
	var l LocalQueues
	for _, name := range []string{"a", "b"} {
		for id := range g.pick(4) {
			l.Queues = append(l.Queues, allocate.Queue{Topic: name, Broker: "b1", ID: int32(id)})
		}
	}
	return l
}

// session is mostly one that is open.
func (g *rig) session() SessionID {
	var open []SessionID
	for s := SessionID(1); s <= g.next; s++ {
		if p := g.peers[s]; p != nil && (!p.ended || g.pick(8) == 0) {
			open = append(open, s)
		}
	}
	if len(open) == 0 {
		return 0
	}
	return open[g.pick(len(open))]
}

func (g *rig) turn() {
	switch g.pick(24) {
	case 0, 1: // a new stream
		g.next++
		p := &peer{views: map[string]session.View{}}
		g.peers[g.next] = p
		if g.pick(20) == 0 {
			g.step(Received{g.next, g.frame(p)})
			return
		}
		h := g.hello()
		p.id = h.ClientID
		g.step(Received{g.next, h})
	case 2:
		if s := g.session(); g.peers[s] != nil {
			delete(g.peers, s)
			g.step(Closed{s, g.pick(2) == 0})
		}
	case 3:
		if g.pick(4) == 0 {
			g.step(g.routes())
			g.step(g.local())
		}
	case 4:
		if g.pick(8) == 0 {
			g.now = g.now.Add(time.Duration(g.pick(3000)) * time.Millisecond) // a pause
		}
		g.step(Wake{})
	case 5, 8, 9:
		most := 60
		if g.pick(10) == 0 {
			most = 2000
		}
		for end := g.now.Add(time.Duration(g.pick(most)) * time.Millisecond); !g.wake.IsZero() && g.wake.Before(end); {
			g.now = g.wake
			g.step(Wake{})
		}
	case 10:
		for s := SessionID(1); s <= g.next; s++ {
			if p := g.peers[s]; p != nil && !p.ended {
				g.step(Received{s, session.Heartbeat{}})
			}
		}
	case 6, 11, 12, 13:
		if n := len(g.store); n > 0 {
			id := g.store[g.pick(n)]
			g.store = slices.DeleteFunc(g.store, func(o uint64) bool { return o <= id })
			g.step(Persisted{id})
		}
	case 7:
		g.req++
		if g.pick(3) == 0 {
			g.step(Reset{g.req, lease.Key{Group: "g", Queue: g.queue()}, int64(g.pick(9)), g.pick(2) == 0})
			return
		}
		for _, o := range append(g.holds(g.id()), session.Owned{Queue: g.queue(), Epoch: g.epoch()}) {
			g.step(Commit{g.req, lease.Key{Group: "g", Queue: o.Queue}, o.Epoch, int64(g.pick(9)) - 1})
		}
	default:
		if s := g.session(); g.peers[s] != nil {
			g.step(Received{s, g.frame(g.peers[s])})
		}
	}
}

func (g *rig) step(ev Event) {
	for _, eff := range g.r.Step(g.now, ev) {
		if g.keep {
			fmt.Fprintf(&g.log, "%+v\n", eff)
		}
		switch eff := eff.(type) {
		case WakeAt:
			if g.wake = eff.At; !eff.At.After(g.now) {
				g.fail("a wake at %v is asked for at %v", eff.At, g.now)
			}
		case Persist:
			if n := len(g.store); n > 0 && g.store[n-1] >= eff.ID {
				g.fail("batch %d after %d", eff.ID, g.store[n-1])
			}
			g.store = append(g.store, eff.ID)
		case CloseSession:
			if p := g.peers[eff.Session]; p != nil {
				p.ended = true
			}
		case Send:
			p := g.peers[eff.Session]
			if p == nil || p.ended {
				g.fail("%T for session %d, which is no more", eff.Frame, eff.Session)
				return
			}
			g.sent(p, eff.Frame)
		case Answer:
		}
	}
	g.check()
}

// sent checks a frame as its receiver would.
func (g *rig) sent(p *peer, f session.ToMember) {
	switch f := f.(type) {
	case session.Welcome:
		if p.greeted {
			g.fail("welcomed twice")
		}
		g.held[p.id] = map[allocate.Queue]session.Epoch{}
		for _, gr := range f.Grants {
			g.held[p.id][gr.Queue] = gr.Epoch
		}
	case session.Refused:
	case session.ViewAnswer:
		if f.Warming {
			break
		}
		v := f.View
		if d := session.InputsDigest(v.Topic, v.Queues, v.Members); d != v.Inputs {
			g.fail("inputs of %v: digest %x, is %x", v.Version, v.Inputs, d)
		}
		if d := session.OwnersDigest(v.Topic, session.Owners(v.Members)); d != v.Owners {
			g.fail("owners of %v: digest %x, is %x", v.Version, v.Owners, d)
		}
		old := p.views[v.Topic]
		if old.Version.After(v.Version) {
			g.fail("view %v after %v", v.Version, old.Version)
		}
		if old.Version == v.Version && old.Inputs != v.Inputs {
			g.fail("two views of version %v", v.Version)
		}
		p.views[v.Topic] = v
	case session.GroupChanged:
		old := p.views[f.Topic]
		if !f.Version.After(f.Previous) {
			g.fail("version %v follows %v", f.Version, f.Previous)
		}
		if old.Version.IsZero() || old.Version != f.Previous {
			break
		}
		p.views[f.Topic] = g.apply(old, f)
	case session.Granted:
		for _, gr := range f.Grants {
			g.held[p.id][gr.Queue] = gr.Epoch
		}
	default:
		if !p.greeted {
			g.fail("%T before the welcome", f)
		}
	}
	p.greeted = true
}

// apply makes the next view of the one before and a notice, as members do.
func (g *rig) apply(v session.View, f session.GroupChanged) session.View {
	members := slices.DeleteFunc(slices.Clone(v.Members), func(m session.Member) bool { return slices.Contains(f.Left, m.ClientID) })
	members = append(members, f.Joined...)
	slices.SortFunc(members, func(a, b session.Member) int { return session.CompareIDs(a.ClientID, b.ClientID) })
	queues := slices.DeleteFunc(slices.Clone(v.Queues), func(q allocate.Queue) bool { return slices.Contains(f.Removed, q) })
	queues = append(queues, f.Added...)
	slices.SortFunc(queues, allocate.Queue.Compare)
	if d := session.InputsDigest(f.Topic, queues, members); d != f.Inputs {
		g.fail("notice %v applied to %v: digest %x, should be %x", f.Version, v.Version, d, f.Inputs)
	}
	v.Version, v.Members, v.Queues, v.Inputs = f.Version, members, queues, f.Inputs
	return v
}

// check looks inside.
func (g *rig) check() {
	for _, gr := range g.r.groups {
		warm := 0
		for _, v := range gr.views {
			if v.warmed {
				warm++
			}
			if len(v.all) == 0 {
				g.fail("view of %s has no members", v.name)
			}
			var members []session.Member
			expected, draining := map[session.Digest]int{}, 0
			for i := range v.pub {
				members = append(members, v.pub[i].member())
				expected[v.pub[i].vm.expected]++
			}
			for _, vm := range v.all {
				if vm.draining {
					draining++
				}
			}
			if want := session.Owners(members); !slices.Equal(want, v.owners.sorted) {
				g.fail("owners %v, should be %v", v.owners.sorted, want)
			}
			if draining != v.draining || !maps.Equal(expected, v.expected) {
				g.fail("drain %d expect %v, should be %d and %v", v.draining, v.expected, draining, expected)
			}
		}
		strategies, silent := map[string]int{}, 0
		for _, m := range gr.members {
			for _, o := range m.offers {
				strategies[o.Strategy]++
			}
			if len(m.silent) > 0 {
				silent++
			}
			for _, vm := range m.views {
				if i, ok := vm.v.find(m.id); !ok || vm.v.all[i] != vm {
					g.fail("%s is not in its view of %s", m.id, vm.v.name)
				}
			}
		}
		if !maps.Equal(strategies, gr.strategies) || silent != gr.silent {
			g.fail("strategies %v silent %d, should be %v and %d", gr.strategies, gr.silent, strategies, silent)
		}
	}
	for i, t := range g.r.timers.heap {
		if t.pos != i+1 || i > 0 && g.r.timers.less(t, g.r.timers.heap[(i-1)/2]) {
			g.fail("timers are not a heap at %d", i)
		}
	}
}

// Whatever members send: views are what their digests say, versions grow, notices
// lead from one version to the next, sessions begin with a welcome and end with
// their close, and the broker's own books agree.
func TestAnyHistoryKeepsViewsConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 1<<16)
		g := newRig(func(n int) int { return number.Draw(t, "n") % n }, t.Fatalf)
		g.step(g.routes())
		g.step(g.local())
		for range number.Draw(t, "turns") % 120 {
			g.turn()
		}
	})
}

// Equal histories give equal effects, in equal order.
func TestSameHistoryGivesSameEffects(t *testing.T) {
	for seed := range uint64(40) {
		run := func() string {
			rng := rand.New(rand.NewPCG(seed, 1))
			g := newRig(rng.IntN, t.Fatalf)
			g.keep = true
			for range 200 {
				g.turn()
			}
			return g.log.String()
		}
		if a, b := run(), run(); a != b {
			t.Fatalf("seed %d: two runs differ:\n%s\n---\n%s", seed, a, b)
		}
	}
}

// Long histories, to reach states that short ones do not.
func TestLongHistories(t *testing.T) {
	var sum Stats
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		g := newRig(rng.IntN, func(format string, args ...any) { t.Fatalf("seed %d: "+format, append([]any{seed}, args...)...) })
		for range 4000 {
			g.turn()
		}
		s := g.r.Stats()
		sum.Hellos += s.Hellos
		sum.ViewsReady += s.ViewsReady
		sum.ViewsServed += s.ViewsServed
		sum.Notices += s.Notices
		sum.QuietSignals += s.QuietSignals
		sum.Inheritances += s.Inheritances
		sum.Leases.Grants += s.Leases.Grants
		sum.Leases.Releases += s.Leases.Releases
		sum.Leases.Kept += s.Leases.Kept
		sum.Leases.Wanted += s.Leases.Wanted
		sum.Leases.Commits += s.Leases.Commits
	}
	if l := sum.Leases; sum.Hellos < 3000 || sum.ViewsReady < 300 || sum.ViewsServed < 100 || sum.Notices < 500 || sum.QuietSignals < 300 ||
		sum.Inheritances < 5 || l.Grants < 300 || l.Releases < 50 || l.Kept < 100 || l.Wanted < 10 || l.Commits < 50 {
		t.Errorf("the histories reach too little: %+v", sum)
	}
}

// FuzzFrames makes a history of arbitrary bytes.
func FuzzFrames(f *testing.F) {
	for seed := range uint64(4) {
		b := make([]byte, 400)
		rng := rand.New(rand.NewPCG(seed, 3))
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		i := 0
		g := newRig(func(n int) int {
			if i >= len(data) {
				return 0
			}
			i++
			if n > 256 && i < len(data) {
				i++
				return (int(data[i-2])<<8 | int(data[i-1])) % n
			}
			return int(data[i-1]) % n
		}, t.Fatalf)
		for turns := 0; i < len(data) && turns < 300; turns++ {
			g.turn()
			i++
		}
	})
}
