package demo

import (
	"cmp"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// waitLimit is from which wait on a message with an owner counts as a pause of
// its queue. Below it lies what storing, fetching and a busy machine cost.
const waitLimit = 100 * time.Millisecond

// change is a member that begins or ceases to own a queue, by its own word.
type change struct {
	at     time.Time
	member string
	owns   bool
	// orderly is an end that the member ordered itself: it handed out nothing of
	// the queue any more by then.
	orderly bool
}

// handOut is a message given to a handler.
type handOut struct {
	at   time.Time
	sent time.Time
}

// sent is a message on its way.
type sent struct {
	at     time.Time
	event  int // in which it was sent
	stored bool
	failed bool
	handed int
}

// tally is all that the demo observes, and what follows from it. Everything in
// it comes from outside: what the producer was told, and what members say of
// themselves. Reports of different members arrive in any order; each carries its
// time.
type tally struct {
	event    int // the present one
	messages map[uint64]*sent
	queues   map[allocate.Queue]*queueLog
	repeated map[int]int // hand-outs of a message beyond the first, by event
	strange  int         // hand-outs of messages that were never sent
}

// queueLog is what was observed of one queue.
type queueLog struct {
	changes []change
	handed  []handOut
}

func newTally() *tally {
	return &tally{messages: make(map[uint64]*sent), queues: make(map[allocate.Queue]*queueLog), repeated: make(map[int]int)}
}

func (t *tally) queue(q allocate.Queue) *queueLog {
	l := t.queues[q]
	if l == nil {
		l = new(queueLog)
		t.queues[q] = l
	}
	return l
}

// send notes a message that the producer is given.
func (t *tally) send(seq uint64, at time.Time) {
	t.messages[seq] = &sent{at: at, event: t.event}
}

// outcome notes what became of it.
func (t *tally) outcome(seq uint64, ok bool) {
	if m := t.messages[seq]; m != nil {
		m.stored, m.failed = ok, !ok
	}
}

// hand notes a message given to a handler.
func (t *tally) hand(q allocate.Queue, seq uint64, at time.Time) {
	m := t.messages[seq]
	if m == nil {
		t.strange++
		return
	}
	m.handed++
	if m.handed > 1 {
		t.repeated[t.event]++
		return
	}
	l := t.queue(q)
	l.handed = append(l.handed, handOut{at: at, sent: m.at})
}

// own notes members that begin or cease to own queues.
func (t *tally) own(member string, queues []allocate.Queue, at time.Time, owns, orderly bool) {
	for _, q := range queues {
		l := t.queue(q)
		l.changes = append(l.changes, change{at: at, member: member, owns: owns, orderly: orderly})
	}
}

// gone notes that a member ended at a moment without saying anything: it owns
// nothing from then on. All it said before must have been noted.
func (t *tally) gone(member string, at time.Time) {
	for q, l := range t.queues {
		if slices.Contains(l.holders(), member) {
			t.own(member, []allocate.Queue{q}, at, false, false)
		}
	}
}

// sorted returns the changes of a queue in the order of time.
func (l *queueLog) sorted() []change {
	slices.SortStableFunc(l.changes, func(a, b change) int { return a.at.Compare(b.at) })
	return l.changes
}

// holders returns who owns the queue now.
func (l *queueLog) holders() []string {
	var out []string
	for _, c := range l.sorted() {
		if c.owns {
			out = append(out, c.member)
		} else {
			out = slices.DeleteFunc(out, func(m string) bool { return m == c.member })
		}
	}
	return out
}

// owners returns the owner of each queue that has exactly one.
func (t *tally) owners() allocate.Owners {
	out := make(allocate.Owners, len(t.queues))
	for q, l := range t.queues {
		if h := l.holders(); len(h) == 1 {
			out[q] = h[0]
		}
	}
	return out
}

// firstOwners completes the owners before an event: the state before of a queue
// that nobody had is who got it first.
func (t *tally) firstOwners(before allocate.Owners) {
	for q, l := range t.queues {
		if before[q] != "" {
			continue
		}
		if i := slices.IndexFunc(l.sorted(), func(c change) bool { return c.owns }); i >= 0 {
			before[q] = l.changes[i].member
		}
	}
}

// lastChange is the time of the last change of owner at or after a moment, or
// the zero time.
func (t *tally) lastChange(from time.Time) (last time.Time) {
	for _, l := range t.queues {
		for _, c := range l.changes {
			if !c.at.Before(from) && c.at.After(last) {
				last = c.at
			}
		}
	}
	return last
}

// measure is what an event did to the queues.
type measure struct {
	moved    int // changes of owner; first owners do not count
	twice    int // times that a queue had two owners at once
	pauses   map[allocate.Queue]time.Duration
	maxPause time.Duration
}

// measure looks at the time from one moment to another.
//
// A queue pauses while nobody owns it: from the moment its owner says that it
// hands out no more (for one that was killed: from the kill) until the next one
// says that it does. It also pauses while a message waits for longer than
// waitLimit and nothing is handed out, whoever owns it; then from the moment the
// message was sent, or the one before it was handed out, if that was later. A
// queue's life begins with its first owner and first message.
func (t *tally) measure(from, to time.Time) measure {
	m := measure{pauses: make(map[allocate.Queue]time.Duration)}
	for q, l := range t.queues {
		moved, twice, gap := l.gaps(from, to)
		m.moved += moved
		m.twice += twice
		if wait := l.waits(from, to); wait >= waitLimit {
			gap = max(gap, wait)
		}
		if gap > 0 {
			m.pauses[q] = gap
			m.maxPause = max(m.maxPause, gap)
		}
	}
	return m
}

// gaps follows the owners of a queue and returns how often the owner changed
// from one moment to another, how often there were two, and the longest time
// without.
func (l *queueLog) gaps(from, to time.Time) (moved, twice int, longest time.Duration) {
	var holders []string
	var last string // the last owner
	var since time.Time
	note := func(end time.Time) {
		if last == "" || len(holders) > 0 || !end.After(from) || !since.Before(to) {
			return
		}
		start := since
		if start.Before(from) {
			start = from
		}
		longest = max(longest, end.Sub(start))
	}
	changes := l.sorted()
	for i, c := range changes {
		if c.at.After(to) {
			break
		}
		if !c.owns {
			holders = slices.DeleteFunc(holders, func(m string) bool { return m == c.member })
			since = c.at
			continue
		}
		note(c.at)
		in := !c.at.Before(from)
		if in && len(holders) > 0 && holders[0] != c.member && endsOrderly(changes[i+1:], holders[0]) {
			twice++
		}
		if in && last != "" && last != c.member {
			moved++
		}
		holders = append(holders, c.member)
		last = c.member
	}
	note(to)
	return moved, twice, longest
}

// endsOrderly tells whether the next thing that a member says is that it ceased
// by its own order: then it did own the queue until that moment. One that lost a
// queue may hear of it late.
func endsOrderly(changes []change, member string) bool {
	for _, c := range changes {
		if c.member == member {
			return !c.owns && c.orderly
		}
	}
	return false
}

// waits returns the longest time in which a message waited and nothing was
// handed out, among the messages handed out from one moment to another.
func (l *queueLog) waits(from, to time.Time) (longest time.Duration) {
	slices.SortStableFunc(l.handed, func(a, b handOut) int { return cmp.Or(a.at.Compare(b.at), a.sent.Compare(b.sent)) })
	for i := 1; i < len(l.handed); i++ {
		h := l.handed[i]
		if h.at.Before(from) || h.at.After(to) {
			continue
		}
		start := h.sent
		if before := l.handed[i-1].at; before.After(start) {
			start = before
		}
		longest = max(longest, h.at.Sub(start))
	}
	return longest
}

// outstanding counts the stored messages, sent in an event or before and before
// a moment, that no handler was given, and those of which it is not known yet
// whether they are stored.
func (t *tally) outstanding(event int, before time.Time) (missing, unknown int) {
	for _, m := range t.messages {
		switch {
		case m.event > event || m.handed > 0 || m.at.After(before):
		case m.stored:
			missing++
		case !m.failed:
			unknown++
		}
	}
	return missing, unknown
}

// totals counts messages: what was handed out was stored, whatever the producer
// was told.
func (t *tally) totals() (produced, consumed, repeats int) {
	for _, m := range t.messages {
		if m.stored || m.handed > 0 {
			produced++
		}
		if m.handed > 0 {
			consumed++
			repeats += m.handed - 1
		}
	}
	return produced, consumed, repeats
}

// lost counts the stored messages, sent in an event and before a moment, that no
// handler was given.
func (t *tally) lost(event int, before time.Time) (n int) {
	for _, m := range t.messages {
		if m.event == event && m.stored && m.handed == 0 && !m.at.After(before) {
			n++
		}
	}
	return n
}
