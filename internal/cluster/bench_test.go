package cluster_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

func benchCluster(b *testing.B, d store.Durability, queues int32) *cluster.Cluster {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Dir: b.TempDir(), Broker: func(cfg *broker.Config) {
		cfg.Durability, cfg.SegmentBytes = d, 64<<20
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Stop(); err != nil {
			b.Error(err)
		}
	})
	if err := c.PutTopic(ctx, "T", queues); err != nil {
		b.Fatal(err)
	}
	return c
}

// measure runs f and reports the processor time of client, broker and store
// together for each message, which a busy machine disturbs less than the clock.
func measure(b *testing.B, size int, f func()) {
	b.Helper()
	b.SetBytes(int64(size))
	b.ReportAllocs()
	used := cpuTime(b)
	b.ResetTimer()
	f()
	b.StopTimer()
	b.ReportMetric(float64(cpuTime(b)-used)/float64(b.N), "cpu-ns/op")
}

// produce sends n messages from some goroutines and waits for all.
func produce(b *testing.B, p *producer.Producer, n, size int) {
	b.Helper()
	const senders = 4
	var wg sync.WaitGroup
	var failed atomic.Int64
	for s := range senders {
		wg.Go(func() {
			body := make([]byte, size)
			for i := s; i < n; i += senders {
				p.SendAsync(context.Background(), &message.Message{Topic: "T", Body: body}, func(r producer.Result) {
					if r.Err != nil {
						failed.Add(1)
					}
				})
			}
		})
	}
	wg.Wait()
	if err := p.Flush(context.Background()); err != nil || failed.Load() > 0 {
		b.Fatalf("%d failed: %v", failed.Load(), err)
	}
}

// Client, broker and disk in one process: allocations are those of all of them.
func BenchmarkProduce(b *testing.B) {
	for _, d := range []struct {
		name string
		d    store.Durability
	}{{"none", store.None}, {"fsync", store.Fsync}} {
		for _, size := range []int{100, 1024} {
			b.Run(fmt.Sprintf("%s/%dB", d.name, size), func(b *testing.B) {
				c := benchCluster(b, d.d, 16)
				p, err := producer.New(c.NameServers())
				if err != nil {
					b.Fatal(err)
				}
				defer p.Close(context.Background())
				produce(b, p, 1000, size)
				measure(b, size, func() { produce(b, p, b.N, size) })
			})
		}
	}
}

func BenchmarkConsume(b *testing.B) {
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("push/%dB", size), func(b *testing.B) {
			c := benchCluster(b, store.None, 16)
			p, err := producer.New(c.NameServers())
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close(context.Background())
			produce(b, p, b.N, size)
			var n atomic.Int64
			ctx, cancel := context.WithCancel(context.Background())
			pc, err := consumer.New(c.NameServers(), "G", consumer.Each(func(context.Context, *message.Message) error {
				if n.Add(1) == int64(b.N) {
					cancel()
				}
				return nil
			}), consumer.WithTopic("T", "*"), consumer.WithStart(consumer.First()))
			if err != nil {
				b.Fatal(err)
			}
			measure(b, size, func() {
				if err := pc.Run(ctx); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(fmt.Sprintf("pull/%dB", size), func(b *testing.B) {
			c := benchCluster(b, store.None, 16)
			p, err := producer.New(c.NameServers())
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close(context.Background())
			produce(b, p, b.N, size)
			pull, err := consumer.NewLitePull(c.NameServers(), "G", consumer.WithTopic("T", "*"), consumer.WithStart(consumer.First()), consumer.WithPollMessages(5000))
			if err != nil {
				b.Fatal(err)
			}
			measure(b, size, func() {
				for n := 0; n < b.N; {
					msgs, err := pull.Poll(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					n += len(msgs)
				}
			})
			if err := pull.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
		})
	}
}
