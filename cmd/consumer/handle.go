package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/msgjson"
	"github.com/tacitmq/tacit/message"
)

// printBatch is how many messages are written at once.
const printBatch = 32

// handler returns what is done with messages. fail ends the program.
func (s *settings) handler(cmd *cobra.Command, fail context.CancelCauseFunc) (consumer.Handler, error) {
	if s.program != "" {
		path, err := exec.LookPath(s.program)
		if err != nil {
			return consumer.Handler{}, fmt.Errorf("exec: %w", err)
		}
		r := &runner{path: path, args: s.programArgs, delay: s.retryDelay, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr()}
		if s.orderly {
			return consumer.Orderly(r.run), nil
		}
		return consumer.Each(r.run), nil
	}
	p := &printer{out: cmd.OutOrStdout(), json: s.format == "json", fail: fail}
	if s.orderly {
		return consumer.Orderly(func(_ context.Context, m *message.Message) error { return p.print([]*message.Message{m}) }), nil
	}
	return consumer.Batch(printBatch, func(_ context.Context, msgs []*message.Message) error { return p.print(msgs) }), nil
}

// printer writes messages to stdout.
type printer struct {
	out  io.Writer
	json bool
	fail context.CancelCauseFunc

	mu  sync.Mutex
	buf []byte
}

// print writes messages. A message counts as consumed once it is written; if
// stdout is gone the program ends, and nothing is lost.
func (p *printer) print(msgs []*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buf = p.buf[:0]
	for _, m := range msgs {
		if !p.json {
			p.buf = append(append(p.buf, m.Body...), '\n')
			continue
		}
		var err error
		if p.buf, err = msgjson.Append(p.buf, m); err != nil {
			return err
		}
	}
	if _, err := p.out.Write(p.buf); err != nil {
		err = fmt.Errorf("write messages: %w", err)
		p.fail(err)
		return err
	}
	return nil
}

// runner runs a program for each message.
type runner struct {
	path           string
	args           []string
	delay          time.Duration
	stdout, stderr io.Writer
	mu             sync.Mutex // one program's output at a time
}

// killAfter is how long a program has to end once it was asked to.
const killAfter = 2 * time.Second

func (r *runner) run(ctx context.Context, m *message.Message) error {
	c := exec.CommandContext(ctx, r.path, r.args...) //nolint:gosec // what to run is the user's choice
	c.Cancel = func() error { return terminate(c.Process) }
	c.WaitDelay = killAfter
	c.Stdin = bytes.NewReader(m.Body)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, r.stderr
	c.Env = append(os.Environ(),
		"TACIT_MESSAGE_TOPIC="+m.Topic, "TACIT_MESSAGE_TAG="+m.Tag, "TACIT_MESSAGE_KEY="+m.Key(),
		"TACIT_MESSAGE_BROKER="+m.Queue.Broker, "TACIT_MESSAGE_QUEUE="+strconv.Itoa(int(m.Queue.ID)),
		"TACIT_MESSAGE_OFFSET="+strconv.FormatInt(m.Offset, 10), "TACIT_MESSAGE_ATTEMPT="+strconv.Itoa(int(m.ReconsumeTimes)+1))
	err := c.Run()
	if errors.Is(err, exec.ErrWaitDelay) && c.ProcessState.Success() {
		err = nil // it ended well, and left something running that holds its output
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, e := r.stdout.Write(out.Bytes()); e != nil && err == nil {
		err = e
	}
	if err != nil {
		err = fmt.Errorf("run %s: %w", r.path, err)
		if r.delay > 0 {
			return consumer.RetryAfter(r.delay, err)
		}
		return err
	}
	return nil
}
