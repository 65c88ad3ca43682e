package producer

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/route"
)

// instant is a cluster whose brokers have every batch stored at once, so that a
// benchmark sees what the producer itself costs.
type instant struct {
	client.Cluster // what a producer does not need

	topic route.Topic
	calls chan *client.ProduceCall
	wg    sync.WaitGroup
}

func newInstant(queues int32) *instant {
	f := &instant{calls: make(chan *client.ProduceCall, maxInFlight), topic: route.Topic{Name: "T", Hosts: []route.Host{{
		Broker: route.Broker{Name: "a", Address: "a:1"},
		Config: route.Config{Topic: "T", ReadQueues: queues, WriteQueues: queues, Readable: true, Writable: true},
	}}}}
	f.wg.Go(func() { // ends with Close
		for c := range f.calls {
			c.Done(client.ProduceResult{StoreTime: time.UnixMilli(1)}, nil)
		}
	})
	return f
}

func (f *instant) Watch(changed func()) client.Watch { return &instantWatch{f: f, changed: changed} }
func (f *instant) Produce(c *client.ProduceCall)     { f.calls <- c }

func (f *instant) Close() {
	close(f.calls)
	f.wg.Wait()
}

type instantWatch struct {
	client.Watch // what a producer does not need

	f       *instant
	changed func()
}

func (w *instantWatch) SetTopics([]string)    { w.changed() }
func (w *instantWatch) Routes() []route.Topic { return []route.Topic{w.f.topic} }
func (w *instantWatch) Close()                {}

// BenchmarkSend is what one message costs in the producer: checks, batching,
// encoding and the callback. "async" is a flood, "lone" waits for each message.
func BenchmarkSend(b *testing.B) {
	body := make([]byte, 1024)
	run := func(name string, senders int, send func(p *Producer, n int)) {
		b.Run(name, func(b *testing.B) {
			f := newInstant(64)
			defer f.Close()
			p, err := New(nil, WithClient(f))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for range senders {
				wg.Go(func() { send(p, b.N/senders) })
			}
			wg.Wait()
			if err := p.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
	done := func(r Result) {
		if r.Err != nil {
			b.Error(r.Err)
		}
	}
	for _, senders := range []int{1, 4} {
		run(fmt.Sprint("async-", senders), senders, func(p *Producer, n int) {
			for range n {
				p.SendAsync(context.Background(), &message.Message{Topic: "T", Body: body}, done)
			}
		})
	}
	keys := []string{"key-1"}
	properties := map[string]string{"a": "1", "b": "2"}
	run("async-full", 1, func(p *Producer, n int) {
		for range n {
			p.SendAsync(context.Background(), &message.Message{Topic: "T", Tag: "tag", Keys: keys, Properties: properties, Body: body}, done)
		}
	})
	run("lone", 1, func(p *Producer, n int) {
		m := message.Message{Topic: "T", Body: body}
		for range n {
			if _, err := p.Send(context.Background(), &m); err != nil {
				b.Error(err)
			}
		}
	})
}
