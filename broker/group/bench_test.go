package group

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// idle returns a hub with n sessions in groups of the given size, settled.
func idle(tb testing.TB, n, size int) *hub {
	h := newHub(tb, 16)
	for i := range n {
		h.send(SessionID(i+1), session.Hello{
			Group: fmt.Sprintf("g%d", i/size), ClientID: fmt.Sprintf("c%05d", i), Incarnation: session.Incarnation{Counter: 1},
			Offers: []session.Offer{{Strategy: "sticky"}}, Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
		})
		h.send(SessionID(i+1), session.Report{Topic: "a", Full: true, Expected: session.OwnersDigest("a", nil)})
	}
	h.wait(Window(size) + time.Second)
	clear(h.got)
	return h
}

// A heartbeat costs its answer and nothing else, whatever the number of sessions.
func TestHeartbeatAllocatesItsAnswerOnly(t *testing.T) {
	h := idle(t, 2000, 1000)
	i := 0
	allocs := testing.AllocsPerRun(2000, func() {
		i++
		h.now = h.now.Add(time.Millisecond / 10)
		h.r.Step(h.now, Received{SessionID(i%2000 + 1), session.Heartbeat{Seq: uint64(i)}})
	})
	// The event, the answer and the effect as interface values, and the list of effects.
	if allocs > 5 {
		t.Errorf("%v allocations for a heartbeat", allocs)
	}
}

func BenchmarkHeartbeat(b *testing.B) {
	for _, size := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("sessions=10000/members=%d", size), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			h := idle(b, 10_000, size)
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				h.now = h.now.Add(300 * time.Microsecond) // 10 000 sessions, one heartbeat in 3 s each
				h.r.Step(h.now, Received{SessionID(i%10_000 + 1), session.Heartbeat{Seq: uint64(i)}})
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/10_000, "heap-B/session")
		})
	}
}

// BenchmarkJoins is a thousand members that say hello, report and fetch within a
// window, up to the last view sent.
func BenchmarkJoins(b *testing.B) {
	for b.Loop() {
		h := newHub(b, 128)
		for i := range 1000 {
			h.hello(SessionID(i+1), fmt.Sprintf("c%04d", i), "a")
			h.send(SessionID(i+1), session.FetchView{Topic: "a"})
		}
		h.wait(Window(1000))
		if s := h.r.Stats(); s.ViewsServed != 1000 {
			b.Fatal(s.ViewsServed)
		}
	}
}

// BenchmarkNotice is one member that joins a ready group of a thousand.
func BenchmarkNotice(b *testing.B) {
	h := idle(b, 1000, 1000)
	h.got = map[SessionID][]session.ToMember{}
	s := SessionID(1000)
	b.ReportAllocs()
	for b.Loop() {
		s++
		h.send(s, session.Hello{
			Group: "g0", ClientID: "joiner", Incarnation: session.Incarnation{Counter: 1, Random: uint64(s)},
			Offers: []session.Offer{{Strategy: "sticky"}}, Subscriptions: []session.Subscription{{Topic: "a", Filter: "*"}},
		})
		h.send(s, session.Report{Topic: "a", Full: true})
		h.wait(Window(1001))
		h.step(Closed{s, true})
		b.StopTimer()
		clear(h.got)
		for i := range 1000 {
			h.send(SessionID(i+1), session.Heartbeat{})
		}
		clear(h.got)
		b.StartTimer()
	}
}

// BenchmarkReports is a group of 64 members with 1 024 queues that moves a queue
// and fetches the view after each report.
func BenchmarkReports(b *testing.B) {
	h := newHub(b, 1024)
	for i := range 64 {
		h.hello(SessionID(i+1), fmt.Sprintf("c%02d", i), "a")
	}
	h.wait(time.Second)
	for i := range 64 {
		rep := session.Report{Topic: "a", Full: true}
		for q := range 16 {
			rep.Owned = append(rep.Owned, session.Owned{Queue: qa(int32(i*16 + q))})
		}
		h.send(SessionID(i+1), rep)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		s := SessionID(i%64 + 1)
		q := allocate.Queue{Topic: "a", Broker: "b1", ID: int32(i % 1024)}
		h.send(s, session.Report{Topic: "a", Owned: []session.Owned{{Queue: q, Epoch: session.Epoch{Counter: uint64(i)}}}})
		h.send(s, session.FetchView{Topic: "a"})
		if i%64 == 0 {
			clear(h.got)
		}
	}
}

func BenchmarkAcquireRelease(b *testing.B) {
	h := newHub(b, 1)
	h.hello(1, "c1", "a")
	h.hello(2, "c2", "a")
	queues := []allocate.Queue{qa(0)}
	b.ReportAllocs()
	i := uint64(0)
	h.send(1, session.Acquire{Queues: queues})
	for b.Loop() { // a queue goes back and forth
		i++
		h.send(SessionID(i%2+1), session.Acquire{Queues: queues})
		h.send(SessionID((i+1)%2+1), session.Released{Leases: []session.Release{{Queue: qa(0), Epoch: session.Epoch{Broker: 1, Counter: i}}}})
		if i%64 == 0 {
			clear(h.got)
		}
	}
	if s := h.r.Stats().Leases; s.StaleReleases > 0 {
		b.Fatal(s)
	}
}
