//go:build e2e && unix

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binaries is where TestMain builds the programs.
var binaries string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tacit-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a directory for programs:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	binaries = dir
	build := exec.Command("go", "build", "-o", dir+string(filepath.Separator),
		"./cmd/nameserver", "./cmd/broker", "./cmd/consumer", "./test/e2e/internal/counter", "./test/e2e/internal/feeder")
	build.Dir = filepath.Join("..", "..")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build programs:", err)
		return 1
	}
	launcher = make(chan func())
	go launch(launcher) // ends when run below has
	defer close(launcher)
	return m.Run()
}

// launcher starts processes, all from one thread that lives as long as the test:
// the system ends them with that thread if the test itself is killed.
var launcher chan func()

func launch(jobs <-chan func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for job := range jobs {
		job()
	}
}

// proc is a process of ours. It is killed at the end of the test, whatever happens.
type proc struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	// ended is closed once the process has; state is then its state.
	ended chan struct{}
	state *os.ProcessState
	begun time.Time
	log   *tail
}

// start starts a program. The name is for people.
func start(t *testing.T, name, program string, args ...string) *proc {
	t.Helper()
	p := &proc{t: t, name: name, ended: make(chan struct{}), log: new(tail), begun: time.Now()}
	p.cmd = exec.Command(filepath.Join(binaries, program), args...)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.SysProcAttr = childAttr()
	p.cmd.WaitDelay = time.Second
	started := make(chan error)
	launcher <- func() { started <- p.cmd.Start() }
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() { // ends with the process, which the cleanup kills
		_ = p.cmd.Wait() // its state says it all
		p.state = p.cmd.ProcessState
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("--- last words of %s (pid %d, %v)\n%s", name, p.cmd.Process.Pid, p.state, p.log.last(40))
		}
	})
	return p
}

// kill ends the process with SIGKILL and waits for its end.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.ended
}

func (p *proc) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %v to %s: %v", s, p.name, err)
	}
}

// stop ends the process with SIGTERM and checks that it ends in time and says
// that all went well. It returns how long that took.
func (p *proc) stop(limit time.Duration) time.Duration {
	p.t.Helper()
	begun := time.Now()
	p.signal(syscall.SIGTERM)
	return p.end(begun, limit)
}

// end waits for the process to end by itself, with exit code 0.
func (p *proc) end(begun time.Time, limit time.Duration) time.Duration {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.signal(syscall.SIGQUIT) // its goroutines go to the log
		select {
		case <-p.ended:
		case <-time.After(2 * time.Second):
		}
		p.t.Fatalf("%s did not end within %v", p.name, limit)
	}
	if code := p.state.ExitCode(); code != 0 {
		p.t.Errorf("%s ended with %v, want exit code 0", p.name, p.state)
	}
	return time.Since(begun)
}

// running tells whether the process has not ended.
func (p *proc) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// awaitLog waits for a line with the text and returns it.
func (p *proc) awaitLog(text string, limit time.Duration) string {
	p.t.Helper()
	var line string
	await(p.t, limit, fmt.Sprintf("%s to say %q", p.name, text), func() (bool, string) {
		var ok bool
		if line, ok = p.log.find(text); ok {
			return true, ""
		}
		if !p.running() {
			p.t.Fatalf("%s ended (%v) before it said %q", p.name, p.state, text)
		}
		return false, "not yet"
	})
	return line
}

// tail keeps what a process writes.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *tail) find(text string) (string, bool) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
			return strings.TrimSuffix(line, "\n"), true
		}
	}
	return "", false
}

func (l *tail) last(n int) string {
	lines := strings.SplitAfter(l.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-n-1):], "")
}

// await waits until cond holds, looking often; state is what it says meanwhile.
func await(t *testing.T, limit time.Duration, what string, cond func() (ok bool, state string)) time.Duration {
	t.Helper()
	begun := time.Now()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		ok, state := cond()
		if ok {
			return time.Since(begun)
		}
		if time.Since(begun) > limit {
			t.Fatalf("waited %v for %s: %s", limit, what, state)
		}
		select {
		case <-ticker.C:
		case <-t.Context().Done():
			t.Fatalf("wait for %s: %v", what, context.Cause(t.Context()))
		}
	}
}

// freeAddress returns an address of loopback that nobody listens on and that no
// outgoing connection gets by itself, so that a server can come back to it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 200 {
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(15000+rand.IntN(15000)))
		lis, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
		return address
	}
	t.Fatal("no free port")
	return ""
}

// seeded returns a source of chance for a test; E2E_SEED repeats a run.
func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("E2E_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("E2E_SEED: %v", err)
		}
	}
	t.Logf("E2E_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// number returns the value of a variable of the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: must be a positive number", name, s)
	}
	return n
}
