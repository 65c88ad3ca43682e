//go:build e2e && unix

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/test/e2e/internal/trail"
)

// totals of one component.
type totals struct {
	Commits    int64 `json:"commits"`
	Files      int64 `json:"files"`
	Insertions int64 `json:"insertions"`
	Deletions  int64 `json:"deletions"`
}

func readTotals(t *testing.T, path string) map[string]totals {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]totals)
	if err := json.Unmarshal(raw, &out); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return out
}

// hand is one commit handled once by one member.
type hand struct {
	member string
	trail.Entry
}

// board follows what all members write.
type board struct {
	t       *testing.T
	readers map[string]*trail.Reader // by member
	hands   map[string][]hand        // by commit
	byQueue map[allocate.Queue][]hand
	losses  map[allocate.Queue][]hand
	count   int            // of hands
	handled map[string]int // by broker
}

func newBoard(t *testing.T) *board {
	return &board{
		t: t, readers: make(map[string]*trail.Reader), hands: make(map[string][]hand),
		byQueue: make(map[allocate.Queue][]hand), losses: make(map[allocate.Queue][]hand), handled: make(map[string]int),
	}
}

func (b *board) follow(member, path string) { b.readers[member] = trail.Follow(path) }

// look reads what is new.
func (b *board) look() {
	b.t.Helper()
	for member, r := range b.readers {
		entries, err := r.Next()
		if err != nil {
			b.t.Fatal(err)
		}
		for _, e := range entries {
			h := hand{member, e}
			switch e.Kind {
			case trail.Handled:
				b.hands[e.Commit.SHA] = append(b.hands[e.Commit.SHA], h)
				b.byQueue[e.Queue] = append(b.byQueue[e.Queue], h)
				b.handled[e.Queue.Broker]++
				b.count++
			case trail.Lost:
				b.losses[e.Queue] = append(b.losses[e.Queue], h)
			case trail.Assigned, trail.Revoked, trail.Stored:
			}
		}
	}
}

// awaitHandled waits until so many different commits were handled.
func (b *board) awaitHandled(n int) {
	b.t.Helper()
	await(b.t, flowLimit, fmt.Sprintf("%d commits to be handled", n), func() (bool, string) {
		b.look()
		return len(b.hands) >= n, fmt.Sprintf("%d are", len(b.hands))
	})
}

// awaitMore waits until n more hand-outs of queues of one broker, or of any if
// it is empty.
func (b *board) awaitMore(broker string, n int) time.Duration {
	b.t.Helper()
	count := func() int {
		b.look()
		if broker == "" {
			return b.count
		}
		return b.handled[broker]
	}
	want := count() + n
	return await(b.t, flowLimit, "messages of "+broker+" to flow", func() (bool, string) {
		c := count()
		return c >= want, fmt.Sprintf("%d missing", want-c)
	})
}

// totals counts each commit once.
func (b *board) totals() map[string]totals {
	out := make(map[string]totals)
	for _, hs := range b.hands {
		c := hs[0].Commit
		sum := out[c.Component]
		sum.Commits++
		sum.Files += c.Files
		sum.Insertions += c.Insertions
		sum.Deletions += c.Deletions
		out[c.Component] = sum
	}
	return out
}

// event is something that the run did.
type event struct {
	what   string
	at     time.Time
	until  time.Time // the group was settled again
	member string    // that was killed
	broker string    // that was killed
	settle time.Duration
}

// duplicate is a commit that was handled again.
type duplicate struct{ first, again hand }

func (b *board) duplicates() []duplicate {
	var out []duplicate
	for _, hs := range b.hands {
		slices.SortFunc(hs, func(x, y hand) int { return x.Begin.Compare(y.Begin) })
		for i := 1; i < len(hs); i++ {
			out = append(out, duplicate{hs[i-1], hs[i]})
		}
	}
	return out
}

// cause names the event that a duplicate came from; ok is false if none can
// have made it.
func (d duplicate) cause(events []event) (what string, ok bool) {
	if d.first.Queue != d.again.Queue || d.first.Offset != d.again.Offset {
		return fmt.Sprintf("stored twice, as %v/%d and %v/%d", d.first.Queue, d.first.Offset, d.again.Queue, d.again.Offset), false
	}
	for _, e := range events {
		if d.again.Begin.Before(e.at) {
			continue
		}
		if e.member != "" && e.member == d.first.member && !d.first.End.After(e.until) {
			return e.what, true
		}
		if e.broker != "" && e.broker == d.first.Queue.Broker && d.first.Begin.Before(e.until) {
			return e.what, true
		}
	}
	return "nothing that happened", false
}

// report describes duplicates by cause and member, and returns how many have no
// cause.
func report(ds []duplicate, events []event) (text string, unexplained int) {
	type key struct{ what, from, to string }
	counts := make(map[key]int)
	for _, d := range ds {
		what, ok := d.cause(events)
		if !ok {
			unexplained++
		}
		counts[key{what, d.first.member, d.again.member}]++
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b key) int {
		return cmp.Or(strings.Compare(a.what, b.what), strings.Compare(a.from, b.from), strings.Compare(a.to, b.to))
	})
	var sb strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&sb, "  %6d  %s: handled by %s, again by %s\n", counts[k], k.what, k.from, k.to)
	}
	return sb.String(), unexplained
}

// overlaps returns what was handled by two members at once in one queue, unless
// the first had lost the queue meanwhile.
func (b *board) overlaps() []string {
	var out []string
	for q, hs := range b.byQueue {
		slices.SortFunc(hs, func(x, y hand) int { return x.Begin.Compare(y.Begin) })
		latest := make(map[string]hand) // of each member, by end
		for _, h := range hs {
			for member, l := range latest {
				if member != h.member && l.End.After(h.Begin) && !b.lost(q, l, h) {
					out = append(out, fmt.Sprintf("%v: %s handled offset %d until %v, %s began offset %d at %v", q, member, l.Offset,
						l.End.Format(time.StampMicro), h.member, h.Offset, h.Begin.Format(time.StampMicro)))
				}
			}
			if l, ok := latest[h.member]; !ok || h.End.After(l.End) {
				latest[h.member] = h
			}
		}
	}
	return out
}

// lost tells whether the member of l was told that it had lost q after it began
// l, which is then all that overlaps h.
func (b *board) lost(q allocate.Queue, l, h hand) bool {
	return l.Begin.Before(h.Begin) && slices.ContainsFunc(b.losses[q], func(x hand) bool {
		return x.member == l.member && !x.Begin.Before(l.Begin)
	})
}
