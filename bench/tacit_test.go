package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/nameserver"
	"github.com/tacitmq/tacit/producer"
)

const (
	benchTopicA = "flood"
	benchTopicB = "both"
	benchGroup  = "bench"
	benchQueues = 64
)

type tacitHello struct {
	NameServers []string
	Broker      string
}

// serveTacit runs a name server and a broker of two topics with 64 queues.
func serveTacit(dir, durability string) error {
	d, err := broker.ParseDurability(durability)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Dir: dir, NameServer: func(cfg *nameserver.Config) { *cfg = nameserver.Default() }, Broker: func(cfg *broker.Config) {
		def := broker.Default()
		cfg.Durability, cfg.SegmentBytes, cfg.SessionTimeoutMin = d, def.SegmentBytes, def.SessionTimeoutMin
		cfg.RegisterInterval = def.RegisterInterval
	}})
	if err != nil {
		return err
	}
	for _, t := range []string{benchTopicA, benchTopicB} {
		if err := c.PutTopic(ctx, t, benchQueues); err != nil {
			return err
		}
	}
	if err := c.PutTopic(ctx, idleTopic, 1); err != nil {
		return err
	}
	defer profile(durability)()
	if err := say(tacitHello{c.NameServers(), c.Broker("broker-a").Address()}); err != nil {
		return err
	}
	untilTold()
	return c.Stop()
}

func startTacit(durability string, dial func(tacitHello, string) (client, error)) func(testing.TB, string) *server {
	return func(tb testing.TB, dir string) *server {
		var h tacitHello
		p := spawn(tb, "tacit", dir, durability, &h)
		return &server{process: p, dial: func(topic string) (client, error) { return dial(h, topic) }}
	}
}

// sdk is Tacit as programs use it: a producer with its own batching and a
// consumer that polls.
type sdk struct {
	topic string
	names []string
	p     *producer.Producer
	fail  atomic.Pointer[error]
	push  bool
}

func newSDK(h tacitHello, topic string) (client, error) {
	p, err := producer.New(h.NameServers)
	if err != nil {
		return nil, err
	}
	return &sdk{topic: topic, names: h.NameServers, p: p}, nil
}

// newPush consumes with a handler instead of a poll loop.
func newPush(h tacitHello, topic string) (client, error) {
	c, err := newSDK(h, topic)
	if err != nil {
		return nil, err
	}
	c.(*sdk).push = true
	return c, nil
}

func (c *sdk) flood(ctx context.Context, body []byte, acked func(int)) error {
	done := func(r producer.Result) {
		if err := r.Err; err != nil { // the address of r's would put every result on the heap
			c.fail.CompareAndSwap(nil, &err)
			return
		}
		acked(1)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil && c.fail.Load() == nil {
				c.p.SendAsync(context.Background(), &message.Message{Topic: c.topic, Body: body}, done)
			}
		})
	}
	wg.Wait()
	if err := c.p.Flush(context.Background()); err != nil {
		return err
	}
	if err := c.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *sdk) send(body []byte) error {
	c.p.SendAsync(context.Background(), &message.Message{Topic: c.topic, Body: body}, func(r producer.Result) {
		if r.Err != nil {
			c.fail.CompareAndSwap(nil, &r.Err)
		}
	})
	if err := c.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *sdk) consume(ctx context.Context, each func([]byte)) error {
	opts := []consumer.Option{consumer.WithTopic(c.topic, "*"), consumer.WithStart(consumer.First())}
	if c.push {
		pc, err := consumer.New(c.names, benchGroup, consumer.Batch(256, func(_ context.Context, ms []*message.Message) error {
			for _, m := range ms {
				each(m.Body)
			}
			return nil
		}), opts...)
		if err != nil {
			return err
		}
		return pc.Run(ctx)
	}
	pull, err := consumer.NewLitePull(c.names, benchGroup, append(opts, consumer.WithPollMessages(1000))...)
	if err != nil {
		return err
	}
	for {
		ms, err := pull.Poll(ctx)
		if ctx.Err() != nil {
			return pull.Close(context.Background())
		}
		if err != nil {
			return err
		}
		for _, m := range ms {
			each(m.Body)
		}
	}
}

func (c *sdk) close() { _ = c.p.Close(context.Background()) }

// newFrames sends batches made beforehand over two bare streams: the broker
// without the SDK, for comparison with the bare transport.
func newFrames(size int) func(tacitHello, string) (client, error) {
	return func(h tacitHello, topic string) (client, error) { return newFrameClient(h.Broker, topic, size, 2) }
}

// encode makes one batch for each queue.
func encode(topic string, body []byte, n int) ([][]byte, error) {
	out := make([][]byte, benchQueues)
	for q := range out {
		var e batch.Encoder
		for range n {
			e.Append(&message.Message{Body: body, BornTime: time.Now()})
		}
		var err error
		if out[q], err = e.Finish(nil, batch.Info{Topic: topic, Queue: int32(q)}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

var errNotMeasured = errors.New("not part of this measurement")

// freePort returns a port of loopback that was free a moment ago, for servers
// that cannot tell which they took.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a port: %w", err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
