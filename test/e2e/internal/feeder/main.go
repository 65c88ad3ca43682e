// Command feeder is a producer of the end-to-end runs: it sends a file of
// commits, keyed by component, and writes to a trail what was acknowledged. It
// uses the SDK as any program would.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
	"github.com/tacitmq/tacit/test/e2e/internal/program"
	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

func main() {
	var in string
	var rate int
	var timeout time.Duration
	program.Main("feeder", func(f *flag.FlagSet) {
		f.StringVar(&in, "input", "", "`file` of commits, one JSON object a line")
		f.IntVar(&rate, "rate", 1000, "commits a second")
		f.DurationVar(&timeout, "timeout", time.Minute, "how long one may be under way")
	}, func(ctx context.Context, p *program.Program) error {
		input, err := os.ReadFile(in)
		if err != nil {
			return fmt.Errorf("read commits: %w", err)
		}
		sends, err := producer.New(p.NameServers, producer.WithSelector(producer.ByKey()), producer.WithTimeout(timeout), producer.WithLogger(p.Log))
		if err != nil {
			return fmt.Errorf("make producer: %w", err)
		}
		fd := &feeder{producer: sends, trail: p.Trail, topic: p.Topic}
		err = fd.feed(ctx, input, rate)
		return errors.Join(err, sends.Flush(ctx), sends.Close(context.WithoutCancel(ctx)), fd.failure())
	})
}

type feeder struct {
	producer *producer.Producer
	trail    *trail.Writer
	topic    string

	mu     sync.Mutex
	failed error // the first
}

// feed sends the lines at a steady rate.
func (f *feeder) feed(ctx context.Context, input []byte, rate int) error {
	const beat = 10 * time.Millisecond
	ticker := time.NewTicker(beat)
	defer ticker.Stop()
	begun, sent := time.Now(), 0
	lines := bufio.NewScanner(bytes.NewReader(input))
	for lines.Scan() {
		for float64(sent) >= time.Since(begun).Seconds()*float64(rate) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-ticker.C:
			}
		}
		var c trail.Commit
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("read commit %d: %w", sent+1, err)
		}
		m := &message.Message{Topic: f.topic, Keys: []string{c.Component}, Body: bytes.Clone(lines.Bytes())}
		f.producer.SendAsync(ctx, m, func(r producer.Result) { f.stored(&c, r) })
		sent++
	}
	return lines.Err()
}

func (f *feeder) stored(c *trail.Commit, r producer.Result) {
	err := r.Err
	if err == nil {
		now := time.Now()
		err = f.trail.Write(trail.Entry{Kind: trail.Stored, Queue: r.Queue, Offset: r.Offset, Begin: now, End: now, Repeat: r.Duplicate, Commit: c})
	}
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.failed == nil {
			f.failed = fmt.Errorf("send %s: %w", c.SHA, err)
		}
	}
}

func (f *feeder) failure() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}
