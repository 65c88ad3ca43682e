package obs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
	"go.uber.org/zap"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type settings struct {
	listen string
	expiry time.Duration
	names  []string
	force  bool
	n      int
}

// program returns a command with flags of every kind that calls run.
func program(s *settings, run func(*cobra.Command) error) *cobra.Command {
	cmd := Root("prog", "A program")
	cmd.Args = cobra.NoArgs
	f := cmd.Flags()
	f.StringVar(&s.listen, "listen", "default:1", "")
	f.DurationVar(&s.expiry, "broker-expiry", 10*time.Second, "")
	f.StringSliceVar(&s.names, "names", []string{"x"}, "")
	f.BoolVar(&s.force, "force", false, "")
	f.IntVar(&s.n, "n", 3, "")
	BindFile(f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd) }
	return cmd
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "settings.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestFlagsComeBeforeEnvironmentBeforeFile(t *testing.T) {
	file := write(t, "# comment\nlisten: file:1\nbroker-expiry: 3s\nnames: [a, b]\nforce: yes\nn: 7\n")
	t.Setenv("TACIT_BROKER_EXPIRY", "2s")
	t.Setenv("TACIT_LISTEN", "env:1")
	t.Setenv("TACIT_CONFIG", file)
	t.Setenv("TACIT_HELP", "true")
	t.Setenv("TACIT_N", "")
	var s settings
	var out, errs bytes.Buffer
	if code := Main(program(&s, func(*cobra.Command) error { return nil }), []string{"--listen", "flag:1"}, &out, &errs); code != ExitOK {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	if s.listen != "flag:1" || s.expiry != 2*time.Second || !slices.Equal(s.names, []string{"a", "b"}) || !s.force || s.n != 7 {
		t.Errorf("got %+v", s)
	}
}

func TestDefaultsStayWithoutSettings(t *testing.T) {
	var s settings
	var errs bytes.Buffer
	if code := Main(program(&s, func(*cobra.Command) error { return nil }), []string{"--config", write(t, "")}, io.Discard, &errs); code != ExitOK {
		t.Fatalf("exit %d: %s", code, errs.String())
	}
	if s.listen != "default:1" || s.expiry != 10*time.Second || s.force || s.n != 3 {
		t.Errorf("got %+v", s)
	}
}

func TestWrongUseExitsWithTwoAndNamesTheThing(t *testing.T) {
	for _, tc := range []struct {
		name, file string
		env        [2]string
		args       []string
		want       string
	}{
		{"unknown flag", "", [2]string{}, []string{"--nope"}, "--nope"},
		{"bad flag value", "", [2]string{}, []string{"--broker-expiry", "soon"}, `--broker-expiry "soon": must be a duration`},
		{"argument", "", [2]string{}, []string{"extra"}, "extra"},
		{"bad environment", "", [2]string{"TACIT_N", "many"}, nil, `TACIT_N "many": must be a whole number`},
		{"unknown key", "listen: a:1\nlisten-on: b:1\n", [2]string{}, nil, `:2: unknown setting "listen-on"`},
		{"key that is no setting", "config: x\n", [2]string{}, nil, `unknown setting "config"`},
		{"doubled key", "n: 1\nn: 2\n", [2]string{}, nil, `"n"`},
		{"bad value", "n: many\n", [2]string{}, nil, `:1: n "many": must be a whole number`},
		{"list for one value", "n: [1, 2]\n", [2]string{}, nil, `:1: n: must be one plain value`},
		{"map for a list", "names: {a: b}\n", [2]string{}, nil, `:1: names: must be`},
		{"nested list", "names: [[a]]\n", [2]string{}, nil, `:1: names: must be a list of plain values`},
		{"no value", "listen:\n", [2]string{}, nil, `:1: listen: has no value`},
		{"bad boolean", "force: perhaps\n", [2]string{}, nil, `:1: force "perhaps": must be true or false`},
		{"no map", "- a\n", [2]string{}, nil, "must be a map"},
		{"file without an end", strings.Repeat("#\n", maxFile), [2]string{}, nil, "has more than 1.0MiB"},
		{"no YAML", "{\n", [2]string{}, nil, "read settings"},
		{"usage error of the program", "", [2]string{}, nil, "no such thing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.env[0] != "" {
				t.Setenv(tc.env[0], tc.env[1])
			}
			args := tc.args
			if tc.file != "" {
				args = append(args, "--config", write(t, tc.file))
			}
			var errs bytes.Buffer
			code := Main(program(&settings{}, func(*cobra.Command) error {
				if tc.name != "usage error of the program" {
					t.Error("the program ran")
				}
				return Usage("no such thing")
			}), args, io.Discard, &errs)
			if code != ExitUsage || !strings.Contains(errs.String(), tc.want) || !strings.Contains(errs.String(), "prog --help") {
				t.Errorf("exit %d, want %d with %q:\n%s", code, ExitUsage, tc.want, errs.String())
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		var errs bytes.Buffer
		code := Main(program(&settings{}, nil), []string{"--config", filepath.Join(t.TempDir(), "none.yaml")}, io.Discard, &errs)
		if code != ExitUsage || !strings.Contains(errs.String(), "none.yaml") {
			t.Errorf("exit %d: %s", code, errs.String())
		}
	})
}

