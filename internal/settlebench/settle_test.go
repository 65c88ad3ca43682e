package settlebench

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/nameserver"
)

const (
	topic = "T"
	group = "G"
	// quiet without a change counts as settled; more than any window and patience.
	quiet   = 250 * time.Millisecond
	timeout = time.Minute
)

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

// world is a running cluster with a group.
type world struct {
	tb      testing.TB
	c       *cluster.Cluster
	led     *ledger
	topic   string
	next    int
	members []*member
	traffic traffic
	// registry has the metrics of both brokers.
	registry *prometheus.Registry
}

// traffic counts what all members send and receive.
type traffic struct{ sent, received atomic.Int64 }

// member is one consumer on connections of its own.
type member struct {
	id   string
	net  *cluster.Net
	stop context.CancelFunc
	done chan error
}

func newWorld(tb testing.TB, queues int) *world {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	w := &world{tb: tb, led: newLedger(queues), topic: topic, registry: prometheus.NewRegistry()}
	var err error
	w.c, err = cluster.Start(ctx, cluster.Config{Dir: tb.TempDir(), Brokers: 2, BrokerOptions: func(name string) []broker.Option {
		return []broker.Option{broker.WithRegisterer(prometheus.WrapRegistererWith(prometheus.Labels{"broker": name}, w.registry))}
	}, NameServer: func(cfg *nameserver.Config) { *cfg = nameserver.Default() }, Broker: func(cfg *broker.Config) {
		def := broker.Default()
		cfg.SessionTimeoutMin, cfg.RegisterInterval = def.SessionTimeoutMin, def.RegisterInterval
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := w.c.Stop(); err != nil {
			tb.Error(err)
		}
	})
	if err := w.c.PutTopic(ctx, topic, int32(queues/2)); err != nil {
		tb.Fatal(err)
	}
	return w
}

// join starts a member.
func (w *world) join() {
	w.next++
	m := &member{id: fmt.Sprintf("member-%05d", w.next), net: cluster.NewNet(), done: make(chan error, 1)}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		c, err := m.net.Dial(ctx, address)
		if err != nil {
			return nil, err
		}
		return &counted{c, &w.traffic}, nil
	}
	pc, err := consumer.New(w.c.NameServers(), group, consumer.Each(func(context.Context, *message.Message) error { return nil }),
		consumer.WithTopic(w.topic, "*"), consumer.WithClientID(m.id), consumer.WithDialer(dial), consumer.WithListener(w.led.listener(w.topic, m.id)))
	if err != nil {
		w.tb.Fatal(err)
	}
	w.led.enter(m.id)
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	go func() { m.done <- pc.Run(ctx) }() // end waits for it
	w.members = append(w.members, m)
}

type counted struct {
	net.Conn
	t *traffic
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.t.received.Add(int64(n))
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.t.sent.Add(int64(n))
	return n, err
}

// leave ends the member that has been there longest, gracefully.
func (w *world) leave() *member {
	m := w.members[0]
	w.members = w.members[1:]
	w.led.leave(m.id)
	m.stop()
	return m
}

// crash cuts all connections of the member that has been there longest.
func (w *world) crash() *member {
	m := w.members[0]
	w.members = w.members[1:]
	w.led.die(m.id, time.Now())
	m.net.All((*cluster.Link).Cut)
	m.stop()
	return m
}

func (w *world) await() time.Time {
	w.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	at, ok := w.led.await(ctx, quiet)
	if !ok {
		w.led.mu.Lock()
		n := len(w.led.owner)
		w.led.mu.Unlock()
		w.tb.Fatalf("the group of %d did not settle within %v: %d of %d queues have an owner", len(w.members), timeout, n, w.led.total)
	}
	return at
}

// end stops all members at once.
func (w *world) end() {
	var wg sync.WaitGroup
	for _, m := range w.members {
		m.stop()
		wg.Go(func() {
			if err := <-m.done; err != nil {
				w.tb.Error(err)
			}
		})
	}
	wg.Wait()
	w.members = nil
}

// event is what one change did.
type event struct {
	settled time.Duration
	moved   int
	minimum int
	unowned time.Duration // summed over queues
}

// measure does something and waits until the group has settled.
func (w *world) measure(do func() *member) event {
	w.tb.Helper()
	before := w.led.reset()
	start := time.Now()
	gone := do()
	at := w.await()
	if gone != nil {
		<-gone.done // what a member that was cut off says of it is of no interest
	}
	queues, members := w.led.queues()
	moved, unowned := w.led.result()
	if os.Getenv("SETTLE_VERBOSE") != "" {
		fmt.Printf("settled in %v, moved %d, %v without owner\n", at.Sub(start), moved, unowned)
	}
	return event{settled: max(0, at.Sub(start)), moved: moved, unowned: unowned, minimum: allocate.MinimumMoves(before, queues, members)}
}

// cell is what one kind of event did in one size of group, over all repetitions.
type cell struct {
	took           []time.Duration
	moved, minimum int
	unowned        []time.Duration
}

func (c *cell) add(e event) {
	c.took = append(c.took, e.settled)
	c.unowned = append(c.unowned, e.unowned)
	c.moved += e.moved
	c.minimum += e.minimum
}

func quantile(d []time.Duration, q float64) time.Duration {
	s := slices.SortedFunc(slices.Values(d), cmp.Compare)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func (c *cell) ratio() float64 {
	if c.minimum == 0 {
		return 1
	}
	return float64(c.moved) / float64(c.minimum)
}

// BenchmarkSettle is L1's table. One operation is all repetitions of all events in
// one size; the metrics are those of the joins, leaves and crashes in it.
func BenchmarkSettle(b *testing.B) {
	cycles := envInt("SETTLE_CYCLES", 20)
	events := []string{"join", "leave", "crash"}
	fmt.Println("| members | queues | event | n | settled median ms | p99 ms | worst ms | moved ÷ minimum | queue-ms without owner, median | worst |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	for _, members := range []int{4, 16, 64} {
		for _, queues := range []int{16, 128, 1024} {
			b.Run(fmt.Sprintf("members=%d/queues=%d", members, queues), func(b *testing.B) {
				for range b.N {
					w := newWorld(b, queues)
					for range members {
						w.join()
					}
					w.await()
					cells := make(map[string]*cell)
					for _, e := range events {
						cells[e] = new(cell)
					}
					join := func() *member { w.join(); return nil }
					b.ResetTimer()
					for range cycles {
						cells["join"].add(w.measure(join))
						cells["leave"].add(w.measure(w.leave))
						w.join()
						w.await()
						cells["crash"].add(w.measure(w.crash))
					}
					b.StopTimer()
					w.end()
					for _, e := range events {
						c := cells[e]
						fmt.Printf("| %d | %d | %s | %d | %.1f | %.1f | %.1f | %.2f | %.0f | %.0f |\n", members, queues, e, len(c.took),
							ms(quantile(c.took, 0.5)), ms(quantile(c.took, 0.99)), ms(quantile(c.took, 1)), c.ratio(),
							ms(quantile(c.unowned, 0.5)), ms(quantile(c.unowned, 1)))
						b.ReportMetric(ms(quantile(c.took, 0.5)), e+"-p50-ms")
						b.ReportMetric(ms(quantile(c.took, 0.99)), e+"-p99-ms")
						b.ReportMetric(c.ratio(), e+"-moved/min")
					}
				}
			})
		}
	}
}
