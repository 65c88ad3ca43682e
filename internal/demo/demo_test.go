package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
)

// memberEnv makes this test binary a member process.
const memberEnv = "TACIT_DEMO_TEST_MEMBER"

func TestMain(m *testing.M) {
	if text := os.Getenv(memberEnv); text != "" {
		var cfg MemberConfig
		if err := json.Unmarshal([]byte(text), &cfg); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		cfg.Logger = zap.NewNop()
		if err := RunMember(context.Background(), cfg, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func self(t *testing.T) func(context.Context, MemberConfig) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return func(ctx context.Context, cfg MemberConfig) *exec.Cmd {
		text, err := json.Marshal(cfg)
		if err != nil {
			t.Error(err)
		}
		cmd := exec.CommandContext(ctx, exe)
		cmd.Env = append(os.Environ(), memberEnv+"="+string(text))
		return cmd
	}
}

func TestDemoSettlesAfterEveryEventAndLosesNothing(t *testing.T) {
	cfg := Default()
	cfg.Member, cfg.Hold, cfg.JSON, cfg.Rate = self(t), 50*time.Millisecond, true, 500
	var out strings.Builder
	res, err := Run(t.Context(), cfg, &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	var names []string
	for _, e := range res.Events {
		names = append(names, e.Event)
	}
	if want := strings.Fields("start join leave crash grow broker-restart rolling-restart"); !slices.Equal(names, want) {
		t.Errorf("events %q, want %q", names, want)
	}
	if !res.Settled || res.Lost != 0 || res.Produced == 0 || res.Consumed != res.Produced {
		t.Errorf("result %+v", res)
	}
	for _, e := range res.Events {
		// Three that start do not start at one moment: that is more than one change,
		// which may cost extra moves.
		if e.Moved < e.Minimum || e.Event != "start" && e.Moved != e.Minimum {
			t.Errorf("%s moved %d queues, the minimum is %d", e.Event, e.Moved, e.Minimum)
		}
		if e.Event != "crash" && e.Duplicates > 0 {
			t.Errorf("%s repeated %d messages", e.Event, e.Duplicates)
		}
		if e.Event == "crash" && (e.PausedQueues != e.Moved || e.MaxPauseMS <= 0) && e.PausedQueues < e.Moved {
			t.Errorf("%+v: the queues of the killed member must have paused", e)
		}
		if e.SettledMS <= 0 {
			t.Errorf("%+v: settled in no time", e)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var printed map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &printed); err != nil {
		t.Fatalf("last line: %v\n%s", err, &out)
	}
	keys := []string{"consumed", "duplicates", "events", "lost", "produced", "settled"}
	if got := sortedKeys(printed); !slices.Equal(got, keys) {
		t.Errorf("keys %q, want %q", got, keys)
	}
	first, _ := printed["events"].([]any)[0].(map[string]any)
	keys = []string{"duplicates", "event", "lost", "max_pause_ms", "minimum", "moved", "paused_queues", "settled_ms"}
	if got := sortedKeys(first); !slices.Equal(got, keys) {
		t.Errorf("keys of an event %q, want %q", got, keys)
	}
}

func TestMemberThatCannotStartEndsTheDemo(t *testing.T) {
	cfg := Default()
	cfg.Member = func(ctx context.Context, _ MemberConfig) *exec.Cmd {
		cmd := self(t)(ctx, MemberConfig{ID: "with blanks", NameServers: []string{"127.0.0.1:1"}, Group: Group, Topic: Topic})
		return cmd
	}
	var out strings.Builder
	_, err := Run(t.Context(), cfg, &out)
	if err == nil || !strings.Contains(err.Error(), "member c1 ended before it could join") || !strings.Contains(err.Error(), "client id") {
		t.Errorf("error %v", err)
	}
}

func TestInterruptEndsEverything(t *testing.T) {
	cfg := Default()
	ctx, cancel := context.WithCancel(t.Context())
	start := self(t)
	cfg.Member = func(life context.Context, m MemberConfig) *exec.Cmd {
		cancel() // as soon as the first member is to start
		return start(life, m)
	}
	var out strings.Builder
	if _, err := Run(ctx, cfg, &out); err == nil {
		t.Error("no error")
	}
}

func TestSettingsOfTheDemoAreChecked(t *testing.T) {
	for _, change := range []func(*Config){
		func(c *Config) { c.Queues = 0 },
		func(c *Config) { c.Grown = c.Queues },
		func(c *Config) { c.Rate = 0 },
		func(c *Config) { c.Limit = 0 },
		func(c *Config) { c.Member = nil },
	} {
		cfg := Default()
		cfg.Member = self(t)
		change(&cfg)
		if _, err := Run(t.Context(), cfg, &strings.Builder{}); err == nil {
			t.Errorf("%+v: no error", cfg)
		}
	}
}

func sortedKeys(m map[string]any) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