func TestFailureExitsWithOne(t *testing.T) {
	var errs bytes.Buffer
	code := Main(program(&settings{}, func(*cobra.Command) error { return errors.New("port is taken") }), nil, io.Discard, &errs)
	if code != ExitFailure || errs.String() != "prog: port is taken\n" {
		t.Errorf("exit %d: %q", code, errs.String())
	}
}

func TestVersionAndHelp(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		var out bytes.Buffer
		if code := Main(program(&settings{}, nil), args, &out, io.Discard); code != ExitOK || !strings.HasPrefix(out.String(), "prog ") || !strings.Contains(out.String(), "go1.") {
			t.Errorf("%v: exit %d: %s", args, code, out.String())
		}
	}
	var out bytes.Buffer
	if code := Main(program(&settings{}, nil), []string{"--help"}, &out, io.Discard); code != ExitOK || !strings.Contains(out.String(), "--broker-expiry") {
		t.Errorf("exit %d: %s", code, out.String())
	}
	out.Reset()
	if code := Main(program(&settings{}, nil), []string{"completion", "bash"}, &out, io.Discard); code != ExitOK || out.Len() == 0 {
		t.Errorf("completion: exit %d, %d bytes", code, out.Len())
	}
}

func TestLoggerWritesTheFormatAskedFor(t *testing.T) {
	var b bytes.Buffer
	log, level, err := NewLogger("warn", "json", &b)
	if err != nil {
		t.Fatal(err)
	}
	log.Info("not this")
	log.Warn("broker expired", zap.String("broker", "b1"), zap.Duration("silent", 10*time.Second))
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil {
		t.Fatalf("%v: %s", err, b.String())
	}
	if line["msg"] != "broker expired" || line["broker"] != "b1" || line["silent"] != "10s" || line["level"] != "warn" {
		t.Errorf("got %v", line)
	}
	level.SetLevel(zap.DebugLevel)
	b.Reset()
	log.Debug("now this")
	if b.Len() == 0 {
		t.Error("the level did not change")
	}
	if _, _, err := NewLogger("loud", "json", &b); err == nil || !strings.Contains(err.Error(), "loud") {
		t.Errorf("bad level: %v", err)
	}
	if _, _, err := NewLogger("info", "xml", &b); err == nil || !strings.Contains(err.Error(), "xml") {
		t.Errorf("bad format: %v", err)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestHTTPPortServesMetricsHealthAndProfiles(t *testing.T) {
	cfg := DefaultConfig("127.0.0.1:0")
	tel, err := New(t.Context(), cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := tel.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	notReady := errors.New("no route yet")
	tel.Ready(func() error { return notReady })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { // ended by cancel below
		done <- tel.Run(ctx, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
	}()
	base := "http://" + tel.HTTPAddr().String()
	for path, want := range map[string]string{
		"/metrics":          "go_goroutines",
		"/healthz":          "ok",
		"/debug/pprof/":     "goroutine",
		"/debug/log-level":  "info",
		"/debug/pprof/heap": "",
	} {
		if code, body := get(t, base+path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, lacks %q", path, code, want)
		}
	}
	if code, body := get(t, base+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no route yet") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, _ := get(t, base+"/nothing"); code != http.StatusNotFound {
		t.Errorf("unknown path: %d", code)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRunEndsWithTheFirstPartThatFails(t *testing.T) {
	tel, err := New(t.Context(), DefaultConfig(""), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if tel.HTTPAddr() != nil || tel.ServerOptions() != nil || tel.DialOptions() != nil {
		t.Error("something is on that was not asked for")
	}
	broken := errors.New("disk is gone")
	err = tel.Run(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); return nil },
		func(context.Context) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestTakenPortIsAnError(t *testing.T) {
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	tel, err := New(t.Context(), DefaultConfig(lis.Addr().String()), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if err := tel.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), lis.Addr().String()) {
		t.Errorf("got %v", err)
	}
}

func TestTracesWithoutCollectorHinderNothing(t *testing.T) {
	cfg := DefaultConfig("")
	cfg.OTLP, cfg.TraceRatio = "127.0.0.1:1", 1
	tel, err := New(t.Context(), cfg, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if len(tel.ServerOptions()) != 1 || len(tel.DialOptions()) != 1 {
		t.Error("no handlers")
	}
	if err := tel.Run(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
	cfg.TraceRatio = 2
	if _, err := New(t.Context(), cfg, io.Discard); err == nil {
		t.Error("a ratio of 2 is taken")
	}
}
