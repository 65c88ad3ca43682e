package rebalance

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// state is what a member has to do with a queue; see the package comment.
type state uint8

const (
	free state = iota
	waiting
	asked
	withdrawing
	owned
	draining
	drained
	claimed
)

func (s state) String() string {
	switch s {
	case free:
		return "free"
	case waiting:
		return "waiting"
	case asked:
		return "asked"
	case withdrawing:
		return "withdrawing"
	case owned:
		return "owned"
	case draining:
		return "draining"
	case drained:
		return "drained"
	case claimed:
		return "claimed"
	}
	return "unknown"
}

// hold is a queue that is not free.
type hold struct {
	queue   allocate.Queue
	state   state
	want    bool // the last pass gives it to us
	refused bool // the broker refused the request: ask again when it nudges, or at the next tick
	// givenUp exists with Broken.TwoRequests only: the answer to an older request
	// was taken for that to the present one.
	givenUp bool
	wanted  bool // owned, and another member waits for it although it is ours
	epoch   session.Epoch
	since   time.Time // asked, or wanted, since

	offset    int64 // of a drained queue
	hasOffset bool
}

// leased reports whether the lease is ours as far as we know.
func (h *hold) leased() bool { return h.state == owned || h.state == draining || h.state == drained }

// reported reports whether the view broker is told that we own the queue.
func (h *hold) reported() bool { return h.leased() || h.state == claimed }

func (t *topic) hold(q allocate.Queue) *hold {
	i, ok := t.holdAt(q)
	if !ok || t.holds[i].state == free {
		return nil
	}
	return t.holds[i]
}

func (t *topic) holdAt(q allocate.Queue) (int, bool) {
	return slices.BinarySearchFunc(t.holds, q, func(h *hold, q allocate.Queue) int { return h.queue.Compare(q) })
}

// newHold returns the free hold of a queue.
func (t *topic) newHold(q allocate.Queue) *hold {
	i, ok := t.holdAt(q)
	if !ok {
		t.holds = slices.Insert(t.holds, i, &hold{queue: q})
	}
	return t.holds[i]
}

// touch has the queue's ownership reported at the end of the Step.
func (t *topic) touch(h *hold) { t.touched = append(t.touched, h.queue) }

// setOwned makes the queue ours.
func (e *Engine) setOwned(t *topic, h *hold, epoch session.Epoch) {
	h.state, h.epoch, h.wanted, h.refused = owned, epoch, false, false
	t.touch(h)
	t.recount = true
}

// toFree ends what we had to do with a queue, and begins anew if it is ours.
func (e *Engine) toFree(t *topic, h *hold) {
	if h.reported() {
		t.touch(h)
	}
	h.state, h.epoch, h.wanted, h.hasOffset = free, session.Epoch{}, false, false
	t.freed, t.recount = true, true
	if h.want && e.active(t) {
		e.obtain(t, h)
	}
}

// obtain begins to get a free or waiting queue that the pass gives to us.
func (e *Engine) obtain(t *topic, h *hold) {
	if !e.exclusive() {
		e.setOwned(t, h, session.Epoch{})
		e.emit(Assign{Queue: h.queue})
		return
	}
	p := e.peer(h.queue.Broker)
	if p == nil || p.phase != welcomed || h.refused || h.givenUp {
		h.state = waiting
		return
	}
	h.state, h.since = asked, e.now
	e.asks = append(e.asks, h.queue)
	e.watch(t)
}

// unwant lets go of a queue that the pass does not give to us, and reports
// whether it is given up by that.
func (e *Engine) unwant(t *topic, h *hold) (given bool) {
	h.want, h.wanted, h.givenUp = false, false, false
	switch h.state {
	case waiting, claimed:
		h.refused = false
		e.toFree(t, h)
	case asked:
		h.state = withdrawing
		e.withdrawals = append(e.withdrawals, h.queue)
		t.recount = true
	case owned:
		h.state = draining
		e.emit(Revoke{h.queue, h.epoch})
		return true
	case free, withdrawing, draining, drained:
	}
	return false
}

func (e *Engine) letGo(t *topic) {
	for _, h := range t.holds {
		e.unwant(t, h)
	}
}

// lose ends a lease that is not ours any more.
func (e *Engine) lose(t *topic, h *hold, cause string) {
	if h.state == owned || h.state == draining {
		e.emit(Lose{h.queue, h.epoch, cause})
	}
	e.toFree(t, h)
}

func (e *Engine) loseAll(p *peer, cause string) {
	e.wide = true
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.queue.Broker == p.name && h.leased() {
				e.lose(t, h, cause)
			}
		}
	}
}

// giveBack releases a lease.
func (e *Engine) giveBack(r session.Release) { e.releases = append(e.releases, r) }

func (e *Engine) drained(ev Drained) {
	t := e.topic(ev.Queue.Topic)
	if t == nil {
		return
	}
	h := t.hold(ev.Queue)
	if h == nil || h.state != draining || h.epoch != ev.Epoch {
		return
	}
	if !e.exclusive() {
		e.toFree(t, h)
		return
	}
	p := e.peer(h.queue.Broker)
	if p == nil || p.phase != welcomed {
		// Kept until the broker can be told where to go on from.
		h.state, h.offset, h.hasOffset = drained, ev.Offset, ev.HasOffset
		return
	}
	e.giveBack(session.Release{Queue: h.queue, Epoch: h.epoch, Offset: ev.Offset, HasOffset: ev.HasOffset})
	e.toFree(t, h)
}

func (e *Engine) leaseRefused(ev Refused) {
	if t := e.topic(ev.Queue.Topic); t != nil {
		h := t.hold(ev.Queue)
		if h != nil && (h.state == owned || h.state == draining) && h.epoch == ev.Epoch {
			// The refusal may be older than the welcome that gave the lease back. What
			// was begun under its epoch is dropped, so it must not go on: given back, it
			// is granted under another one.
			if e.exclusive() {
				e.giveBack(session.Release{Queue: h.queue, Epoch: h.epoch})
			}
			e.lose(t, h, "the broker refused the lease")
		}
	}
}
