package rebalance

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// chance draws everything a random history is made of from few values, so that
// things meet.
type chance struct {
	pick func(n int) int // in [0, n)
}

func (c chance) broker() string { return []string{"b1", "b2", "b3"}[c.pick(3)] }
func (c chance) topic() string  { return []string{"a", "b"}[c.pick(2)] }
func (c chance) client() string { return []string{"c1", "c2", "c3"}[c.pick(3)] }

func (c chance) queue() allocate.Queue {
	return allocate.Queue{Topic: c.topic(), Broker: c.broker(), ID: int32(c.pick(3))}
}

func (c chance) epoch() session.Epoch {
	return session.Epoch{Broker: uint64(c.pick(2)), Counter: uint64(c.pick(6))}
}

func (c chance) owned() session.Owned { return session.Owned{Queue: c.queue(), Epoch: c.epoch()} }

func many[T any](c chance, most int, one func() T) []T {
	var out []T
	for range c.pick(most + 1) {
		out = append(out, one())
	}
	return out
}

func (c chance) version() session.Version {
	return session.Version{Broker: c.broker(), Epoch: uint64(c.pick(2)), Counter: uint64(c.pick(5))}
}

func (c chance) grant() session.Grant {
	return session.Grant{Queue: c.queue(), Epoch: c.epoch(), Offset: int64(c.pick(9)), HasOffset: c.pick(2) == 0, Kept: c.pick(2) == 0}
}

func (c chance) member() session.Member {
	m := session.Member{ClientID: c.client(), Incarnation: session.Incarnation{Counter: 1, Random: uint64(c.pick(3))}, Owned: many(c, 3, c.owned)}
	for _, name := range []string{"sticky", "averagely"} {
		if c.pick(8) > 0 {
			m.Offers = append(m.Offers, session.Offer{Strategy: name})
		}
	}
	return m
}

func (c chance) digest(known ...session.Digest) session.Digest {
	return append(known, session.Digest(c.pick(3)))[c.pick(len(known)+1)]
}

func (c chance) subscriptions() []session.Subscription {
	return many(c, 3, func() session.Subscription { return session.Subscription{Topic: c.topic(), Filter: "*"} })
}

// likely draws a frame that e may wait for, and who it comes from.
func (c chance) likely(e *Engine) (string, session.ToMember) {
	for _, p := range e.peers {
		if p.phase == greeting && c.pick(2) == 0 {
			w := session.Welcome{BrokerEpoch: 1, SessionTimeout: 10 * time.Second, Inherited: many(c, 1, c.owned), Grants: many(c, 1, c.grant)}
			for _, t := range e.topics {
				for _, h := range t.holds {
					if h.queue.Broker != p.name {
						continue
					}
					switch {
					case h.leased() && c.pick(3) > 0:
						w.Grants = append(w.Grants, session.Grant{Queue: h.queue, Epoch: h.epoch, Kept: true})
					case c.pick(2) == 0:
						g := c.grant()
						g.Queue, g.Epoch.Counter = h.queue, h.epoch.Counter+1
						w.Grants = append(w.Grants, g)
					}
				}
			}
			return p.name, w
		}
		if p.phase == welcomed && c.pick(4) == 0 {
			return p.name, session.HeartbeatAck{Seq: p.seq}
		}
	}
	if len(e.topics) == 0 {
		return c.broker(), c.frame(e)
	}
	t := e.topics[c.pick(len(e.topics))]
	broker := c.broker()
	var qs []allocate.Queue
	for _, h := range t.holds {
		if h.queue.Broker == broker {
			qs = append(qs, h.queue)
		}
	}
	switch c.pick(6) {
	case 0, 1:
		v := session.View{
			Topic: t.name, Version: session.Version{Broker: t.using, Epoch: 1, Counter: e.seq},
			Queues: many(c, 9, c.queue), Members: many(c, 3, c.member),
		}
		v.Members = append(v.Members, session.Member{ClientID: "c1", Offers: e.offers})
		v.Queues = cleanQueues(t.name, v.Queues)
		v.Members = sortMembers(v.Members)
		v.Inputs = session.InputsDigest(t.name, v.Queues, v.Members)
		v.Owners = session.OwnersDigest(t.name, session.Owners(v.Members))
		return t.using, session.ViewAnswer{Seq: t.fetchSeq, View: v, Warming: c.pick(8) == 0}
	case 2:
		var f session.Granted
		for _, q := range qs {
			if h := t.hold(q); h.state == asked || h.state == withdrawing || c.pick(6) == 0 {
				g := c.grant()
				g.Queue, g.Epoch = q, session.Epoch{Broker: 1, Counter: h.epoch.Counter + uint64(c.pick(3))}
				f.Grants = append(f.Grants, g)
			}
		}
		return broker, f
	case 3:
		var f session.Withdrawn
		for _, q := range qs {
			if t.hold(q).state == withdrawing {
				f.Queues = append(f.Queues, q)
			}
		}
		return broker, f
	case 4:
		f := session.GroupChanged{Topic: t.name, Joined: many(c, 2, c.member), OwnersBefore: t.expected}
		if t.last != nil {
			f.Previous = t.last.version
			joined := sortMembers(slices.Clone(f.Joined))
			members := slices.DeleteFunc(slices.Clone(t.last.members), func(m session.Member) bool { return memberAt(joined, m.ClientID) >= 0 })
			f.Inputs = session.InputsDigest(t.name, t.last.queues, sortMembers(append(members, joined...)))
		}
		f.Version = f.Previous
		f.Version.Counter++
		return t.using, f
	default:
		if c.pick(2) == 0 {
			var f session.LeaseLost
			for _, q := range qs {
				f.Leases = append(f.Leases, session.Owned{Queue: q, Epoch: t.hold(q).epoch})
			}
			f.Reason = session.Reason(c.pick(2)) * session.ReasonUnknownQueue
			return broker, f
		}
		return broker, session.LeaseWanted{Queues: qs, ViewBroker: c.broker()}
	}
}

