package bench

import (
	"fmt"
	"os"
	"testing"
)

// roleEnv names what a process started by this test is to be.
const (
	roleEnv = "TACIT_BENCH_ROLE"
	dirEnv  = "TACIT_BENCH_DIR"
	argEnv  = "TACIT_BENCH_ARG"
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	serve, ok := map[string]func(dir, arg string) error{
		"tacit": serveTacit, "grpc": serveGRPC, "nats": serveNATS, "nsq": serveNSQ,
		"members": runMembers,
	}[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "role %q is unknown\n", role)
		os.Exit(2)
	}
	if err := serve(os.Getenv(dirEnv), os.Getenv(argEnv)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		os.Exit(1)
	}
	os.Exit(0)
}
