package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// process is a member process.
type process struct {
	id     string
	static bool
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr *tail
	ready  chan struct{} // closed when it is ready to join
	joined chan time.Time
	ended  chan struct{} // closed when it has ended and all it said is noted

	mu   sync.Mutex
	text string // why its consumer ended
	err  error  // how the process ended
}

// startProcess starts a member process; it joins when told so. note gets every
// line it says, on one goroutine.
func startProcess(cmd *exec.Cmd, id string, static bool, topic string, note func(p *process, l line)) (*process, error) {
	p := &process{
		id: id, static: static, cmd: cmd, stderr: &tail{}, ready: make(chan struct{}), joined: make(chan time.Time, 1), ended: make(chan struct{}),
	}
	cmd.Stderr = p.stderr
	var err error
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start member %s: %w", id, err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start member %s: %w", id, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start member %s: %w", id, err)
	}
	go func() { // ends with the process; ended says so
		defer close(p.ended)
		bad := p.read(stdout, topic, note)
		err := cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.err = errors.Join(bad, err)
	}()
	return p, nil
}

// read takes in what the member says until the end of its stdout.
func (p *process) read(stdout io.Reader, topic string, note func(*process, line)) error {
	var bad error
	for in := bufio.NewScanner(stdout); in.Scan(); {
		l, err := parseLine(in.Text(), topic)
		if err != nil {
			bad = err // read on: a writer that blocks would not end
			continue
		}
		switch l.word {
		case wordReady:
			close(p.ready)
		case wordJoining:
			p.joined <- l.at
		case wordEnded:
			p.mu.Lock()
			p.text = l.text
			p.mu.Unlock()
		}
		note(p, l)
	}
	return bad
}

// tell sends a command.
func (p *process) tell(command string) error {
	if _, err := io.WriteString(p.stdin, command+"\n"); err != nil {
		return fmt.Errorf("tell member %s to %s: %w", p.id, command, errors.Join(err, p.failure()))
	}
	return nil
}

// waitReady waits until the member is ready to join.
func (p *process) waitReady(ctx context.Context) error {
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("member %s ended before it could join: %w", p.id, p.failure())
	case <-ctx.Done():
		return fmt.Errorf("member %s is not ready to join: %w", p.id, ctx.Err())
	}
}

// waitEnd waits until the member has ended and all it said is noted.
func (p *process) waitEnd(ctx context.Context) error {
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("member %s does not end: %w", p.id, ctx.Err())
	}
}

// kill ends the member as a crash does, and waits for the end of its process.
func (p *process) kill(ctx context.Context) error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill member %s: %w", p.id, err)
	}
	return p.waitEnd(ctx)
}

// hasEnded tells whether the process has ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// failure describes how the member ended, as far as it is known.
func (p *process) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var parts []string
	if p.text != "" {
		parts = append(parts, p.text)
	}
	if p.err != nil {
		parts = append(parts, p.err.Error())
	}
	if s := p.stderr.String(); s != "" {
		parts = append(parts, "its last words: "+s)
	}
	if len(parts) == 0 {
		return errors.New("it ended by itself")
	}
	return errors.New(strings.Join(parts, "; "))
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 2 << 10
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - most; n > 0 {
		t.buf = append(t.buf[:0], t.buf[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.buf))
}
