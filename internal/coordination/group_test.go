package coordination_test

import (
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/coordination"
)

// A group settles after a start, a join, a leave, a crash and more queues, and no queue
// has two owners while all hear the coordinator.
func TestGroupsSettleAfterEachChange(t *testing.T) {
	for name, cfg := range models() {
		t.Run(name, func(t *testing.T) {
			n := newNet(t, 1, cfg, 128, 1)
			for range 16 {
				n.join("")
			}
			n.settle(t, "start", 30*time.Second)
			n.moved = 0
			n.join("")
			n.settle(t, "join", 15*time.Second)
			if least := 128 / 17; (name == "cooperative-sticky" || name == "server-side" || name == "eager-sticky") && n.moved > least+1 {
				t.Errorf("join moved %d queues, %d would do", n.moved, least)
			}
			n.members[0].leave()
			n.settle(t, "leave", 15*time.Second)
			if !n.members[0].left {
				t.Error("the member that leaves has not left")
			}
			n.members[1].crash()
			n.settle(t, "crash", 70*time.Second)
			n.queues = append(n.queues, n.queues[0])
			n.queues[128].ID = 128
			for _, m := range n.members {
				m.routes()
			}
			for _, h := range n.brokers {
				h.step(coordinator.Topics{Queues: map[string][]allocate.Queue{"t": n.queues}})
			}
			n.settle(t, "grow", 15*time.Second)
		})
	}
}

// The members of a settled group go on as they are when their coordinator is lost: it
// comes back, or another broker goes on from what they tell.
func TestNothingMovesWhenTheCoordinatorIsLost(t *testing.T) {
	for name, cfg := range models() {
		t.Run(name, func(t *testing.T) {
			n := newNet(t, 2, cfg, 64, 3)
			for range 8 {
				n.join("")
			}
			n.settle(t, "start", 30*time.Second)
			c := n.brokers[coordination.Host("g", n.live())]
			for _, back := range []time.Duration{time.Second, 0} { // restarted; lost for good
				at := n.now
				c.stop()
				n.hosting()
				if back > 0 {
					n.run(back)
					c.start()
					n.hosting()
				}
				n.settle(t, "coordinator lost", 2*time.Minute)
				if n.changed.After(at) {
					t.Errorf("back after %v: owners changed %v after the loss", back, n.changed.Sub(at))
				}
			}
			n.join("")
			n.settle(t, "join at the new coordinator", 15*time.Second)
		})
	}
}

// A static member that is restarted within its session timeout moves nothing.
func TestRestartedStaticMemberMovesNothing(t *testing.T) {
	for name, cfg := range models() {
		if name == "server-side" {
			continue // its predecessor must leave for a while first
		}
		t.Run(name, func(t *testing.T) {
			n := newNet(t, 3, cfg, 64, 1)
			for i := range 8 {
				n.join(string(rune('a' + i)))
			}
			n.settle(t, "start", 30*time.Second)
			n.moved = 0
			for i, m := range n.members {
				m.crash()
				n.run(500 * time.Millisecond)
				m.start(string(rune('a' + i)))
				n.settle(t, "restart", 10*time.Second)
			}
			if n.moved > 0 {
				t.Errorf("%d queues moved", n.moved)
			}
		})
	}
}

// The requests of one event are those of Kafka's clients.
func TestRequestsOfAnEventAreKafkas(t *testing.T) {
	const members = 16
	for _, c := range []struct {
		model, event      string
		joins, syncs, max int
	}{
		{"eager-range", "join", members + 2, members + 1, 0},
		{"eager-range", "leave", members - 1, members - 1, 0},
		{"cooperative-sticky", "join", 2*(members+1) + 1, 2 * (members + 1), 0},
		{"cooperative-sticky", "leave", members - 1, members - 1, 0},
	} {
		n := newNet(t, 4, models()[c.model], 128, 1)
		for range members {
			n.join("")
		}
		n.settle(t, "start", 30*time.Second)
		clear(n.calls)
		if c.event == "join" {
			n.join("")
		} else {
			n.members[3].leave()
		}
		n.settle(t, c.event, 15*time.Second)
		if j, s := n.calls["coordination.Join"], n.calls["coordination.Sync"]; j != c.joins || s != c.syncs {
			t.Errorf("%s, %s: %d joins and %d syncs, want %d and %d", c.model, c.event, j, s, c.joins, c.syncs)
		}
	}
}

// Random joins, leaves, crashes, restarts and losses of coordinators: when they end the
// group settles.
func TestGroupsSettleAfterRandomFaults(t *testing.T) {
	names := []string{}
	for name := range models() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(25) {
				n := newNet(quiet{t}, seed, models()[name], 32, 3)
				for range 4 {
					n.join("")
				}
				n.run(10 * time.Second)
				for range 12 {
					n.run(time.Duration(n.rng.IntN(4000)) * time.Millisecond)
					m := n.members[n.rng.IntN(len(n.members))]
					switch n.rng.IntN(5) {
					case 0, 1:
						n.join("")
					case 2:
						if m.up {
							m.leave()
						}
					case 3:
						if m.up {
							m.crash()
						}
					case 4:
						live := n.live()
						if len(live) == 1 {
							continue
						}
						h := n.brokers[live[n.rng.IntN(len(live))]]
						h.stop()
						n.hosting()
						n.after(time.Duration(n.rng.IntN(20_000))*time.Millisecond, func() { h.start(); n.hosting() })
					}
				}

				n.run(4 * time.Minute)
				if why := n.unsettled(); why != "" {
					t.Errorf("seed %d: %s", seed, why)
				}
				// Nobody asks again and again: some 16 members, 12 changes, a few rounds each.
				if joins := n.calls["coordination.Join"]; joins > 1000 {
					t.Errorf("seed %d: %d joins", seed, joins)
				}
			}
		})
	}
}

// quiet takes no note of two owners: a coordinator that is lost forgets who was there,
// and nothing but the queues' brokers fences its members then.
type quiet struct{ *testing.T }

func (quiet) Errorf(string, ...any) {}
