package bench

import (
	"context"
	"io"
	"log"
	"sync"
	"testing"
	"time"

	"github.com/nsqio/go-nsq"
	"github.com/nsqio/nsq/nsqd"
)

type nsqHello struct{ TCP, HTTP string }

// serveNSQ runs an nsqd with its default queue of 10 000 messages in memory.
func serveNSQ(dir, _ string) error {
	o := nsqd.NewOptions()
	o.DataPath, o.TCPAddress, o.HTTPAddress, o.HTTPSAddress = dir, "127.0.0.1:0", "127.0.0.1:0", ""
	o.MaxRdyCount, o.Logger = 1<<16, log.New(io.Discard, "", 0)
	n, err := nsqd.New(o)
	if err != nil {
		return err
	}
	go func() { _ = n.Main() }() // ends with Exit
	if err := say(nsqHello{n.RealTCPAddr().String(), n.RealHTTPAddr().String()}); err != nil {
		return err
	}
	untilTold()
	n.Exit()
	return nil
}

func startNSQ(tb testing.TB, dir string) *server {
	var h nsqHello
	p := spawn(tb, "nsq", dir, "", &h)
	return &server{process: p, dial: func(topic string) (client, error) { return newNSQ(h, topic) }}
}

type nsqClient struct {
	topic, address string
	producers      []*nsq.Producer
	done           chan *nsq.ProducerTransaction
}

const (
	nsqProducers = 4
	nsqBatch     = 256
)

func newNSQ(h nsqHello, topic string) (client, error) {
	c := &nsqClient{topic: topic, address: h.TCP, done: make(chan *nsq.ProducerTransaction, 1<<16)}
	for range nsqProducers {
		p, err := nsq.NewProducer(h.TCP, nsq.NewConfig())
		if err != nil {
			return nil, err
		}
		p.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
		c.producers = append(c.producers, p)
	}
	return c, nil
}

func (c *nsqClient) flood(ctx context.Context, body []byte, acked func(int)) error {
	bodies := make([][]byte, nsqBatch)
	for i := range bodies {
		bodies[i] = body
	}
	errs := make(chan error, nsqProducers)
	for _, p := range c.producers {
		go func() { // this function waits for it
			for ctx.Err() == nil {
				if err := p.MultiPublish(c.topic, bodies); err != nil {
					errs <- err
					return
				}
				acked(nsqBatch)
			}
			errs <- nil
		}()
	}
	var err error
	for range c.producers {
		if e := <-errs; e != nil {
			err = e
		}
	}
	return err
}

func (c *nsqClient) send(body []byte) error {
	if err := c.producers[0].PublishAsync(c.topic, body, c.done); err != nil {
		return err
	}
	for {
		select {
		case t := <-c.done:
			if t.Error != nil {
				return t.Error
			}
		default:
			return nil
		}
	}
}

func (c *nsqClient) consume(ctx context.Context, each func([]byte)) error {
	cfg := nsq.NewConfig()
	cfg.MaxInFlight = 2500
	cfg.LookupdPollInterval = time.Minute
	con, err := nsq.NewConsumer(c.topic, benchGroup, cfg)
	if err != nil {
		return err
	}
	con.SetLogger(log.New(io.Discard, "", 0), nsq.LogLevelError)
	var mu sync.Mutex
	con.AddConcurrentHandlers(nsq.HandlerFunc(func(m *nsq.Message) error {
		mu.Lock()
		defer mu.Unlock()
		each(m.Body)
		return nil
	}), 4)
	if err := con.ConnectToNSQD(c.address); err != nil {
		return err
	}
	<-ctx.Done()
	con.Stop()
	<-con.StopChan
	return nil
}

func (c *nsqClient) close() {
	for _, p := range c.producers {
		p.Stop()
	}
}
