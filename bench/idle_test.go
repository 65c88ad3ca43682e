package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/group"
)

// perProcess members share a client process; it may hold 20 000 files.
const perProcess = 5000

// BenchmarkIdleSessions connects one group of 1 000 and of 10 000 members, each
// with a connection of its own, and measures what they cost the broker while
// nothing happens, and how long a notice takes to reach the last of them, from
// the end of the notice window (T16). One operation is the whole measurement.
func BenchmarkIdleSessions(b *testing.B) {
	fmt.Println("| sessions | connect, broker CPU µs each | broker memory KB each | idle: broker cores | CPU µs a heartbeat | frames a member and minute | notices | last receiver after the window ms, median (range) | first to last receiver ms, median | broker CPU µs a notice |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				idle(b, n)
			}
		})
	}
}

func idle(b *testing.B, n int) {
	dir, done := benchDir(b)
	defer done()
	var h tacitHello
	broker := spawn(b, "tacit", dir, "none", &h)
	defer broker.end()
	pid := broker.cmd.Process.Pid
	time.Sleep(2 * time.Second) // the start is over
	before, rss := broker.used(), residentOf(pid)
	var crowds []*process
	for first := 0; first < n; first += perProcess {
		arg, err := json.Marshal(crowd{Broker: h.Broker, Group: "idle", First: first, Count: min(perProcess, n-first)})
		if err != nil {
			b.Fatal(err)
		}
		p := spawn(b, "members", dir, string(arg), new(int))
		defer p.end()
		crowds = append(crowds, p)
	}
	connected := broker.used().since(before).server
	// Notices of the joins are out after two windows, heartbeats have come from all.
	time.Sleep(2*group.Window(n) + 2*heartbeatTime)
	memory := residentOf(pid) - rss

	mark := func() {
		for _, p := range crowds {
			p.tell(b, "mark")
			p.read(b, new(int))
		}
	}
	tell := func() (sum tally) {
		for _, p := range crowds {
			var t tally
			p.tell(b, "tell")
			p.read(b, &t)
			sum.Notices += t.Notices
			sum.Bytes += t.Bytes
			sum.Frames += t.Frames
			sum.Last = max(sum.Last, t.Last)
			if sum.First == 0 || t.First > 0 && t.First < sum.First {
				sum.First = t.First
			}
		}
		return sum
	}
	quiet := time.Duration(envInt("BENCH_IDLE_SECONDS", 20)) * time.Second
	mark()
	before = broker.used()
	time.Sleep(quiet)
	u := broker.used().since(before)
	t := tell()
	cores := u.server.Seconds() / quiet.Seconds()
	perBeat := micros(u.server) / (float64(n) * quiet.Seconds() / heartbeatTime.Seconds())
	perMember := float64(t.Frames) / float64(n) / quiet.Minutes() * 2 // each is an answer

	var last, span, cpu []float64
	notices := int64(0)
	var alone time.Time // until then a change would find a longer window: it follows another
	for i := range envInt("BENCH_NOTICES", 6) {
		c := crowd{Broker: h.Broker, Group: "idle", First: n + i, Count: 1}
		joiner := new(counter)
		var m *idleMember
		for _, leaving := range []bool{false, true} {
			time.Sleep(time.Until(alone))
			mark()
			before = broker.used()
			var start time.Time
			if leaving {
				start = time.Now()
				if err := m.leave(); err != nil {
					b.Fatal(err)
				}
			} else {
				start = time.Now()
				var err error
				if m, err = connect(context.Background(), &c, 0, joiner); err != nil {
					b.Fatal(err)
				}
			}
			closes := start.Add(group.Window(n + 1))
			if leaving {
				closes = start.Add(group.Window(n))
			}
			alone = closes.Add(group.Window(n+1) + 500*time.Millisecond)
			time.Sleep(time.Until(closes) + 1500*time.Millisecond)
			used := broker.used().since(before)
			t := tell()
			if t.Notices != int64(n) {
				b.Errorf("%d of %d members got a notice", t.Notices, n)
				continue
			}
			notices += t.Notices
			last = append(last, float64(time.Unix(0, t.Last).Sub(closes))/1e6)
			span = append(span, float64(t.Last-t.First)/1e6)
			idleShare := time.Duration(cores * float64(time.Since(before.at)))
			cpu = append(cpu, micros(used.server-idleShare)/float64(n))
		}
	}
	l := spreadOf(last)
	fmt.Printf("| %d | %.0f | %.1f | %.3f | %.0f | %.0f | %d | %.1f (%.1f–%.1f) | %.1f | %.1f |\n", n, micros(connected)/float64(n), float64(memory)/1024/float64(n),
		cores, perBeat, perMember, notices, l.median, l.least, l.most, spreadOf(span).median, spreadOf(cpu).median)
	b.ReportMetric(l.median, "last-receiver-ms")
	b.ReportMetric(cores, "idle-cores")
	b.ReportMetric(float64(memory)/1024/float64(n), "KB/session")
	b.ReportMetric(spreadOf(cpu).median, "cpu-µs/notice")
}
