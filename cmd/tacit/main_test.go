package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/obs/flagtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"tacit": main})
}

func TestEveryFlagRefusesNonsense(t *testing.T) { flagtest.RefuseNonsense(t, command) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			address, err := startDev(env.Defer)
			env.Setenv("NAMESERVER", address)
			env.Setenv("TACIT_NAMESERVERS", address)
			if err != nil {
				return err
			}
			free, err := freeAddress()
			env.Setenv("FREE", free)
			if err != nil {
				return err
			}
			return os.WriteFile(env.WorkDir+"/many", []byte(strings.Repeat("line\n", 700)), 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": status, "until": until, "same": same,
		},
	})
}

// startDev runs "tacit dev" in this process on free ports and returns the
// address of its name server.
func startDev(atEnd func(func())) (string, error) {
	ctx, cancel := context.WithCancel(context.Background())
	out, stderr := &output{}, &output{}
	ended := make(chan int, 1)
	go func() { // ended by atEnd
		ended <- obs.MainContext(ctx, command(), []string{"dev", "--nameserver-listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"}, out, stderr)
	}()
	atEnd(func() {
		cancel()
		<-ended
	})
	ready := regexp.MustCompile(`ready in (\S+): name server (\S+),`)
	deadline := time.After(20 * time.Second)
	for {
		if m := ready.FindStringSubmatch(out.String()); m != nil {
			return m[2], nil
		}
		select {
		case code := <-ended:
			ended <- code
			return "", io.ErrUnexpectedEOF
		case <-deadline:
			return "", context.DeadlineExceeded
		case <-time.After(time.Millisecond):
		}
	}
}

// freeAddress is one that nobody listens on.
func freeAddress() (string, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return lis.Addr().String(), lis.Close()
}

// output is a buffer for several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// status runs a command and checks its exit status: status 2 tacit --nope
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status CODE COMMAND ARGS")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // as Exec returns it
		got = exit.String()
		got = got[strings.LastIndexByte(got, ' ')+1:]
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != args[0] {
		ts.Fatalf("exit status %s, want %s", got, args[0])
	}
}

// until runs a command again and again until its stdout matches, for 20 s at
// most: until 'settled' tacit group list
func until(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND ARGS")
	}
	want := regexp.MustCompile("(?m)" + args[0])
	var out []byte
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		cmd := exec.Command(args[1], args[2:]...) //nolint:gosec // as the script says
		cmd.Env = append(os.Environ(), "TACIT_NAMESERVERS="+ts.Getenv("TACIT_NAMESERVERS"))
		out, _ = cmd.Output() // what matters is on stdout
		if want.Match(out) {
			return
		}
	}
	ts.Fatalf("no match for %q in\n%s", args[0], out)
}

// same checks the stdout of the last command against a file, with what differs
// from run to run replaced: addresses, epochs, client ids, times.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: same FILE")
	}
	got := ts.ReadFile("stdout")
	for _, r := range []struct{ pattern, with string }{
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[0-9.Z]*`, "TIME"},
		{`\b1\d{12}\b`, "EPOCH"},
		{`\b[0-9a-f]{16}\b`, "DIGEST"},
		{`\b\S+@\d+#[0-9a-f]{32}`, "CLIENT"},
		{` {2,}`, "  "},
		{`(?m) +$`, ""},
	} {
		got = regexp.MustCompile(r.pattern).ReplaceAllString(got, r.with)
	}
	if want := strings.ReplaceAll(ts.ReadFile(args[0]), "\r\n", "\n"); got != want {
		ts.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

// The best of a few, since the machine may be busy with other tests.
func TestDevIsReadyInUnderASecond(t *testing.T) {
	var took time.Duration
	for range 5 {
		began := time.Now()
		if _, err := startDev(t.Cleanup); err != nil {
			t.Fatal(err)
		}
		if took = time.Since(began); took < time.Second {
			return
		}
	}
	t.Errorf("ready after %v", took)
}
