package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// round is what one system did in one round. What was not measured is zero.
type round struct {
	produced, consumed         float64 // msgs/s
	produceServer, produceSelf float64 // CPU µs for a message
	consumeServer, consumeSelf float64
	writeAmp                   float64
	bothProduced, bothConsumed float64 // msgs/s at once
	p50, p99, p999             float64 // ms from send to consume at a modest rate
	latencyServer              float64 // CPU µs for a message
	reached                    float64 // share of the rate that was sent
	foreign                    float64 // cores that others used while producing
}

const (
	latencyRate = 5000
	latencyTime = 4 * time.Second
	// backlogMost bounds how long a consumer may take for what was produced.
	backlogMost = 4 * time.Second
)

func phaseTime() time.Duration { return time.Duration(envInt("BENCH_SECONDS", 2)) * time.Second }

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// randomBody cannot be compressed.
func randomBody(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// run takes a system through all phases, or those that BENCH_PHASES names.
func (s *system) run(tb testing.TB, size int) round {
	var r round
	phases := cmp.Or(os.Getenv("BENCH_PHASES"), "throughput latency")
	if strings.Contains(phases, "throughput") {
		s.throughput(tb, size, &r)
	}
	if strings.Contains(phases, "latency") && !s.produceOnly && !s.noLatency {
		s.latency(tb, size, &r)
	}
	return r
}

func (s *system) throughput(tb testing.TB, size int, r *round) {
	dir, done := benchDir(tb)
	defer done()
	srv := s.start(tb, dir)
	defer srv.end()
	c, err := srv.dial(benchTopicA)
	if err != nil {
		tb.Fatal(s.name, err)
	}
	defer c.close()
	body := randomBody(size)
	stop := selfProfile(s.name, "produce")
	n := s.produce(tb, srv, c, body, r)
	stop()
	if s.produceOnly {
		return
	}
	stop = selfProfile(s.name, "consume")
	s.backlog(tb, srv, c, n, r)
	stop()
	c2, err := srv.dial(benchTopicB)
	if err != nil {
		tb.Fatal(s.name, err)
	}
	defer c2.close()
	stop = selfProfile(s.name, "both")
	s.both(tb, srv, c2, body, r)
	stop()
}

// produce floods the server and returns how many messages it acknowledged.
func (s *system) produce(tb testing.TB, srv *server, c client, body []byte, r *round) int64 {
	tb.Helper()
	runtime.GC()
	var n atomic.Int64
	ctx, cancel := context.WithTimeout(context.Background(), phaseTime())
	defer cancel()
	before := srv.used()
	if err := c.flood(ctx, body, func(k int) { n.Add(int64(k)) }); err != nil {
		tb.Fatal(s.name, err)
	}
	took := time.Since(before.at)
	u := srv.used().since(before)
	count := float64(n.Load())
	r.produced = count / took.Seconds()
	r.produceServer = micros(u.server) / count
	r.produceSelf = micros(u.self) / count
	r.writeAmp = float64(u.written) / count / float64(len(body))
	r.foreign = max(0, (u.machine-u.server-u.self).Seconds()/took.Seconds())
	return n.Load()
}

// backlog consumes what was produced, from the first message on.
func (s *system) backlog(tb testing.TB, srv *server, c client, all int64, r *round) {
	tb.Helper()
	runtime.GC()
	var n atomic.Int64
	var first, last time.Time
	var before, after usage
	var mu sync.Mutex
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := c.consume(ctx, func([]byte) {
		k := n.Add(1)
		if k != 1 && k != all && k%1024 != 0 {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if k == 1 {
			before = srv.used()
			first = before.at
			return
		}
		if now := time.Now(); (k >= all || now.Sub(first) > backlogMost) && last.IsZero() {
			last, after = now, srv.used().since(before)
			r.consumed = float64(k) / last.Sub(first).Seconds()
			r.consumeServer, r.consumeSelf = micros(after.server)/float64(k), micros(after.self)/float64(k)
			cancel()
		}
	})
	if err != nil {
		tb.Fatal(s.name, err)
	}
	if last.IsZero() {
		tb.Errorf("%s: %d of %d messages came in time", s.name, n.Load(), all)
	}
}

// both produces and consumes at once. The consumer is there before.
func (s *system) both(tb testing.TB, srv *server, c client, body []byte, r *round) {
	tb.Helper()
	runtime.GC()
	var produced, consumed atomic.Int64
	came := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { // this function waits for it
		ended <- c.consume(ctx, func([]byte) {
			if consumed.Add(1) == 1 {
				close(came)
			}
		})
	}()
	s.greet(tb, c, body, came)
	flood, stop := context.WithTimeout(context.Background(), phaseTime())
	defer stop()
	at, had := time.Now(), consumed.Load()
	failed := make(chan error, 1)
	go func() { failed <- c.flood(flood, body, func(k int) { produced.Add(int64(k)) }) }() // likewise
	<-flood.Done()
	took := time.Since(at).Seconds()
	r.bothProduced, r.bothConsumed = float64(produced.Load())/took, float64(consumed.Load()-had)/took
	if err := <-failed; err != nil {
		tb.Fatal(s.name, err)
	}
	cancel()
	if err := <-ended; err != nil {
		tb.Fatal(s.name, err)
	}
}

// greet sends single messages until the consumer gets one.
func (s *system) greet(tb testing.TB, c client, body []byte, came <-chan struct{}) {
	tb.Helper()
	limit := time.After(15 * time.Second)
	for {
		if err := c.send(append([]byte(nil), body...)); err != nil {
			tb.Fatal(s.name, err)
		}
		select {
		case <-came:
			return
		case <-time.After(50 * time.Millisecond):
		case <-limit:
			tb.Fatal(s.name, ": no message came")
		}
	}
}

// latency sends single messages at a modest rate to a fresh server.
func (s *system) latency(tb testing.TB, size int, r *round) {
	dir, done := benchDir(tb)
	defer done()
	srv := s.start(tb, dir)
	defer srv.end()
	c, err := srv.dial(benchTopicA)
	if err != nil {
		tb.Fatal(s.name, err)
	}
	defer c.close()
	runtime.GC()
	var mu sync.Mutex
	var took []time.Duration
	var from time.Time // of messages that count
	came := make(chan struct{})
	once := sync.OnceFunc(func() { close(came) })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { // this function waits for it
		ended <- c.consume(ctx, func(b []byte) {
			now := time.Now()
			once()
			sent := time.Unix(0, int64(binary.LittleEndian.Uint64(b)))
			mu.Lock()
			defer mu.Unlock()
			if !from.IsZero() && !sent.Before(from) {
				took = append(took, now.Sub(sent))
			}
		})
	}()
	s.greet(tb, c, make([]byte, size), came)
	body := randomBody(size)
	pace(c, tb, s.name, body, time.Second) // warm
	mu.Lock()
	from = time.Now()
	mu.Unlock()
	stop := selfProfile(s.name, "latency")
	before := srv.used()
	sent := pace(c, tb, s.name, body, latencyTime)
	u := srv.used().since(before)
	stop()
	took1 := time.Since(before.at)
	time.Sleep(300 * time.Millisecond) // what is still under way
	cancel()
	if err := <-ended; err != nil {
		tb.Fatal(s.name, err)
	}
	slices.Sort(took)
	if len(took) == 0 {
		tb.Fatal(s.name, ": no message came")
	}
	r.p50, r.p99, r.p999 = millis(took, 0.5), millis(took, 0.99), millis(took, 0.999)
	r.latencyServer = micros(u.server) / float64(sent)
	r.reached = float64(len(took)) / (latencyRate * took1.Seconds())
}

// pace sends single messages at the rate, each with the time in it.
func pace(c client, tb testing.TB, name string, body []byte, d time.Duration) int {
	tb.Helper()
	begin := time.Now()
	n := 0
	for {
		at := time.Duration(n) * time.Second / latencyRate
		if at >= d {
			return n
		}
		if wait := at - time.Since(begin); wait > 0 {
			time.Sleep(wait)
		}
		if time.Since(begin) > 2*d {
			return n
		}
		b := append([]byte(nil), body...)
		binary.LittleEndian.PutUint64(b, uint64(time.Now().UnixNano()))
		if err := c.send(b); err != nil {
			tb.Fatal(name, err)
		}
		n++
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func millis(sorted []time.Duration, q float64) float64 {
	i := min(len(sorted)-1, int(q*float64(len(sorted))))
	return float64(sorted[i]) / float64(time.Millisecond)
}

// benchDir is a directory for a server, gone as soon as that is.
func benchDir(tb testing.TB) (string, func()) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "tacit-bench")
	if err != nil {
		tb.Fatal(err)
	}
	return dir, func() { _ = os.RemoveAll(dir) }
}

// profile records CPU and heap profiles of a server if BENCH_PROFILE names a directory.
func profile(role string) func() { return profileTo(fmt.Sprintf("server-%s-%d", role, os.Getpid())) }

func selfProfile(system, phase string) func() { return profileTo(system + "-" + phase) }

func profileTo(name string) func() {
	to := os.Getenv("BENCH_PROFILE")
	if to == "" {
		return func() {}
	}
	f, err := os.Create(filepath.Join(to, name+".pprof"))
	if err != nil {
		return func() {}
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return func() {}
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
		if h, err := os.Create(filepath.Join(to, name+".heap.pprof")); err == nil {
			_ = pprof.WriteHeapProfile(h)
			_ = h.Close()
		}
	}
}

// spread is the middle of some values with the least and the greatest.
type spread struct{ least, median, most float64 }

func over(rounds []round, f func(round) float64) spread {
	vs := make([]float64, len(rounds))
	for i, r := range rounds {
		vs[i] = f(r)
	}
	return spreadOf(vs)
}

func spreadOf(vs []float64) spread {
	if len(vs) == 0 {
		return spread{}
	}
	slices.SortFunc(vs, cmp.Compare)
	return spread{vs[0], vs[len(vs)/2], vs[len(vs)-1]}
}