// frame draws a frame, whether it makes sense or not.
func (c chance) frame(e *Engine) session.ToMember {
	var t *topic
	if len(e.topics) > 0 {
		t = e.topics[c.pick(len(e.topics))]
	}
	var known []session.Digest
	if t != nil {
		known = []session.Digest{t.expected, t.inputs, t.owners}
	}
	switch c.pick(14) {
	case 0, 1:
		w := session.Welcome{BrokerEpoch: uint64(c.pick(2)), SessionTimeout: time.Duration(c.pick(3)) * 5 * time.Second, Inherited: many(c, 2, c.owned), Grants: many(c, 3, c.grant)}
		for _, t := range e.topics {
			for _, h := range t.holds {
				if h.leased() && c.pick(4) > 0 {
					w.Grants = append(w.Grants, session.Grant{Queue: h.queue, Epoch: h.epoch, Kept: true})
				}
			}
		}
		return w
	case 2:
		reasons := []session.Reason{0, session.ReasonStaticExists, session.ReasonExpired, session.ReasonReplaced, session.ReasonShutdown, session.ReasonUnknownQueue}
		if c.pick(20) == 0 {
			reasons = []session.Reason{session.ReasonFenced, session.ReasonModeMismatch, 99}
		}
		return session.Refused{Reason: reasons[c.pick(len(reasons))], Incarnation: session.Incarnation{Counter: uint64(c.pick(4))}}
	case 3:
		seq := uint64(c.pick(4))
		if len(e.peers) > 0 {
			seq = e.peers[c.pick(len(e.peers))].seq
		}
		return session.HeartbeatAck{Seq: seq, Views: many(c, 2, func() session.ViewState {
			return session.ViewState{Topic: c.topic(), Version: c.version(), Inputs: c.digest(known...), Owners: c.digest(known...), OwnersSettled: c.pick(2) == 0}
		})}
	case 4:
		return session.ViewAnswer{Seq: uint64(c.pick(4)), Warming: c.pick(2) == 0, View: session.View{Topic: c.topic(), Version: c.version()}}
	case 5:
		return session.ViewReady{Topic: c.topic(), Version: c.version(), Inputs: c.digest(known...)}
	case 6:
		return session.GroupChanged{
			Topic: c.topic(), Version: c.version(), Previous: c.version(), Joined: many(c, 2, c.member), Left: many(c, 2, c.client),
			Added: many(c, 2, c.queue), Removed: many(c, 2, c.queue), Inputs: c.digest(known...), OwnersBefore: c.digest(known...),
		}
	case 7:
		return session.OwnersChanged{Topic: c.topic(), Version: c.version(), Owners: c.digest(known...)}
	case 8:
		return session.Nudge{Topic: c.topic(), Queue: c.queue()}
	case 9:
		return session.AskMembers{Topic: c.topic(), Members: c.digest(known...)}
	case 10:
		return session.Granted{Grants: many(c, 3, c.grant)}
	case 11:
		return session.LeaseWanted{Queues: many(c, 3, c.queue), ViewBroker: c.broker()}
	case 12:
		return session.Withdrawn{Queues: many(c, 3, c.queue), Reason: session.Reason(c.pick(2)) * session.ReasonUnknownQueue}
	default:
		return session.LeaseLost{Leases: many(c, 2, c.owned), Reason: session.Reason(c.pick(2)) * session.ReasonUnknownQueue}
	}
}

