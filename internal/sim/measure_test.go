package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/session"
)

// settledGroup is a group that has settled, with links like a loopback's and no
// messages, so that what is measured is the protocol alone.
func settledGroup(t *testing.T, members, brokers, queues int) *scenario {
	t.Helper()
	opt := DefaultOptions(uint64(members))
	opt.Even, opt.Idle = true, true
	s := &scenario{World: newWorld(opt)}
	s.addNameServer().start()
	for i := range brokers {
		s.addBroker(fmt.Sprintf("b%d", i+1), map[string]int32{"orders": int32(queues / brokers)}).start()
	}
	s.run(s.now.Add(time.Second))
	for range members {
		s.begin()
	}
	s.run(s.now.Add(30 * time.Second))
	if ok, why := s.check.settledNow(); !ok || s.check.failed() {
		t.Fatalf("group of %d: %s %v", members, why, s.check.violation)
	}
	return s
}

// begin starts one more member, now.
func (s *scenario) begin() *Member {
	s.nextID++
	name := fmt.Sprintf("m%03d", s.nextID)
	m := s.addMember(name, "g", name, "", "orders")
	m.start()
	return m
}

// ownership is who owns what now, and the queues and members there are.
func (s *scenario) ownership() (owners allocate.Owners, queues []allocate.Queue, ids []string) {
	owners = allocate.Owners{}
	for _, b := range s.brokers {
		queues = append(queues, b.localQueues()...)
	}
	for _, m := range s.live() {
		ids = append(ids, m.name)
		for q := range m.procs {
			owners[q] = m.name
		}
	}
	return owners, queues, ids
}

// L1: one change in a settled group is worked off within 100 ms, at the 99th
// percentile; C3: a join or leave moves the minimum, and no other queue stops.
func TestSingleChangesSettleAtOnceAndMoveTheMinimum(t *testing.T) {
	const bound = 100 * time.Millisecond
	for _, size := range []struct{ members, queues, changes int }{{4, 16, 60}, {16, 128, 60}, {64, 1024, 15}} {
		t.Run(fmt.Sprintf("%d members %d queues", size.members, size.queues), func(t *testing.T) {
			s := settledGroup(t, size.members, 2, size.queues)
			var took []time.Duration
			for i := range size.changes {
				before, queues, ids := s.ownership()
				live := s.live()
				victim := live[s.rng.IntN(len(live))]
				from, moved, stopped := s.now, s.check.moved, s.check.stopped
				kind := []string{"join", "leave", "join", "crash", "grow"}[i%5]
				own := 0
				switch kind {
				case "join":
					ids = append(ids, s.begin().name)
				case "leave":
					own = len(victim.procs)
					victim.leave()
				case "crash":
					victim.crash(false)
				case "grow":
					s.setQueues(s.brokers[0], "orders", s.brokers[0].topics["orders"]+1)
				}
				s.check.settled = false
				s.check.changed()
				s.run(from.Add(2 * time.Second))
				if s.check.failed() {
					t.Fatal(s.check.violation)
				}
				if !s.check.settled {
					_, why := s.check.settledNow()
					t.Fatalf("%s: not settled after two seconds: %s", kind, why)
				}
				took = append(took, s.check.settledAt.Sub(from))
				moved, stopped = s.check.moved-moved, s.check.stopped-stopped
				if kind == "leave" || kind == "crash" {
					ids = slices.DeleteFunc(ids, func(id string) bool { return id == victim.name })
				}
				if kind == "grow" {
					if moved+stopped > 0 {
						t.Errorf("grow: %d queues moved, %d stopped", moved, stopped)
					}
					continue
				}
				least := allocate.MinimumMoves(before, queues, ids)
				if moved != least {
					t.Errorf("%s: %d queues moved, the minimum is %d", kind, moved, least)
				}
				switch kind {
				case "leave":
					least = own
				case "crash":
					least = 0
				}
				if stopped != least {
					t.Errorf("%s: %d queues stopped, %d had to", kind, stopped, least)
				}
			}
			slices.Sort(took)
			p99 := took[len(took)*99/100]
			t.Logf("median %v, p99 %v, worst %v", took[len(took)/2], p99, took[len(took)-1])
			if p99 > bound {
				t.Errorf("p99 %v: must be at most %v", p99, bound)
			}
		})
	}
}

// tally counts frames and their bytes on the wire, by kind.
type tally struct {
	frames, bytes map[string]int
}

func (s *scenario) count() *tally {
	c := &tally{map[string]int{}, map[string]int{}}
	s.frame = func(f any) {
		var m proto.Message
		switch f := f.(type) {
		case session.ToBroker:
			m = wire.Request(f)
		case session.ToMember:
			m = wire.Response(f)
		}
		kind := fmt.Sprintf("%T", f)
		c.frames[kind]++
		c.bytes[kind] += proto.Size(m)
	}
	return c
}

func sum(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// C1: a settled group costs each member the same few bytes, whatever its size.
func TestSettledGroupCostsTheSameWhateverItsSize(t *testing.T) {
	var frames, bytes []float64
	for _, members := range []int{5, 50, 200} {
		s := settledGroup(t, members, 2, 2*members)
		c := s.count()
		s.run(s.now.Add(time.Minute))
		frames = append(frames, float64(sum(c.frames))/float64(members))
		bytes = append(bytes, float64(sum(c.bytes))/float64(members))
		t.Logf("%d members: %.1f frames and %.0f bytes per member and minute", members, frames[len(frames)-1], bytes[len(bytes)-1])
		for kind, n := range c.frames {
			if kind != "session.Heartbeat" && kind != "session.HeartbeatAck" {
				t.Errorf("%d members: %d %s in a settled group", members, n, kind)
			}
		}
	}
	if slices.Max(frames) > 1.05*slices.Min(frames) || slices.Max(bytes) > 1.1*slices.Min(bytes) {
		t.Errorf("frames %v, bytes %v per member: must not grow with the group", frames, bytes)
	}
}

// C2: n members that join at once cost O(n) notices of O(n) bytes, and O(n) views.
func TestJoinsAtOnceCostLinearlyManyNotices(t *testing.T) {
	const present = 8
	for _, n := range []int{16, 64, 128, 1000} {
		s := settledGroup(t, present, 2, 256)
		c := s.count()
		for range n {
			s.begin()
		}
		s.run(s.now.Add(10 * time.Second))
		if ok, why := s.check.settledNow(); !ok || s.check.failed() {
			t.Fatalf("%d joins: %s %v", n, why, s.check.violation)
		}

		all := n + present
		notices, views, frames := c.frames["session.GroupChanged"], c.frames["session.ViewAnswer"], sum(c.frames)
		noticeBytes := c.bytes["session.GroupChanged"]
		t.Logf("%d joins: %d notices with %d bytes, %d views, %d frames in all", n, notices, noticeBytes, views, frames)
		// Most joins fall into one window, the last ones perhaps into a second.
		if notices > 2*all || views > 2*all {
			t.Errorf("%d joins: %d notices, %d views: must be at most two for each of %d members", n, notices, views, all)
		}
		if most := 2 * all * (200 + 64*n); noticeBytes > most {
			t.Errorf("%d joins: notices with %d bytes: must be at most %d", n, noticeBytes, most)
		}
		if most := 60 * all; frames > most {
			t.Errorf("%d joins: %d frames in ten seconds: must be at most %d", n, frames, most)
		}
	}
}
