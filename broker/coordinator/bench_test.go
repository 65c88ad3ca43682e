package coordinator

import (
	"fmt"
	"testing"
	"time"

	"github.com/tacitmq/tacit/coordination"
)

// What one heartbeat costs in a stable group of n members.
func BenchmarkHeartbeat(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("classic/%d", n), func(b *testing.B) {
			w := newWorld(b, nil)
			c := w.stable(n)[n/2]
			hear := Event(Request{1, coordination.Heartbeat{Identity: c.who()}})
			b.ReportAllocs()
			for b.Loop() {
				w.now = w.now.Add(time.Microsecond)
				w.c.Step(w.now, hear)
			}
		})
		b.Run(fmt.Sprintf("consumer/%d", n), func(b *testing.B) {
			w := newWorld(b, nil)
			w.topics(n)
			ps := make([]*peer, n)
			for i := range ps {
				ps[i] = w.peer("p")
				ps[i].beat()
			}
			w.wait(2 * time.Second)
			for range 3 {
				for _, p := range ps {
					p.beat()
					p.ack()
				}
			}
			w.state(Stable)
			hear := Event(Request{1, ps[n/2].request()})
			b.ReportAllocs()
			for b.Loop() {
				w.now = w.now.Add(time.Microsecond)
				w.c.Step(w.now, hear)
			}
		})
	}
}

// What a whole rebalance of 1000 members costs: joins, plan, syncs.
func BenchmarkRebalance(b *testing.B) {
	w := newWorld(b, nil)
	cs := w.stable(1000)
	b.ReportAllocs()
	for b.Loop() {
		for _, c := range cs {
			c.start()
		}
		finish(cs...)
	}
}
