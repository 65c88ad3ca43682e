package coordination

import (
	"fmt"
	"testing"
)

// Values from a real JVM.
func TestGroupsAreDealtAsKafkaDealsThem(t *testing.T) {
	for _, c := range []struct {
		group     string
		hash      int32
		partition int
	}{
		{"test-group", 627841412, 12},
		{"my-group", -1906497762, 12},
		{"orders", -1008770331, 31},
		{"console-consumer-12345", 158455506, 6},
		{"grüße", 98768023, 23},
		{"日本", 835047, 47},
		{"😀g", 54959972, 22},
		{"", 0, 0},
		{"polygenelubricants", -2147483648, 0},
	} {
		if h, p := hash(c.group), Partition(c.group); h != c.hash || p != c.partition {
			t.Errorf("%q: hash %d, partition %d, want %d and %d", c.group, h, p, c.hash, c.partition)
		}
	}
}

// A broker that goes moves the groups it coordinated and no others; none is without
// a coordinator while a broker lives.
func TestLostBrokerMovesItsOwnGroupsOnly(t *testing.T) {
	all := []string{"a", "b", "c"}
	of := map[string]int{}
	for i := range 500 {
		g := fmt.Sprint("group-", i)
		was, is := Host(g, all), Host(g, []string{"c", "a"})
		of[was]++
		if was != "b" && is != was || is == "b" || is == "" {
			t.Errorf("%s: moved from %q to %q when b was lost", g, was, is)
		}
	}
	for _, b := range all {
		if of[b] < 50 {
			t.Errorf("%s coordinates %d of 500 groups", b, of[b])
		}
	}
	if h := Host("g", nil); h != "" {
		t.Errorf("coordinated by %q with no broker", h)
	}
}
