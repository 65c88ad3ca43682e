package main

import (
	"context"
	"fmt"
	"os"
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
				"send": func(ts *testscript.TestScript, _ bool, args []string) { ts.Check(send(c, args)) },
				// until FILE TEXT waits until a file holds a text.
				"until": func(ts *testscript.TestScript, _ bool, args []string) {
					name := ts.MkAbs(args[0])
					for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // another process writes the file
						text, err := os.ReadFile(name)
						if err == nil && strings.Contains(string(text), args[1]) {
							return
						}
						if time.Now().After(deadline) {
							ts.Fatalf("%s does not hold %q: %v:\n%s", args[0], args[1], err, text)
						}
					}
				},
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
