// Command counter is a consumer of the end-to-end runs: it writes each commit it
// handles to a trail of its own. It uses the SDK as any program would.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/test/e2e/internal/program"
	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

func main() {
	var group, id string
	var work, tick, heartbeat, timeout time.Duration
	var concurrency int
	program.Main("counter", func(f *flag.FlagSet) {
		f.StringVar(&group, "group", "count", "consumer `group`")
		f.StringVar(&id, "client-id", "", "client `id`")
		f.DurationVar(&work, "work", 0, "how long it takes to handle a commit")
		f.IntVar(&concurrency, "concurrency", consumer.DefaultConcurrency, "handlers at once")
		f.DurationVar(&tick, "tick", 0, "rebalance interval; 0 is the default")
		f.DurationVar(&heartbeat, "heartbeat", 0, "heartbeat interval; 0 is the default")
		f.DurationVar(&timeout, "session-timeout", 0, "session timeout; 0 is the default")
	}, func(ctx context.Context, p *program.Program) error {
		c := &counter{trail: p.Trail, work: work, log: p.Log}
		member, err := consumer.New(p.NameServers, group, consumer.Each(c.handle),
			consumer.WithTopic(p.Topic, "*"), consumer.WithStart(consumer.First()), consumer.WithClientID(id),
			consumer.WithConcurrency(concurrency), consumer.WithTiming(tick, heartbeat, timeout),
			consumer.WithListener(consumer.ListenerFuncs{Assigned: c.note(trail.Assigned), Revoked: c.note(trail.Revoked), Lost: c.note(trail.Lost)}),
			consumer.WithLogger(p.Log))
		if err != nil {
			return fmt.Errorf("make consumer: %w", err)
		}
		return member.Run(ctx)
	})
}

type counter struct {
	trail *trail.Writer
	work  time.Duration
	log   *zap.Logger
}

// handle counts one commit. Like a real program it writes what it found even if
// the queue was lost meanwhile: the totals do not mind repeats.
func (c *counter) handle(_ context.Context, m *message.Message) error {
	e := trail.Entry{Kind: trail.Handled, Queue: m.Queue, Offset: m.Offset, Begin: time.Now(), Attempt: m.ReconsumeTimes, Commit: new(trail.Commit)}
	if err := json.Unmarshal(m.Body, e.Commit); err != nil {
		return fmt.Errorf("read commit: %w", err)
	}
	if c.work > 0 {
		<-time.After(c.work)
	}
	e.End = time.Now()
	return c.trail.Write(e)
}

func (c *counter) note(kind trail.Kind) func(context.Context, []allocate.Queue) {
	return func(_ context.Context, queues []allocate.Queue) {
		now := time.Now()
		entries := make([]trail.Entry, len(queues))
		for i, q := range queues {
			entries[i] = trail.Entry{Kind: kind, Queue: q, Begin: now, End: now}
		}
		if err := c.trail.Write(entries...); err != nil {
			c.log.Error("trail", zap.Error(err))
		}
	}
}
