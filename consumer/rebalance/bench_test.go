package rebalance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// bigView is a settled group of so many members and queues.
func bigView(members, queues int) session.View {
	v := session.View{Topic: "t", Version: session.Version{Broker: "b0", Epoch: 1, Counter: 1}}
	for i := range queues {
		v.Queues = append(v.Queues, allocate.Queue{Topic: "t", Broker: fmt.Sprintf("b%d", i%10), ID: int32(i / 10)})
	}
	v.Queues = cleanQueues("t", v.Queues)
	queues = len(v.Queues)
	for i := range members {
		m := session.Member{ClientID: fmt.Sprintf("10.0.0.%d@%04d#%016x", i%256, i, i*7919), Incarnation: session.Incarnation{Counter: 1, Random: uint64(i)}, Offers: []session.Offer{{Strategy: "sticky"}}}
		for q := i; q < queues; q += members {
			m.Owned = append(m.Owned, session.Owned{Queue: v.Queues[q], Epoch: session.Epoch{Broker: 1, Counter: uint64(q + 1)}})
		}
		v.Members = append(v.Members, m)
	}
	v.Members = sortMembers(v.Members)
	v.Inputs = session.InputsDigest("t", v.Queues, v.Members)
	v.Owners = session.OwnersDigest("t", session.Owners(v.Members))
	return v
}

// settledEngine is the member at the given place in the view, with its queues.
func settledEngine(tb testing.TB, v session.View, at int) (*Engine, time.Time) {
	tb.Helper()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	e, err := New(Config{Group: "g", ClientID: v.Members[at].ClientID, Incarnation: v.Members[at].Incarnation, Subscriptions: []session.Subscription{{Topic: "t", Filter: "*"}}})
	if err != nil {
		tb.Fatal(err)
	}
	r := Topic{Name: "t"}
	for i := range 10 {
		r.Brokers = append(r.Brokers, fmt.Sprintf("b%d", i))
	}
	e.Step(now, Routes{[]Topic{r}})
	for _, b := range r.Brokers {
		e.Step(now, Connected{b})
		e.Step(now, Received{b, session.Welcome{Broker: b, BrokerEpoch: 1}})
	}
	t := e.topic("t")
	v.Version.Broker = t.using
	e.Step(now, Received{t.using, session.ViewAnswer{Seq: t.fetchSeq, View: v}})
	for _, o := range v.Members[at].Owned {
		e.Step(now, Received{o.Queue.Broker, session.Granted{Grants: []session.Grant{{Queue: o.Queue, Epoch: o.Epoch}}}})
	}
	if n := len(t.holds); n != len(v.Members[at].Owned) || t.expected != v.Owners {
		tb.Fatalf("%d holds of %d, settled %v", n, len(v.Members[at].Owned), t.expected == v.Owners)
	}
	return e, now
}

// BenchmarkPassFetched is a pass on a fetched view of a settled group.
func BenchmarkPassFetched(b *testing.B) {
	for _, size := range [][2]int{{64, 1024}, {1000, 10000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			v := bigView(size[0], size[1])
			e, now := settledEngine(b, v, 5)
			t := e.topic("t")
			v.Version.Broker = t.using
			b.ReportAllocs()
			for b.Loop() {
				v.Version.Counter++
				t.fetchSeq, e.asking[7] = 7, t
				e.Step(now, Received{t.using, session.ViewAnswer{Seq: 7, View: v}})
			}
		})
	}
}

// BenchmarkPassNotice is a join in a settled group: a delta and no fetch.
func BenchmarkPassNotice(b *testing.B) {
	for _, size := range [][2]int{{64, 1024}, {1000, 10000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			v := bigView(size[0], size[1])
			e, now := settledEngine(b, v, 5)
			t := e.topic("t")
			base := *t
			c := session.GroupChanged{Topic: "t", Version: t.last.version, Previous: t.last.version, OwnersBefore: t.expected}
			c.Version.Counter++
			c.Joined = []session.Member{{ClientID: "new", Offers: v.Members[0].Offers}}
			c.Inputs = session.InputsDigest("t", v.Queues, sortMembers(append(slices.Clip(v.Members), c.Joined...)))
			b.ReportAllocs()
			for b.Loop() {
				t.last, t.expected, t.inputs, t.owners, t.fetchSeq = base.last, base.expected, base.inputs, base.owners, 0
				e.Step(now, Received{t.using, c})
				if t.last == base.last {
					b.Fatal("the notice was not applied")
				}
			}
		})
	}
}

