package settlebench

import (
	"fmt"
	"testing"
	"time"
)

// counts is what members and brokers have exchanged so far.
type counts struct {
	at       time.Time
	bytes    int64   // sent and received by members, on all connections
	received int64   // by members
	frames   float64 // of session streams, both directions
	fetches  float64
	notices  float64
}

func (w *world) counts() counts {
	w.tb.Helper()
	got := w.metrics("tacit_broker_session_frames_received_total", "tacit_broker_session_frames_sent_total",
		"tacit_broker_fetch_requests_total", "tacit_broker_notices_total")
	r := w.traffic.received.Load()
	return counts{at: time.Now(), bytes: w.traffic.sent.Load() + r, received: r, frames: got[0] + got[1], fetches: got[2], notices: got[3]}
}

// metrics returns the sums over both brokers.
func (w *world) metrics(names ...string) []float64 {
	w.tb.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.tb.Fatal(err)
	}
	out := make([]float64, len(names))
	for i, n := range names {
		found := false
		for _, f := range families {
			if f.GetName() != n {
				continue
			}
			found = true
			for _, m := range f.GetMetric() {
				out[i] += m.GetCounter().GetValue()
			}
		}
		if !found {
			w.tb.Fatalf("no metric %s", n)
		}
	}
	return out
}

// BenchmarkSettledCost measures what one member of a settled group exchanges with
// name server and brokers in a minute, with one queue for each member and no
// messages. Flat over the size of the group is the promise (C1).
func BenchmarkSettledCost(b *testing.B) {
	fmt.Println("| members | session frames a member and minute | fetches | bytes, everything | bytes a second, whole group |")
	fmt.Println("|---|---|---|---|---|")
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			for range b.N {
				w := newWorld(b, n)
				for range n {
					w.join()
				}
				w.await()
				time.Sleep(10 * time.Second) // reports, first commits
				before := w.counts()
				time.Sleep(time.Duration(envInt("SETTLE_SECONDS", 60)) * time.Second)
				after := w.counts()
				minutes := after.at.Sub(before.at).Minutes() * float64(n)
				frames, bytes := (after.frames-before.frames)/minutes, float64(after.bytes-before.bytes)/minutes
				fmt.Printf("| %d | %.1f | %.1f | %.0f | %.0f |\n", n, frames, (after.fetches-before.fetches)/minutes, bytes, bytes*float64(n)/60)
				b.ReportMetric(frames, "frames/member/min")
				b.ReportMetric(bytes, "B/member/min")
				w.end()
			}
		})
	}
}

// BenchmarkJoins lets many members join a settled group of ten at once: notices
// must grow with their number, not with its square (C2).
func BenchmarkJoins(b *testing.B) {
	fmt.Println("| joins at once | queues | settled s | notices | notices a member | session frames a member | KB received a member |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, n := range []int{100, 300, 1000} {
		b.Run(fmt.Sprintf("joins=%d", n), func(b *testing.B) {
			for range b.N {
				w := newWorld(b, n)
				for range 10 {
					w.join()
				}
				w.await()
				before := w.counts()
				e := w.measure(func() *member {
					for range n {
						w.join()
					}
					return nil
				})
				after := w.counts()
				all := float64(n + 10)
				notices := after.notices - before.notices
				fmt.Printf("| %d | %d | %.2f | %.0f | %.1f | %.1f | %.1f |\n", n, n, e.settled.Seconds(), notices, notices/all,
					(after.frames-before.frames)/all, float64(after.received-before.received)/all/1000)
				b.ReportMetric(e.settled.Seconds(), "settled-s")
				b.ReportMetric(notices/all, "notices/member")
				b.ReportMetric(float64(after.received-before.received)/all, "B-received/member")
				w.end()
			}
		})
	}
}
