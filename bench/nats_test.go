package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	natsd "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// serveNATS runs a NATS server with JetStream.
func serveNATS(dir, sync string) error {
	s, err := natsd.NewServer(&natsd.Options{
		Host: "127.0.0.1", Port: natsd.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true,
		SyncAlways: sync == "always", JetStreamMaxStore: 64 << 30,
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return errors.New("not ready in time")
	}
	if err := say(s.ClientURL()); err != nil {
		return err
	}
	untilTold()
	s.Shutdown()
	return nil
}

func startNATS(sync bool) func(testing.TB, string) *server {
	return func(tb testing.TB, dir string) *server {
		var url string
		arg, pending := "", 8192
		if sync {
			arg, pending = "always", 256
		}
		p := spawn(tb, "nats", dir, arg, &url)
		return &server{process: p, dial: func(topic string) (client, error) { return newNATS(url, topic, pending) }}
	}
}

// natsClient uses a file stream with 64 subjects, asynchronous publishing and a
// pull consumer.
type natsClient struct {
	topic string
	nc    *nats.Conn
	js    nats.JetStreamContext
	turn  int
	sent  atomic.Int64
	fail  atomic.Pointer[error]
}

func newNATS(url, topic string, pending int) (client, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, err
	}
	c := &natsClient{topic: topic, nc: nc}
	if c.js, err = nc.JetStream(nats.PublishAsyncMaxPending(pending), nats.PublishAsyncErrHandler(func(_ nats.JetStream, _ *nats.Msg, err error) {
		c.fail.CompareAndSwap(nil, &err)
	})); err != nil {
		return nil, err
	}
	_, err = c.js.AddStream(&nats.StreamConfig{Name: topic, Subjects: []string{topic + ".*"}, Storage: nats.FileStorage})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *natsClient) subject() string {
	c.turn++
	return fmt.Sprintf("%s.%d", c.topic, c.turn%benchQueues)
}

func (c *natsClient) flood(ctx context.Context, body []byte, acked func(int)) error {
	subjects := make([]string, benchQueues)
	for i := range subjects {
		subjects[i] = fmt.Sprintf("%s.%d", c.topic, i)
	}
	acks := make(chan nats.PubAckFuture, 1<<16)
	var wg sync.WaitGroup
	wg.Go(func() {
		for f := range acks {
			select {
			case <-f.Ok():
				acked(1)
			case err := <-f.Err():
				c.fail.CompareAndSwap(nil, &err)
			}
		}
	})
	for i := 0; ctx.Err() == nil && c.fail.Load() == nil; i++ {
		f, err := c.js.PublishAsync(subjects[i%benchQueues], body)
		if err != nil {
			if errors.Is(err, nats.ErrTooManyStalledMsgs) {
				continue
			}
			c.fail.CompareAndSwap(nil, &err)
			break
		}
		acks <- f
	}
	close(acks)
	wg.Wait()
	if err := c.fail.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *natsClient) send(body []byte) error {
	for {
		// It is stalled where it cannot keep the rate.
		if _, err := c.js.PublishAsync(c.subject(), body); !errors.Is(err, nats.ErrTooManyStalledMsgs) {
			return err
		}
	}
}

func (c *natsClient) consume(ctx context.Context, each func([]byte)) error {
	sub, err := c.js.PullSubscribe(c.topic+".*", benchGroup, nats.AckAll(), nats.BindStream(c.topic))
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		ms, err := sub.Fetch(1000, nats.MaxWait(200*time.Millisecond))
		if err != nil && !errors.Is(err, nats.ErrTimeout) {
			return err
		}
		for _, m := range ms {
			each(m.Data)
		}
		if len(ms) > 0 {
			if err := ms[len(ms)-1].Ack(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *natsClient) close() { c.nc.Close() }
