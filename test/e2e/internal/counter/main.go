// Command counter is a consumer of the end-to-end runs: it writes each commit it
// handles to a trail of its own. It uses the SDK as any program would.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "counter:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("counter", flag.ContinueOnError)
	names := f.String("nameservers", "", "comma-separated `addresses`")
	group := f.String("group", "count", "consumer `group`")
	topic := f.String("topic", "commits", "`topic`")
	id := f.String("client-id", "", "client `id`")
	out := f.String("trail", "", "`file` to write to")
	work := f.Duration("work", 0, "how long it takes to handle a commit")
	concurrency := f.Int("concurrency", consumer.DefaultConcurrency, "handlers at once")
	tick := f.Duration("tick", 0, "rebalance interval; 0 is the default")
	heartbeat := f.Duration("heartbeat", 0, "heartbeat interval; 0 is the default")
	timeout := f.Duration("session-timeout", 0, "session timeout; 0 is the default")
	if err := f.Parse(args); err != nil {
		return fmt.Errorf("read flags: %w", err)
	}
	log, err := zap.NewDevelopment()
	if err != nil {
		return fmt.Errorf("make logger: %w", err)
	}
	w, err := trail.Create(*out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	c := &counter{trail: w, work: *work, log: log}
	member, err := consumer.New(strings.Split(*names, ","), *group, consumer.Each(c.handle),
		consumer.WithTopic(*topic, "*"), consumer.WithStart(consumer.First()), consumer.WithClientID(*id),
		consumer.WithConcurrency(*concurrency), consumer.WithTiming(*tick, *heartbeat, *timeout),
		consumer.WithListener(consumer.ListenerFuncs{Assigned: c.note(trail.Assigned), Revoked: c.note(trail.Revoked), Lost: c.note(trail.Lost)}),
		consumer.WithLogger(log))
	if err != nil {
		return fmt.Errorf("make consumer: %w", err)
	}
	return member.Run(ctx)
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
