package main

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/internal/obs/flagtest"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"producer": main}) }

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
				// read TOPIC N prints N messages: queue, tag, key and body.
				"read": func(ts *testscript.TestScript, _ bool, args []string) {
					n, err := strconv.Atoi(args[1])
					ts.Check(err)
					out, err := read(c, args[0], n)
					ts.Check(err)
					_, _ = ts.Stdout().Write([]byte(out))
				},
			},
		})
	})
}

func read(c *cluster.Cluster, topic string, n int) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pull, err := consumer.NewLitePull(c.NameServers(), "reader-"+topic, consumer.WithTopic(topic, "*"), consumer.WithStart(consumer.First()))
	if err != nil {
		return "", err
	}
	defer pull.Close(ctx)
	var out strings.Builder
	for n > 0 {
		msgs, err := pull.Poll(ctx)
		if err != nil {
			return out.String(), err
		}
		for _, m := range msgs {
			out.WriteString(strconv.Itoa(int(m.Queue.ID)) + " " + m.Tag + " " + m.Key() + " " + string(m.Body) + "\n")
		}
		n -= len(msgs)
	}
	return out.String(), nil
}
