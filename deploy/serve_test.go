package deploy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Probes, scrapes and profiles ask for these.
func TestProgramsServeTheirHTTPPaths(t *testing.T) {
	for name, args := range map[string][]string{
		"nameserver": {"--listen=127.0.0.1:0"},
		"broker":     {"--listen=127.0.0.1:0", "--data-dir=" + t.TempDir(), "--name=b"},
		"consumer":   {"--nameservers=127.0.0.1:1", "--group=g", "--topic=t"},
	} {
		t.Run(name, func(t *testing.T) {
			address := freeAddress(t)
			start(t, name, append(args, "--http="+address)...)
			for path, want := range map[string]string{
				"/metrics":      "go_goroutines",
				"/healthz":      "ok",
				"/readyz":       "", // without a name server some are not ready
				"/debug/pprof/": "goroutine",
			} {
				status, body := get(t, "http://"+address+path)
				ok := status == http.StatusOK || path == "/readyz" && status == http.StatusServiceUnavailable
				if !ok || !strings.Contains(body, want) {
					t.Errorf("%s: status %d, want %q in:\n%.500s", path, status, want, body)
				}
			}
			if status, _ := get(t, "http://"+address+"/nothing"); status != http.StatusNotFound {
				t.Errorf("status %d for a path that is not there", status)
			}
		})
	}
}

// freeAddress returns an address on loopback where nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

// start runs a program until the test ends. It returns once the program has
// printed or logged something, which it does when its ports are bound.
func start(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := program(t, name, args...)
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { // ends with the program, which the test's context kills
		_ = cmd.Wait()
		_ = w.Close()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = r.Close()
		<-ended
	})
	lines := bufio.NewReader(r)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("%s ended: %s", name, first)
	}
	t.Logf("%s: %s", name, first)
	go func() { _, _ = io.Copy(io.Discard, lines) }() // ends with the pipe
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
