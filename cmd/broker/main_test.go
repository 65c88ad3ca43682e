package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/obs/flagtest"
	"github.com/tacitmq/tacit/internal/vfs"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"broker": main}) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			// refuse REGEXP ARGS runs the program, which must end at once with 2 and this
			// error and make no data directory.
			"refuse": func(ts *testscript.TestScript, _ bool, args []string) {
				err := ts.Exec("broker", append(strings.Fields(ts.Getenv("ARGS")), args[1:]...)...)
				if text := ts.ReadFile("stderr"); !regexp.MustCompile(args[0]).MatchString(text) || strings.Contains(text, "strconv") {
					ts.Fatalf("%q says %s", args[1:], text)
				}
				if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != obs.ExitUsage {
					ts.Fatalf("%q: %v, want exit status %d", args[1:], err, obs.ExitUsage)
				}
				if _, err := os.Stat(ts.MkAbs("d")); err == nil {
					ts.Fatalf("%q made the data directory", args[1:])
				}
			},
			// lock DIR holds a data directory as another broker would.
			"lock": func(ts *testscript.TestScript, _ bool, args []string) {
				dir := ts.MkAbs(args[0])
				ts.Check(os.MkdirAll(dir, 0o755))
				l, err := vfs.OS{}.Lock(filepath.ToSlash(filepath.Join(dir, "LOCK")))
				ts.Check(err)
				ts.Defer(func() { _ = l.Close() })
			},
		},
	})
}

func TestEveryFlagRefusesNonsense(t *testing.T) { flagtest.RefuseNonsense(t, command) }

// The program says where it serves, answers there, and ends cleanly when told to.
func TestProgramServesUntilItIsStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	code := make(chan int, 1)
	go func() { // ends when ctx does
		c := obs.MainContext(ctx, command(), []string{
			"--name", "b7", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", t.TempDir(), "--log-format", "json",
		}, io.Discard, w)
		_ = w.Close()
		code <- c
	}()
	lines := bufio.NewScanner(r)
	at := regexp.MustCompile(`"address":"([^"]+)"`)
	var serves string
	for serves == "" && lines.Scan() {
		if m := at.FindStringSubmatch(lines.Text()); m != nil && strings.Contains(lines.Text(), "broker serves") {
			serves = m[1]
		}
	}
	if serves == "" {
		t.Fatalf("the program ended with %d before it served", <-code)
	}
	rest := make(chan string, 1)
	go func() { // ends with the program
		var all strings.Builder
		for lines.Scan() {
			all.WriteString(lines.Text() + "\n")
		}
		rest <- all.String()
	}()
	conn, err := grpc.NewClient(serves, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health %v %v", h, err)
	}
	stop()
	if c := <-code; c != obs.ExitOK {
		t.Errorf("exit code %d", c)
	}
	if log := <-rest; !strings.Contains(log, "broker stopped") {
		t.Errorf("log after the stop: %s", log)
	}
}