func (c chance) event(e *Engine) Event {
	switch n := c.pick(100); {
	case n < 8:
		return Wake{}
	case n < 14:
		var r Routes
		for range c.pick(3) {
			t := Topic{Name: c.topic(), Brokers: many(c, 3, c.broker)}
			for _, b := range t.Brokers {
				t.Queues = append(t.Queues, allocate.Queue{Topic: t.Name, Broker: b, ID: int32(c.pick(3))})
			}
			r.Topics = append(r.Topics, t)
		}
		return r
	case n < 20:
		for _, p := range e.peers {
			if p.phase == connecting {
				return Connected{p.name}
			}
		}
		return Connected{c.broker()}
	case n < 22:
		return Disconnected{c.broker()}
	case n < 24:
		return SetSubscriptions{c.subscriptions()}
	case n < 34:
		for _, t := range e.topics {
			for _, h := range t.holds {
				if h.state == draining {
					return Drained{Queue: h.queue, Epoch: h.epoch, Offset: int64(c.pick(9)), HasOffset: true}
				}
			}
		}
		return Drained{Queue: c.queue(), Epoch: c.epoch()}
	case n < 36:
		return Refused{Queue: c.queue(), Epoch: c.epoch()}
	case n < 37:
		return Stalled{}
	case n < 40:
		return Recovered{}
	case n == 49 && c.pick(8) == 0:
		return Leave{}
	}
	if c.pick(3) > 0 {
		broker, f := c.likely(e)
		return Received{broker, f}
	}
	return Received{c.broker(), c.frame(e)}
}

func (c chance) config() Config {
	cfg := Config{
		Group: "g", ClientID: "c1", Mode: session.Mode(c.pick(8)), Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
		Strategies: []allocate.Strategy{allocate.Sticky{}, allocate.Averagely{}},
	}
	if cfg.Mode > session.Broadcasting {
		cfg.Mode = session.Exclusive
	}
	if c.pick(3) == 0 {
		cfg.Instance = "i"
	}
	return cfg
}

// history runs n random events against two engines, one of which looks at every topic
// in every Step, and checks every effect.
func history(c chance, n int, broken Broken) error {
	cfg := c.config()
	cfg.Broken = broken
	one, err := New(cfg)
	if err != nil {
		return err
	}
	two, err := New(cfg)
	if err != nil {
		return err
	}
	two.always = true
	check := newChecker(cfg.Mode)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		switch c.pick(12) {
		case 0:
			if c.pick(8) == 0 {
				now = now.Add(time.Duration(c.pick(30)) * time.Second)
			}
		case 1, 2:
			if one.wake.After(now) {
				now = one.wake
			}
		default:
			now = now.Add(time.Duration(c.pick(50)) * time.Millisecond)
		}
		ev := c.event(one)
		out := one.Step(now, ev)
		if err := check.step(now, ev, out); err != nil {
			return fmt.Errorf("event %d %T %+v: %w", i, ev, ev, err)
		}
		if other := two.Step(now, ev); !reflect.DeepEqual(out, other) {
			return fmt.Errorf("event %d %T: effects differ:\n%v\n%v", i, ev, out, other)
		}
		if err := consistent(one, check); err != nil {
			return fmt.Errorf("event %d %T %+v: %w", i, ev, ev, err)
		}
		if one.ended {
			if out := one.Step(now, Connected{"b1"}); out != nil {
				return fmt.Errorf("effects after the end: %v", out)
			}
			return nil
		}
	}
	return nil
}

// consistent compares what the engine believes with what its effects said.
func consistent(e *Engine, check *checker) error {
	if e.ended {
		return nil
	}
	n := 0
	for _, t := range e.topics {
		for i, h := range t.holds {
			if i > 0 && t.holds[i-1].queue.Compare(h.queue) >= 0 {
				return fmt.Errorf("holds of %s are not sorted", t.name)
			}
			p := e.peer(h.queue.Broker)
			switch h.state {
			case owned, draining:
				n++
				if epoch, ok := check.have[h.queue]; !ok || epoch != h.epoch || check.revoked[h.queue] != (h.state == draining) {
					return fmt.Errorf("%v is %v under %v, effects said %v %v", h.queue, h.state, h.epoch, ok, epoch)
				}
			case asked, withdrawing:
				if p == nil || p.phase != welcomed || check.request[h.queue] == "" {
					return fmt.Errorf("%v is %v without a request", h.queue, h.state)
				}
			case waiting:
				if !h.want || p != nil && p.phase == welcomed && !h.refused {
					return fmt.Errorf("%v waits, wanted %v", h.queue, h.want)
				}
			case free:
				return fmt.Errorf("%v is kept though free", h.queue)
			case drained, claimed:
			}
			if h.want && !e.active(t) {
				return fmt.Errorf("%v is wanted of a topic that is not shared", h.queue)
			}
		}
	}
	if n != len(check.have) {
		return fmt.Errorf("%d queues are held, effects said %d", n, len(check.have))
	}
	if !e.wake.After(e.now) {
		return fmt.Errorf("wakes at %v, it is %v", e.wake, e.now)
	}
	return nil
}

func TestRandomHistoriesKeepEveryRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// One number makes the whole history: draws of rapid lean to small values,
		// and then little happens.
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		if err := history(chance{r.IntN}, rapid.IntRange(100, 600).Draw(t, "events"), Broken{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRandomHistoriesCatchBrokenEngines(t *testing.T) {
	for name, broken := range map[string]Broken{
		"TwoRequests":    {TwoRequests: true},
		"NoSendingClock": {NoSendingClock: true},
		"KeepStaleQueue": {KeepStaleQueue: true},
		"GoodbyeFirst":   {GoodbyeFirst: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(300) {
				r := rand.New(rand.NewPCG(seed, 2))
				if history(chance{r.IntN}, 600, broken) != nil {
					return
				}
			}
			t.Error("300 histories show nothing")
		})
	}
}

// FuzzFrames feeds histories made of the fuzzer's bytes.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x01\x02\x03\x04\x05\x06\x07\x08\x09"))
	for i := range 8 {
		seed := make([]byte, 4000)
		x := uint32(i + 1)
		for j := range seed {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			seed[j] = byte(x)
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		at := 0
		c := chance{func(n int) int {
			if at >= len(data) {
				return 0
			}
			at++
			return int(data[at-1]) % n
		}}
		if err := history(c, min(len(data), 400), Broken{}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGroupsSettleAfterRandomChanges has a group go through whatever comes, and
// then be left alone.
func TestGroupsSettleAfterRandomChanges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(rt, map[string]map[string]int{"a": {"b1": 5, "b2": 4}, "b": {"b2": 3}})
		c.drain = time.Duration(rapid.IntRange(0, 20).Draw(rt, "drain")) * time.Millisecond
		for _, id := range ids(2) {
			c.join(id, nil)
		}
		next := 2
		live := func() *toyMember {
			var ms []*toyMember
			for _, m := range c.sorted() {
				if !m.dead && !m.left && !m.engine.leaving {
					ms = append(ms, m)
				}
			}
			if len(ms) == 0 {
				return nil
			}
			return ms[rapid.IntRange(0, len(ms)-1).Draw(rt, "member")]
		}
		for range rapid.IntRange(1, 12).Draw(rt, "changes") {
			c.run(time.Duration(rapid.IntRange(0, 60).Draw(rt, "gap")) * time.Millisecond)
			c.owners()
			b := c.brokers[rapid.SampledFrom([]string{"b1", "b2"}).Draw(rt, "broker")]
			m := live()
			switch rapid.IntRange(0, 9).Draw(rt, "change") {
			case 0, 1:
				c.join(fmt.Sprintf("c%02d", next), nil)
				next++
			case 2:
				if m != nil {
					c.step(m, Leave{})
				}
			case 3:
				if m != nil {
					c.crash(m)
				}
			case 4:
				if m != nil && m.stream[b.name] != 0 {
					c.cut(m, b.name, true)
				}
			case 5:
				c.topics["a"]["b1"] = rapid.IntRange(1, 8).Draw(rt, "queues")
				c.reroute()
			case 6:
				if b.down {
					b.start()
				} else {
					b.crash()
				}
			case 7:
				if m != nil {
					subs := []session.Subscription{{Topic: "a", Filter: "*"}, {Topic: "b", Filter: "*"}}
					c.step(m, SetSubscriptions{subs[rapid.IntRange(0, 1).Draw(rt, "from"):]})
					c.reroute()
				}
			case 8:
				if m != nil {
					c.step(m, Stalled{})
				}
			case 9:
				if m != nil {
					c.step(m, Recovered{})
				}
			}
		}
		for _, name := range []string{"b1", "b2"} {
			if c.brokers[name].down {
				c.brokers[name].start()
			}
		}
		for _, m := range c.sorted() {
			c.step(m, Recovered{})
		}
		c.join("c99", nil)
		for range 15 {
			c.run(3 * time.Second)
			c.owners()
		}
		c.settled()
	})
}
