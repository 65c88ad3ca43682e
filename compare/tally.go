package compare

import "github.com/tacitmq/tacit/allocate"

// counts are what a tally has counted since the beginning.
type counts struct {
	repeated   int // hand-outs of a message beyond the first
	disordered int // first hand-outs after that of a later message of the queue
	overrun    int // handlers that still ran when somebody else came to own the queue
	lost       int // never handed out, though a later message of the queue was
}

// tally follows messages from the producer to handlers.
type tally struct {
	n counts
	// sideBySide: handlers of one member say themselves when they begin, in any order.
	// Only what another member handed out after a later message is out of order then.
	sideBySide bool
	queues     map[allocate.Queue]*queueTally
}

// queueTally is what became of the messages of one queue.
type queueTally struct {
	stored int64          // messages so far
	handed map[int64]bool // at least once
	last   int64          // highest offset handed out, -1 before the first
	lastBy string         // who did
	busy   map[inHand]bool
}

// inHand is a message with a handler.
type inHand struct {
	member string
	offset int64
}

func newTally() *tally { return &tally{queues: make(map[allocate.Queue]*queueTally)} }

func (t *tally) counts() counts {
	n := t.n
	for _, qt := range t.queues {
		n.lost += int(qt.last+1) - len(qt.handed)
	}
	return n
}

func (t *tally) queue(q allocate.Queue) *queueTally {
	qt := t.queues[q]
	if qt == nil {
		qt = &queueTally{handed: make(map[int64]bool), last: -1, busy: make(map[inHand]bool)}
		t.queues[q] = qt
	}
	return qt
}

// stored notes a message that is on a queue.
func (t *tally) stored(q allocate.Queue, offset int64) {
	qt := t.queue(q)
	qt.stored = max(qt.stored, offset+1)
}

func (t *tally) handedOut(member string, q allocate.Queue, offset int64) {
	qt := t.queue(q)
	switch {
	case qt.handed[offset]:
		t.n.repeated++
	case offset < qt.last && (!t.sideBySide || member != qt.lastBy):
		t.n.disordered++
	}
	qt.handed[offset] = true
	if offset > qt.last {
		qt.last, qt.lastBy = offset, member
	}
	qt.busy[inHand{member, offset}] = true
}

func (t *tally) handled(member string, q allocate.Queue, offset int64) {
	delete(t.queue(q).busy, inHand{member, offset})
}

// owned notes that a member owns a queue: handlers of others run past their ownership.
func (t *tally) owned(q allocate.Queue, member string) {
	qt := t.queue(q)
	for h := range qt.busy {
		if h.member != member {
			t.n.overrun++
			delete(qt.busy, h)
		}
	}
}

// died notes that a member's handlers have ended with it.
func (t *tally) died(member string) {
	for _, qt := range t.queues {
		for h := range qt.busy {
			if h.member == member {
				delete(qt.busy, h)
			}
		}
	}
}

// lag is the number of messages that are stored and were never handed out.
func (t *tally) lag() (n int) {
	for _, qt := range t.queues {
		n += int(qt.stored) - len(qt.handed)
	}
	return n
}
