package main

import (
	"bufio"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tacitmq/tacit/internal/obs/flagtest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"nameserver": main})
}

func TestEveryFlagRefusesNonsense(t *testing.T) { flagtest.RefuseNonsense(t, command) }

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": status,
			"serve":  serve,
		},
	})
}

// status runs a command and checks its exit status: status 2 nameserver --nope
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

// serve starts a name server, waits for its line, fetches paths from its HTTP
// port into the environment variable named by each NAME=PATH, tries a second one
// on the same port, and ends the first with SIGTERM:
//
//	serve --listen 127.0.0.1:0 --http 127.0.0.1:0 -- READY=/readyz
func serve(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("serve cannot be negated")
	}
	var fetch []string
	for i, a := range args {
		if a == "--" {
			args, fetch = args[:i], args[i+1:]
			break
		}
	}
	cmd := exec.Command("nameserver", args...)
	cmd.Dir = ts.Getenv("WORK")
	cmd.Env = os.Environ()
	if v := ts.Getenv("TACIT_BROKER_EXPIRY"); v != "" {
		cmd.Env = append(cmd.Env, "TACIT_BROKER_EXPIRY="+v)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		ts.Fatalf("no line: %v\n%s", err, stderr.String())
	}
	ts.Setenv("LINE", strings.TrimSpace(line))
	if m := regexp.MustCompile(`listening on (\S+?)(?:, http on (\S+))?\n`).FindStringSubmatch(line); m != nil {
		ts.Setenv("ADDR", m[1])
		for _, f := range fetch {
			name, path, _ := strings.Cut(f, "=")
			ts.Setenv(name, get(ts, "http://"+m[2]+path))
		}
		taken := ts.Exec("nameserver", "--listen", m[1], "--http", "")
		ts.Setenv("SECOND", "started")
		if taken != nil {
			ts.Setenv("SECOND", "refused")
		}
	}
	ts.Check(cmd.Process.Signal(syscall.SIGTERM))
	killed := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
	defer killed.Stop()
	if err := cmd.Wait(); err != nil {
		ts.Fatalf("after SIGTERM: %v\n%s", err, stderr.String())
	}
	ts.Check(os.WriteFile(ts.MkAbs("log"), []byte(stderr.String()), 0o600))
}

func get(ts *testscript.TestScript, url string) string {
	resp, err := http.Get(url) //nolint:gosec // the server started above
	ts.Check(err)
	defer resp.Body.Close()
	var out strings.Builder
	_, err = bufio.NewReader(resp.Body).WriteTo(&out)
	ts.Check(err)
	return resp.Status + " " + out.String()
}
