package broker

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tacitmq/tacit/internal/rpcerr"
)

// A panic of what serves one stream is that stream's error, said once with its stack, and counted.
func TestPanicOfOneStreamIsItsError(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	reg := prometheus.NewRegistry()
	s := &Server{metrics: newMetrics(reg), log: zap.New(core)}
	err := s.guard(func() error { panic("cannot be") })
	if !errors.Is(err, rpcerr.ErrInternal) || contains(err, "cannot be") {
		t.Errorf("error is %v", err)
	}
	if n := gathered(t, reg)["tacit_broker_stream_panics_total"]; n != 1 {
		t.Errorf("%v panics counted", n)
	}
	all := logs.All()
	if len(all) != 1 {
		t.Fatalf("%d lines logged", len(all))
	}
	stack, _ := all[0].ContextMap()["stack"].(string)
	if all[0].ContextMap()["panic"] != "cannot be" || !bytes.Contains([]byte(stack), []byte("TestPanicOfOneStreamIsItsError")) {
		t.Errorf("logged %v", all[0].ContextMap())
	}
	if err := s.guard(func() error { return rpcerr.ErrShuttingDown }); !errors.Is(err, rpcerr.ErrShuttingDown) || len(logs.All()) != 1 {
		t.Errorf("an error is not passed on: %v", err)
	}
}

// A panic amid state that all share ends the process, with its text and its place, although the stream on whose goroutine
// it came about is guarded, and before anything deferred uses that state.
func TestPanicInSharedStateEndsTheProcess(t *testing.T) {
	const child = "TACIT_TEST_PANIC"
	if os.Getenv(child) != "" {
		s := &Server{metrics: newMetrics(nil), log: zap.NewNop()}
		_ = s.guard(func() error {
			defer os.Exit(0) // as the use of what was left would be
			breakLease()
			return nil
		})
		os.Exit(0)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanicInSharedStateEndsTheProcess$") //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		t.Errorf("process ended with %v", err)
	}
	for _, want := range []string{"panic in shared state: lease is half granted", "breakLease"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func breakLease() {
	defer shared()
	panic("lease is half granted")
}