// BenchmarkTickSettled is a tick, heartbeats and their answers without change.
func BenchmarkTickSettled(b *testing.B) {
	e, _ := settledEngine(b, bigView(1000, 10000), 5)
	b.ReportAllocs()
	for b.Loop() {
		now := e.wake
		e.Step(now, Wake{})
		for _, p := range e.peers {
			e.Step(now, Received{p.name, session.HeartbeatAck{Seq: p.seq}})
		}
	}
}

func TestSettledTickCostsNoPassAndNoFetch(t *testing.T) {
	v := bigView(100, 1000)
	e, now := settledEngine(t, v, 5)
	frames, beats := 0, 0
	for end := now.Add(time.Minute); e.wake.Before(end); {
		now = e.wake
		for _, eff := range e.Step(now, Wake{}) {
			switch eff := eff.(type) {
			case Send:
				if _, ok := eff.Frame.(session.Heartbeat); !ok {
					t.Errorf("%T is sent", eff.Frame)
				}
				beats++
			case Passed, Assign, Revoke, Lose, Connect, Disconnect:
				t.Errorf("%T in a settled group", eff)
			case WakeAt, Extend, RefreshRoutes, Left, Failed, Ask, FindCoordinator, WatchTopics:
			}
		}
		for _, p := range e.peers {
			ack := session.HeartbeatAck{Seq: p.seq}
			if p.name == e.topic("t").using {
				ack.Views = []session.ViewState{{Topic: "t", Inputs: v.Inputs, Owners: v.Owners, OwnersSettled: true}}
			}
			for _, eff := range e.Step(now, Received{p.name, ack}) {
				if _, ok := eff.(Send); ok {
					frames++
				}
			}
		}
	}
	if beats > 10*21 || frames != 0 {
		t.Errorf("%d heartbeats and %d other frames in a minute", beats, frames)
	}
}

// BenchmarkFrameAmongTopics is a frame about one of so many topics, with eight queues each.
func BenchmarkFrameAmongTopics(b *testing.B) {
	for _, topics := range []int{1, 1000} {
		b.Run(fmt.Sprint(topics), func(b *testing.B) {
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			cfg := Config{Group: "g", ClientID: "c1"}
			var r Routes
			for i := range topics {
				name := fmt.Sprintf("t%04d", i)
				cfg.Subscriptions = append(cfg.Subscriptions, session.Subscription{Topic: name, Filter: "*"})
				r.Topics = append(r.Topics, Topic{Name: name, Brokers: []string{"b1"}})
			}
			e, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			e.Step(now, r)
			e.Step(now, Connected{"b1"})
			e.Step(now, Received{"b1", session.Welcome{Broker: "b1", BrokerEpoch: 1}})
			for _, t := range e.topics {
				v := session.View{Topic: t.name, Version: session.Version{Broker: "b1", Epoch: 1, Counter: 1}, Members: []session.Member{{ClientID: "c1", Offers: []session.Offer{{Strategy: "sticky"}}}}}
				var g session.Granted
				for id := range int32(8) {
					q := allocate.Queue{Topic: t.name, Broker: "b1", ID: id}
					v.Queues = append(v.Queues, q)
					g.Grants = append(g.Grants, session.Grant{Queue: q, Epoch: session.Epoch{Broker: 1, Counter: uint64(id) + 1}})
				}
				v.Inputs = session.InputsDigest(t.name, v.Queues, v.Members)
				e.Step(now, Received{"b1", session.ViewAnswer{Seq: t.fetchSeq, View: v}})
				e.Step(now, Received{"b1", g})
			}
			if n := len(e.topics[0].holds); n != 8 {
				b.Fatalf("%d holds", n)
			}
			b.ReportAllocs()
			for b.Loop() {
				e.Step(now, Received{"b1", session.OwnersChanged{Topic: "t0000", Owners: e.topics[0].expected}})
			}
		})
	}
}
