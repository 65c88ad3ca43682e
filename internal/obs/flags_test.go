package obs

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestFlagsSayWhatTheyTakeInPlainWords(t *testing.T) {
	var n int
	var n32 int32
	var n64 int64
	var d time.Duration
	var x float64
	var text string
	names := []string{"old:1"}
	for _, c := range []struct {
		name  string
		value pflag.Value
		good  []string
		bad   map[string]string
	}{
		{"bounded number", Int(&n, 1, 20), []string{"1", "20"}, map[string]string{
			"0": "must be 1 to 20", "21": "must be 1 to 20", "-3": "must be 1 to 20", "99999999999999999999": "must be 1 to 20",
			"many": "must be a whole number, 1 to 20", "1.5": "must be a whole number, 1 to 20", "": "must be a whole number, 1 to 20",
		}},
		{"number without an end", Int(&n32, 0, math.MaxInt32), []string{"0", "2147483647"}, map[string]string{
			"-1": "must be 0 or more", "2147483648": "must be 0 to 2147483647", "x": "must be a whole number, 0 or more",
		}},
		{"any number", Int(&n64, math.MinInt64, math.MaxInt64), []string{"-9223372036854775808"}, map[string]string{"x": "must be a whole number"}},
		{"duration", Duration(&d, 100*time.Millisecond, time.Hour), []string{"100ms", "1h"}, map[string]string{
			"1ms": "must be 100ms to 1h", "2h": "must be 100ms to 1h", "soon": "must be a duration, such as 10s or 1m30s", "3": "must be a duration, such as 10s or 1m30s",
		}},
		{"duration without an end", Duration(&d, 0, Forever), []string{"0", "0s", "100h"}, map[string]string{"-1s": "must be 0 or longer"}},
		{"size", Size(&n64, 1<<10, 64<<20), []string{"1024", "64MiB", "2 MB"}, map[string]string{
			"1": "must be a size such as 64MiB, 1.0KiB to 64MiB", "much": "must be a size such as 64MiB, 1.0KiB to 64MiB",
		}},
		{"size without an end", Size(&n64, 0, math.MaxInt64), []string{"0", "8EB"}, map[string]string{"-1": "must be a size such as 64MiB, 0 or more"}},
		{"share", Float(&x, 0, 1), []string{"0", "0.5", "1"}, map[string]string{
			"2": "must be a number, 0 to 1", "NaN": "must be a number, 0 to 1", "half": "must be a number, 0 to 1",
		}},
		{"rate", Float(&x, 0, math.Inf(1)), []string{"1e6"}, map[string]string{"-1": "must be a number, 0 or more", "Inf": "must be a number, 0 or more"}},
		{"choice", Choice(&text, "raw", "json"), []string{"raw", "json"}, map[string]string{"xml": "must be raw or json", "": "must be raw or json"}},
		{"address to listen on", Listen(&text), []string{":0", ":9876", "127.0.0.1:1", "[::1]:80", "host:80"}, map[string]string{
			"foo": "must be host:port or :port", "": "must be host:port or :port", ":http": "must be host:port or :port", ":65536": "must be host:port or :port",
			":": "must be host:port or :port", ":-1": "must be host:port or :port", "::1:80": "must be host:port or :port",
		}},
		{"address or none", MaybeListen(&text), []string{"", ":1"}, map[string]string{"foo": "or empty"}},
		{"address to connect to", Dial(&text), []string{"", "host:1"}, map[string]string{"foo": "must be host:port", ":1": "must be host:port", "host:0": "must be host:port"}},
		{"name servers", NameServers(&names, false), []string{"a:1", "a:1,b:2", "file:x", "http://host/list"}, map[string]string{
			"": "must be host:port of each name server", "foo": "must be host:port of each name server",
		}},
	} {
		for _, v := range c.good {
			if err := c.value.Set(v); err != nil {
				t.Errorf("%s: %q: %v", c.name, v, err)
			}
			if l, is := c.value.(*list); is {
				l.changed = false
			}
		}
		before := c.value.String()
		for v, want := range c.bad {
			if err := c.value.Set(v); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q: error %v, want %q", c.name, v, err, want)
			}
		}
		if now := c.value.String(); now != before {
			t.Errorf("%s: refused, but now %q instead of %q", c.name, now, before)
		}
	}
}

func TestNameServersAddUpOnceGiven(t *testing.T) {
	names := []string{"default:1"}
	v := NameServers(&names, false)
	for _, text := range []string{"a:1,b:1", "c:1"} {
		if err := v.Set(text); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(names, []string{"a:1", "b:1", "c:1"}) {
		t.Errorf("got %q", names)
	}
	var none []string
	if err := NameServers(&none, true).Set(""); err != nil || len(none) != 0 {
		t.Errorf("none: %v %q", err, none)
	}
}

func TestChoicesAreCompleted(t *testing.T) {
	var word string
	root := Root("prog", "A program")
	root.Flags().Var(Choice(&word, "raw", "json"), "format", "")
	root.RunE = func(*cobra.Command, []string) error { return nil }
	var out strings.Builder
	if code := Main(root, []string{"__complete", "--format", ""}, &out, &strings.Builder{}); code != ExitOK || !strings.Contains(out.String(), "raw\njson\n") {
		t.Errorf("exit %d: %s", code, out.String())
	}
}
