package allocate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// TestHashKeepsItsWireContract checks sums made by a separate program in another
// language. A changed value here breaks every mixed cluster: it needs a new name
// for whatever is built on it, never a new golden value.
func TestHashKeepsItsWireContract(t *testing.T) {
	t.Parallel()
	var cases []struct {
		Input []json.RawMessage
		Sum   string
	}
	raw, err := os.ReadFile("testdata/hash-golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) < 15 {
		t.Fatalf("%d golden cases, want at least 15", len(cases))
	}
	for _, c := range cases {
		h, asBytes := allocate.NewHash(), allocate.NewHash()
		for _, in := range c.Input {
			var s string
			if json.Unmarshal(in, &s) == nil {
				h, asBytes = h.String(s), asBytes.Bytes([]byte(s))
				continue
			}
			var n struct {
				Uint64 string `json:"uint64"`
			}
			if err := json.Unmarshal(in, &n); err != nil {
				t.Fatal(err)
			}
			v, err := strconv.ParseUint(n.Uint64, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			h, asBytes = h.Uint64(v), asBytes.Uint64(v)
		}
		if got := fmt.Sprintf("%016x", h.Sum64()); got != c.Sum {
			t.Errorf("%s: %s, want %s", c.Input, got, c.Sum)
		}
		if h != asBytes {
			t.Errorf("%s: String and Bytes differ", c.Input)
		}
	}
}

func TestHashContinuesACommonBeginning(t *testing.T) {
	t.Parallel()
	begun := allocate.NewHash().String("group").String("topic")
	a, b := begun.String("broker-a").Sum64(), begun.String("broker-b").Sum64()
	if a == b || a != allocate.NewHash().String("group").String("topic").String("broker-a").Sum64() {
		t.Errorf("broker-a %x, broker-b %x", a, b)
	}
}

func TestHashDoesNotAllocate(t *testing.T) {
	topic := string([]byte("orders"))
	var sum uint64
	if n := testing.AllocsPerRun(100, func() {
		sum += allocate.NewHash().String(topic).Uint64(sum).Sum64()
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
