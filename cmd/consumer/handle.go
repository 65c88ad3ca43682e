package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/msgjson"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
)

// printBatch is how many messages are written at once.
const printBatch = 32

// handler returns what is done with messages. fail ends the program. end is to be
// called at the end of all.
func (s *settings) handler(cmd *cobra.Command, fail context.CancelCauseFunc) (h consumer.Handler, end func(), err error) {
	if s.program != "" {
		path, err := exec.LookPath(s.program)
		if err != nil {
			return h, nil, fmt.Errorf("exec: %w", err)
		}
		r := &runner{path: path, args: s.programArgs, delay: s.retryDelay, stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), fail: fail}
		undo := r.killAtSecondSignal()
		end = func() {
			r.finish()
			undo()
		}
		if s.orderly {
			return consumer.Orderly(r.run), end, nil
		}
		return consumer.Each(r.run), end, nil
	}
	p := &printer{out: cmd.OutOrStdout(), json: s.format == "json", fail: fail}
	if s.orderly {
		return consumer.Orderly(func(_ context.Context, m *message.Message) error { return p.print([]*message.Message{m}) }), func() {}, nil
	}
	return consumer.Batch(printBatch, func(_ context.Context, msgs []*message.Message) error { return p.print(msgs) }), func() {}, nil
}

// printer writes messages to stdout.
type printer struct {
	out  io.Writer
	json bool
	fail context.CancelCauseFunc

	mu  sync.Mutex
	buf []byte
}

// handOn is after what time a message that could not be printed comes again, to
// another member: this one ends.
const handOn = time.Millisecond

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
		return consumer.RetryAfter(handOn, err)
	}
	return nil
}

// runner runs a program for each message.
type runner struct {
	path           string
	args           []string
	delay          time.Duration
	stdout, stderr io.Writer
	fail           context.CancelCauseFunc // ends the consumer
	mu             sync.Mutex              // one program's output at a time

	runs    sync.Mutex
	running map[*os.Process]struct{}
	over    bool          // nothing is to be started any more
	idle    chan struct{} // closed when nothing runs, if somebody waits
}

// killAfter is how long a program has to end once it was asked to.
const killAfter = 2 * time.Second

func (r *runner) run(ctx context.Context, m *message.Message) error {
	c := exec.CommandContext(ctx, r.path, r.args...) //nolint:gosec // what to run is the user's choice
	apart(c)
	c.Cancel = func() error { return terminate(c.Process) }
	c.WaitDelay = killAfter
	c.Stdin = bytes.NewReader(m.Body)
	out := output{to: r.stdout, mu: &r.mu}
	c.Stdout, c.Stderr = &out, r.stderr
	c.Env = append(os.Environ(),
		"TACIT_MESSAGE_TOPIC="+m.Topic, "TACIT_MESSAGE_TAG="+m.Tag, "TACIT_MESSAGE_KEY="+m.Key(),
		"TACIT_MESSAGE_BROKER="+m.Queue.Broker, "TACIT_MESSAGE_QUEUE="+strconv.Itoa(int(m.Queue.ID)),
		"TACIT_MESSAGE_OFFSET="+strconv.FormatInt(m.Offset, 10), "TACIT_MESSAGE_ATTEMPT="+strconv.Itoa(int(m.ReconsumeTimes)+1))
	err := r.start(c)
	if err == nil {
		err = c.Wait()
		r.ended(c.Process, ctx.Err() != nil)
	}
	if errors.Is(err, exec.ErrWaitDelay) && c.ProcessState.Success() {
		err = nil // it ended well, and left something running that holds its output
	}
	if e := out.flush(); e != nil && err == nil {
		err = e
	}
	gone := obs.ReaderGone(err)
	if err != nil {
		err = fmt.Errorf("run %s: %w", r.path, err)
		if gone { // nobody reads what the programs print: the consumer ends
			r.fail(err)
			return consumer.RetryAfter(handOn, err)
		}
		if r.delay > 0 {
			return consumer.RetryAfter(r.delay, err)
		}
		return err
	}
	return nil
}

// start starts a program and remembers it.
func (r *runner) start(c *exec.Cmd) error {
	r.runs.Lock()
	defer r.runs.Unlock()
	if r.over {
		return context.Canceled
	}
	if err := c.Start(); err != nil {
		return err //nolint:wrapcheck // run says what was tried
	}
	if r.running == nil {
		r.running = make(map[*os.Process]struct{})
	}
	r.running[c.Process] = struct{}{}
	return nil
}

// ended forgets a program. One that was told to end leaves nothing running.
func (r *runner) ended(p *os.Process, told bool) {
	r.runs.Lock()
	defer r.runs.Unlock()
	delete(r.running, p)
	if told {
		_ = kill(p) // mostly there is nothing left
	}
	if r.idle != nil && len(r.running) == 0 {
		close(r.idle)
		r.idle = nil
	}
}

// killAll ends all programs, for the consumer is about to end at once.
func (r *runner) killAll() {
	r.runs.Lock()
	defer r.runs.Unlock()
	r.over = true
	for p := range r.running {
		_ = kill(p) // it may just have ended
	}
}

// finish waits for programs that were told to end when the consumer gave up waiting
// for them, and ends those that do not.
func (r *runner) finish() {
	r.runs.Lock()
	r.over = true
	idle := make(chan struct{})
	if len(r.running) > 0 {
		r.idle = idle
	} else {
		close(idle)
	}
	r.runs.Unlock()
	t := time.NewTimer(killAfter)
	defer t.Stop()
	select {
	case <-idle:
	case <-t.C:
		r.killAll()
	}
}

// killAtSecondSignal makes the second SIGINT or SIGTERM, which ends the consumer at
// once, end its programs too. What it returns undoes that.
func (r *runner) killAtSecondSignal() (undo func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() { // undo waits for it
		defer close(ended)
		select {
		case <-signals: // the first one is to stop
		case <-done:
			return
		}
		select {
		case s := <-signals:
			r.killAll()
			signal.Reset(os.Interrupt, syscall.SIGTERM)
			die(s)
		case <-done:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
		<-ended
	}
}
