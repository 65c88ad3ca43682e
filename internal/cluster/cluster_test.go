package cluster_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a cluster that is stopped at the end of the test.
func start(t *testing.T, cfg cluster.Config) *cluster.Cluster {
	t.Helper()
	cfg.Dir = t.TempDir()
	if testing.Verbose() {
		cfg.Logger = zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := cluster.Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func topic(t *testing.T, c *cluster.Cluster, name string, queues int32, brokers ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := c.PutTopic(ctx, name, queues, brokers...); err != nil {
		t.Fatal(err)
	}
}

func newProducer(t *testing.T, c *cluster.Cluster, opts ...producer.Option) *producer.Producer {
	t.Helper()
	p, err := producer.New(c.NameServers(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

// send sends n numbered messages and waits for them.
func send(t *testing.T, p *producer.Producer, from, n int) {
	t.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = &message.Message{Topic: "T", Keys: []string{fmt.Sprint(from + i)}, Body: fmt.Append(nil, from+i)}
	}
	if _, err := p.Send(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
}

// counter counts messages by body.
type counter struct {
	mu   sync.Mutex
	n    map[string]int
	want int
	done chan struct{}
}

func newCounter(want int) *counter {
	return &counter{n: make(map[string]int), want: want, done: make(chan struct{})}
}

func (c *counter) add(m *message.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[string(m.Body)]++
	if len(c.n) == c.want && c.n[string(m.Body)] == 1 {
		close(c.done)
	}
}

func (c *counter) repeats() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, k := range c.n {
		n += k - 1
	}
	return n
}

func (c *counter) wait(t *testing.T, limit time.Duration) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(limit):
		c.mu.Lock()
		defer c.mu.Unlock()
		t.Fatalf("%d of %d messages consumed", len(c.n), c.want)
	}
}

// running is a consumer that runs.
type running struct {
	*consumer.PushConsumer
	stop func() error
}

func consume(t *testing.T, c *cluster.Cluster, h consumer.Handler, opts ...consumer.Option) *running {
	t.Helper()
	return consumeOnly(t, c, h, append([]consumer.Option{consumer.WithTopic("T", "*")}, opts...)...)
}

// consumeOnly is consume without a topic.
func consumeOnly(t *testing.T, c *cluster.Cluster, h consumer.Handler, opts ...consumer.Option) *running {
	t.Helper()
	return consumeGroup(t, c, "G", h, opts...)
}

func consumeGroup(t *testing.T, c *cluster.Cluster, group string, h consumer.Handler, opts ...consumer.Option) *running {
	t.Helper()
	opts = append([]consumer.Option{consumer.WithStart(consumer.First()), consumer.WithTiming(time.Second, 200*time.Millisecond, 2*time.Second)}, opts...)
	if testing.Verbose() {
		opts = append(opts, consumer.WithLogger(zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))))
	}
	pc, err := consumer.New(c.NameServers(), group, h, opts...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- pc.Run(ctx) }() // stop waits for it
	r := &running{PushConsumer: pc, stop: sync.OnceValue(func() error {
		cancel()
		return <-ended
	})}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func counting(c *counter) consumer.Handler {
	return consumer.Each(func(_ context.Context, m *message.Message) error {
		c.add(m)
		return nil
	})
}

func TestWhatIsProducedIsConsumedOnce(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 2})
	topic(t, c, "T", 4)
	p := newProducer(t, c)
	send(t, p, 0, 1000)
	got := newCounter(2000)
	one := consume(t, c, counting(got))
	two := consume(t, c, counting(got))
	send(t, p, 1000, 1000)
	got.wait(t, 20*time.Second)
	if n := got.repeats(); n > 0 {
		t.Errorf("%d messages came again", n)
	}
	owned := slices.Concat(one.Stats().Queues, two.Stats().Queues)
	t.Log(len(owned))
}
