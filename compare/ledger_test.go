package compare

import (
	"fmt"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Histories of one queue as letters, one for 10 ms: the owner, "." for nobody, a
// capital for that member and the next one ("A" is a and b) at once. The window is
// what lies between the bars.
func TestWhatHappenedToAQueueIsToldByItsOwners(t *testing.T) {
	q := allocate.Queue{Topic: "t", Broker: "b", ID: 1}
	for _, c := range []struct {
		history string
		want    Ownership
	}{
		{"aaa|aaaaa|aa", Ownership{}},
		{"aaa|aa..bb|bb", Ownership{Settle: 40, Moved: 1, GapTotal: 20, GapLongest: 20, GapQueues: 1}},
		{"aaa|a...aa|aa", Ownership{Settle: 40, GapTotal: 30, GapLongest: 30, GapQueues: 1, Stopped: 1}},
		{"aaa|aabbaa|aa", Ownership{Settle: 40, Moved: 2}},
		{"aaa|aAAbbb|bb", Ownership{Settle: 30, Moved: 1, TwiceTotal: 20, TwiceQueues: 1}},
		{"aA|AAbb|b", Ownership{Settle: 20, TwiceTotal: 20, TwiceQueues: 1}},
		{"...|..aaaa|aa", Ownership{Settle: 20, GapTotal: 20, GapLongest: 20, GapQueues: 1}},
		{"aa.|..bbbb|bb", Ownership{Settle: 20, Moved: 1, GapTotal: 20, GapLongest: 20, GapQueues: 1}},
		{"aaa|aa....|.b", Ownership{Settle: 20, GapTotal: 40, GapLongest: 40, GapQueues: 1}},
		{"abc|cccc|dd", Ownership{}},
	} {
		l := newLedger()
		var from, to, at time.Duration
		now := map[string]bool{}
		for _, r := range c.history {
			if r == '|' {
				if from == 0 {
					from = at
				} else {
					to = at
				}
				continue
			}
			next := map[string]bool{}
			switch {
			case r >= 'A' && r <= 'Z':
				next[string(r+32)], next[string(r+33)] = true, true
			case r != '.':
				next[string(r)] = true
			}
			for m := range now {
				if !next[m] {
					l.free(q, m, at)
				}
			}
			for m := range next {
				l.take(q, m, at)
			}
			now = next
			at += 10 * time.Millisecond
		}
		got := l.measure(from, to, map[allocate.Queue]time.Duration{q: 0})
		for _, d := range []*time.Duration{&got.Settle, &got.GapTotal, &got.GapLongest, &got.TwiceTotal} {
			*d /= time.Millisecond
		}
		if got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.history, got, c.want)
		}
	}
}

func TestSettledIsOneOwnerEachAndEvenShares(t *testing.T) {
	q := func(id int32) allocate.Queue { return allocate.Queue{Topic: "t", Broker: "b", ID: id} }
	queues := []allocate.Queue{q(0), q(1), q(2)}
	l := newLedger()
	l.take(q(0), "a", 1)
	l.take(q(1), "a", 1)
	is := func(want string, members ...string) {
		t.Helper()
		l.expect(queues, members, true)
		if why := l.unsettled(); why != want {
			t.Errorf("%q, want %q", why, want)
		}
	}
	is("2 of 3 queues have exactly one owner", "a")
	l.take(q(2), "a", 2)
	if why := l.unsettled(); why != "" {
		t.Errorf("all taken: %q", why)
	}
	is("shares are 0 to 3 queues", "a", "b")
	l.take(q(2), "b", 3)
	is("2 of 3 queues have exactly one owner", "a", "b")
	l.free(q(2), "a", 4)
	is("", "a", "b")
	is(fmt.Sprintf("%v is owned by b, which is no member", q(2)), "a")
	l.die("b", 5)
	if got := l.owners(); len(got) != 2 || got[q(0)] != "a" {
		t.Errorf("owners %v", got)
	}
}
