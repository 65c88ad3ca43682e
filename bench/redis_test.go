package bench

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func redisInstalled() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// startRedis starts redis-server with an append-only file.
func startRedis(fsync string) func(testing.TB, string) *server {
	return func(tb testing.TB, dir string) *server {
		port, err := freePort()
		if err != nil {
			tb.Fatal(err)
		}
		cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--appendonly", "yes", "--appendfsync", fsync, "--save", "",
			"--logfile", dir+"/log")
		p := start(tb, cmd)
		address := "127.0.0.1:" + port
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		c := redis.NewClient(&redis.Options{Addr: address})
		defer c.Close()
		for c.Ping(ctx).Err() != nil {
			select {
			case <-ctx.Done():
				log, _ := os.ReadFile(dir + "/log")
				tb.Fatalf("redis-server does not answer: %s", log)
			case <-time.After(10 * time.Millisecond):
			}
		}
		return &server{process: p, dial: func(topic string) (client, error) { return newRedis(address, topic) }}
	}
}

// redisClient uses one stream: producers send pipelines of XADD, the consumer
// reads as a member of a group and acknowledges.
type redisClient struct {
	topic string
	c     *redis.Client
	lone  chan []byte
	ended chan error
}

const (
	redisProducers = 4
	redisBatch     = 256
)

func newRedis(address, topic string) (client, error) {
	c := &redisClient{topic: topic, c: redis.NewClient(&redis.Options{Addr: address, DisableIdentity: true}), lone: make(chan []byte, 1<<16), ended: make(chan error, 1)}
	if err := c.c.XGroupCreateMkStream(context.Background(), topic, benchGroup, "0").Err(); err != nil {
		return nil, err
	}
	go c.writeLone() // ends with close
	return c, nil
}

func (c *redisClient) add(p redis.Pipeliner, body []byte) {
	p.XAdd(context.Background(), &redis.XAddArgs{Stream: c.topic, Values: []any{"b", body}})
}

func (c *redisClient) flood(ctx context.Context, body []byte, acked func(int)) error {
	errs := make([]error, redisProducers)
	var wg sync.WaitGroup
	for i := range redisProducers {
		wg.Go(func() {
			for ctx.Err() == nil {
				p := c.c.Pipeline()
				for range redisBatch {
					c.add(p, body)
				}
				if _, errs[i] = p.Exec(context.Background()); errs[i] != nil {
					return
				}
				acked(redisBatch)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// writeLone sends what comes one by one, and together what came meanwhile.
func (c *redisClient) writeLone() {
	var failed error
	for body := range c.lone {
		p := c.c.Pipeline()
		c.add(p, body)
		for n := len(c.lone); n > 0; n-- {
			c.add(p, <-c.lone)
		}
		if _, err := p.Exec(context.Background()); err != nil && failed == nil {
			failed = err
		}
	}
	c.ended <- failed
}

func (c *redisClient) send(body []byte) error {
	c.lone <- append([]byte(nil), body...)
	return nil
}

func (c *redisClient) consume(ctx context.Context, each func([]byte)) error {
	var ids []string
	for ctx.Err() == nil {
		got, err := c.c.XReadGroup(context.Background(), &redis.XReadGroupArgs{
			Group: benchGroup, Consumer: "c", Streams: []string{c.topic, ">"}, Count: 256, Block: 200 * time.Millisecond,
		}).Result()
		if errors.Is(err, redis.Nil) || errors.Is(err, io.EOF) {
			continue
		}
		if err != nil {
			return err
		}
		ids = ids[:0]
		for _, m := range got[0].Messages {
			each([]byte(m.Values["b"].(string)))
			ids = append(ids, m.ID)
		}
		if err := c.c.XAck(context.Background(), c.topic, benchGroup, ids...).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (c *redisClient) close() {
	close(c.lone)
	<-c.ended
	_ = c.c.Close()
}
