package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/internal/obs/flagtest"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"consumer": main}) }

func TestEveryFlagRefusesNonsense(t *testing.T) { flagtest.RefuseNonsense(t, command) }

func TestScripts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Run("all", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: "testdata/script",
			Setup: func(e *testscript.Env) error {
				e.Setenv("TACIT_NAMESERVERS", strings.Join(c.NameServers(), ","))
				e.Setenv("TACIT_HTTP", "127.0.0.1:0")
				e.Values[membersKey{}] = make(map[string]*running)
				return nil
			},
			Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
				// topic NAME QUEUES makes a topic.
				"topic": func(ts *testscript.TestScript, _ bool, args []string) {
					n, err := strconv.ParseInt(args[1], 10, 32)
					ts.Check(err)
					ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
					defer cancel()
					ts.Check(c.PutTopic(ctx, args[0], int32(n)))
				},
				// send TOPIC TAG N sends N messages, numbered from 1.
				"send":   func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(send(c, args)) },
				"member": startMember, "await": await, "halt": stopMember, "stoptwice": stopTwice, "soon": soon,
			},
		})
	})
}

func send(c *cluster.Cluster, args []string) error {
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	p, err := producer.New(c.NameServers())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	defer p.Close(ctx)
	for i := range n {
		m := &message.Message{Topic: args[0], Tag: args[1], Keys: []string{fmt.Sprint("k", i+1)}, Body: fmt.Appendf(nil, "message %d", i+1)}
		if _, err := p.Send(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// membersKey is where a script keeps the programs it has started.
type membersKey struct{}

// running is a consumer that a script has started. Its output is read as it comes.
type running struct {
	cmd   *exec.Cmd
	log   bytes.Buffer
	lines chan string // closed at its end
	out   strings.Builder
}

// startMember starts a consumer: member NAME ARGS.
func startMember(ts *testscript.TestScript, _ bool, args []string) {
	m := &running{cmd: exec.Command("consumer", args[1:]...), lines: make(chan string)} //nolint:gosec // as the script says
	m.cmd.Dir, m.cmd.Stderr = ts.Getenv("WORK"), &m.log
	m.cmd.Env = append(os.Environ(), "TACIT_NAMESERVERS="+ts.Getenv("TACIT_NAMESERVERS"), "TACIT_HTTP="+ts.Getenv("TACIT_HTTP"))
	stdout, err := m.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(m.cmd.Start())
	ended := make(chan struct{})
	go func() { // ends with the program, or once nobody waits for it any more
		defer close(m.lines)
		for in := bufio.NewScanner(stdout); in.Scan(); {
			select {
			case m.lines <- in.Text():
			case <-ended:
			}
		}
	}()
	ts.Defer(func() {
		close(ended)
		_ = m.cmd.Process.Kill() // it has ended unless the script failed
	})
	ts.Value(membersKey{}).(map[string]*running)[args[0]] = m
}

func member(ts *testscript.TestScript, name string) *running {
	m := ts.Value(membersKey{}).(map[string]*running)[name]
	if m == nil {
		ts.Fatalf("no member %s", name)
	}
	return m
}

// await waits until a consumer has printed a text: await NAME TEXT.
func await(ts *testscript.TestScript, _ bool, args []string) {
	m := member(ts, args[0])
	deadline := time.After(20 * time.Second)
	for !strings.Contains(m.out.String(), args[1]) {
		select {
		case line, ok := <-m.lines:
			if !ok {
				ts.Fatalf("%s ended: %s\n%s", args[0], &m.out, &m.log)
			}
			m.out.WriteString(line + "\n")
		case <-deadline:
			ts.Fatalf("%s does not print %q:\n%s", args[0], args[1], &m.out)
		}
	}
}

// stopMember interrupts a consumer, which must end well, and leaves what it wrote
// in NAME.out and NAME.log: halt NAME.
func stopMember(ts *testscript.TestScript, _ bool, args []string) {
	m := member(ts, args[0])
	ts.Check(m.cmd.Process.Signal(os.Interrupt))
	for line := range m.lines {
		m.out.WriteString(line + "\n")
	}
	if err := m.cmd.Wait(); err != nil {
		ts.Fatalf("%s: %v\n%s", args[0], err, &m.log)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".out"), []byte(m.out.String()), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]+".log"), m.log.Bytes(), 0o600))
}

// stopTwice interrupts a consumer once a file is there, again and again until it
// ends. It has ended only when nothing holds its stderr any more, which what it
// started has inherited: stoptwice NAME FILE.
func stopTwice(ts *testscript.TestScript, _ bool, args []string) {
	m := member(ts, args[0])
	soon(ts, false, args[1:])
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	ended := make(chan error, 1)
	go func() { // ends with the program
		for range m.lines {
		}
		ended <- m.cmd.Wait()
	}()
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			_ = m.cmd.Process.Signal(os.Interrupt) // it may have ended
		case <-deadline:
			ts.Fatalf("%s or a program of it still runs: %s", args[0], &m.log)
		}
	}
}

// soon waits until a file is there: soon FILE.
func soon(ts *testscript.TestScript, _ bool, args []string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			ts.Fatalf("no %s", args[0])
		}
	}
}
