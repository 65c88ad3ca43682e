package compare

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Span is a time for which a member owned a queue: from when it may hand out new
// messages to when it hands out no more. Times count from the beginning of the run.
type Span struct {
	Queue  allocate.Queue
	Member string
	From   time.Duration
	// To is the end of the run for a span that lasted.
	To time.Duration
}

// ledger keeps who owned what when, by the word of whoever does: members, or for one
// that is dead whoever killed it. What it is told must be in the order of time for
// each queue.
type ledger struct {
	spans []Span
	open  map[allocate.Queue][]int // indexes of spans that last, the oldest first

	queues   map[allocate.Queue]bool // that are to have an owner
	single   int                     // of these, with exactly one
	changes  int                     // of ownership so far
	members  []string
	balanced bool
}

func newLedger() *ledger { return &ledger{open: make(map[allocate.Queue][]int)} }

// take notes that a member owns a queue. One that it owns already stays.
func (l *ledger) take(q allocate.Queue, member string, at time.Duration) {
	if l.find(q, member) >= 0 {
		return
	}
	l.count(q, func() { l.open[q] = append(l.open[q], len(l.spans)) })
	l.spans = append(l.spans, Span{Queue: q, Member: member, From: at, To: -1})
}

// free notes that a member owns a queue no more.
func (l *ledger) free(q allocate.Queue, member string, at time.Duration) {
	i := l.find(q, member)
	if i < 0 {
		return
	}
	l.spans[l.open[q][i]].To = at
	l.count(q, func() { l.open[q] = slices.Delete(l.open[q], i, i+1) })
}

// count keeps single right while the owners of q change.
func (l *ledger) count(q allocate.Queue, change func()) {
	l.changes++
	before := len(l.open[q])
	change()
	if !l.queues[q] {
		return
	}
	if before == 1 {
		l.single--
	}
	if len(l.open[q]) == 1 {
		l.single++
	}
}

func (l *ledger) find(q allocate.Queue, member string) int {
	return slices.IndexFunc(l.open[q], func(i int) bool { return l.spans[i].Member == member })
}

// die notes that a member owns nothing, whatever it said.
func (l *ledger) die(member string, at time.Duration) {
	for q := range l.open {
		l.free(q, member, at)
	}
}

// owners returns who owns the queues now; of two owners the later one.
func (l *ledger) owners() allocate.Owners {
	out := make(allocate.Owners, len(l.open))
	for q, open := range l.open {
		if len(open) > 0 {
			out[q] = l.spans[open[len(open)-1]].Member
		}
	}
	return out
}

// expect says which queues are to have an owner from now on, and which members a share
// of them, even if balanced.
func (l *ledger) expect(queues []allocate.Queue, members []string, balanced bool) {
	l.queues, l.members, l.balanced, l.single = make(map[allocate.Queue]bool, len(queues)), members, balanced, 0
	for _, q := range queues {
		l.queues[q] = true
		if len(l.open[q]) == 1 {
			l.single++
		}
	}
}

// unsettled says why the group is not settled: every queue has exactly one owner, all
// owners are members, and the shares of members differ by one at most.
func (l *ledger) unsettled() string {
	if l.single < len(l.queues) {
		return fmt.Sprintf("%d of %d queues have exactly one owner", l.single, len(l.queues))
	}
	count := make(map[string]int, len(l.members))
	for _, m := range l.members {
		count[m] = 0
	}
	for q := range l.queues {
		m := l.spans[l.open[q][0]].Member
		if _, ok := count[m]; !ok {
			return fmt.Sprintf("%v is owned by %s, which is no member", q, m)
		}
		count[m]++
	}
	low, high := len(l.queues), 0
	for _, n := range count {
		low, high = min(low, n), max(high, n)
	}
	if l.balanced && high-low > 1 {
		return fmt.Sprintf("shares are %d to %d queues", low, high)
	}
	return ""
}

// Ownership is what happened to the queues from one moment to another.
type Ownership struct {
	// Settle is the time from the event to the last change of owner.
	Settle time.Duration
	// Moved counts changes of owner. Who owns a queue first, or gets back what it gave
	// up, is no change. Minimum is the least number there could have been.
	Moved, Minimum int
	// Gaps: the time without owner, of all queues together and of the worst; how many
	// queues had one; and how many of those then went on with the owner they had.
	GapTotal, GapLongest time.Duration
	GapQueues, Stopped   int
	// Twice: the time with more than one owner, of all queues together, and how many
	// queues had that.
	TwiceTotal  time.Duration
	TwiceQueues int
}

// measure looks at [from, to). The queues are those that are to have an owner, each
// from the moment it exists; one that has never had an owner has its gap from there on.
func (l *ledger) measure(from, to time.Duration, queues map[allocate.Queue]time.Duration) Ownership {
	var out Ownership
	by := make(map[allocate.Queue][]Span, len(queues))
	for _, s := range l.spans {
		if s.To < 0 {
			s.To = to
		}
		if s.From < to { // what ended before tells who had it last
			by[s.Queue] = append(by[s.Queue], s)
		}
		for _, at := range [2]time.Duration{s.From, s.To} {
			if at >= from && at < to {
				out.Settle = max(out.Settle, at-from)
			}
		}
	}
	for q, born := range queues {
		spans := by[q]
		slices.SortStableFunc(spans, func(a, b Span) int { return cmp.Compare(a.From, b.From) })
		spans = slices.DeleteFunc(spans, func(s Span) bool { return s.To <= born }) // an earlier life of the queue
		gap, twice, moved, stopped := walk(spans, max(from, born), to)
		out.Moved += moved
		out.Stopped += stopped
		if gap > 0 {
			out.GapQueues++
			out.GapTotal += gap
			out.GapLongest = max(out.GapLongest, gap)
		}
		if twice > 0 {
			out.TwiceQueues++
			out.TwiceTotal += twice
		}
	}
	return out
}

// walk goes through the spans of one queue, which are in order and begin before to.
func walk(spans []Span, from, to time.Duration) (gap, twice time.Duration, moved, stopped int) {
	last, end := "", from // the latest owner, and until when the queue has an owner
	paused := false
	for _, s := range spans {
		if s.From > end {
			gap += s.From - end
			paused = true
		}
		if s.From >= from {
			switch {
			case last != "" && s.Member != last:
				moved++
			case last != "" && paused:
				stopped = 1
			}
		}
		twice += max(0, min(end, s.To)-max(s.From, from))
		if s.To > from {
			paused = false
		}
		last, end = s.Member, max(end, s.To)
	}
	return gap + max(0, to-end), twice, moved, stopped
}
