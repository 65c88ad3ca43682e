package rebalance

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// granted takes leases.
func (e *Engine) granted(p *peer, f session.Granted) {
	if !e.exclusive() {
		return
	}
	for _, g := range f.Grants {
		if g.Queue.Broker != p.name || g.Epoch.IsZero() {
			continue
		}
		t := e.topic(g.Queue.Topic)
		var h *hold
		if t != nil {
			h = t.hold(g.Queue)
		}
		switch {
		case h == nil, h.givenUp:
			e.giveBack(session.Release{Queue: g.Queue, Epoch: g.Epoch})
		case h.leased():
			if g.Epoch.Compare(h.epoch) > 0 {
				e.lost(h, "granted anew")
				e.take(t, h, g)
			}
		default:
			e.take(t, h, g)
		}
	}
}

// take makes a granted queue ours, or gives it back if it is not wanted now.
func (e *Engine) take(t *topic, h *hold, g session.Grant) {
	if h.want && e.active(t) {
		e.setOwned(t, h, g.Epoch)
		e.emit(Assign{g.Queue, g.Epoch, g.Offset, g.HasOffset})
		return
	}
	e.giveBack(session.Release{Queue: g.Queue, Epoch: g.Epoch})
	e.toFree(t, h)
}

// lost says that a lease's process queue is void, though the queue may stay.
func (e *Engine) lost(h *hold, cause string) {
	if h.state == owned || h.state == draining {
		e.emit(Lose{h.queue, h.epoch, cause})
	}
}

// regained compares what the hello named with what the broker gives back.
func (e *Engine) regained(p *peer, grants []session.Grant) {
	grants = slices.Clone(grants)
	slices.SortStableFunc(grants, func(a, b session.Grant) int { return a.Queue.Compare(b.Queue) })
	grants = slices.CompactFunc(grants, func(a, b session.Grant) bool { return a.Queue == b.Queue })
	used := make([]bool, len(grants))
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.queue.Broker != p.name || !h.reported() {
				continue
			}
			i, ok := slices.BinarySearchFunc(grants, h.queue, func(g session.Grant, q allocate.Queue) int { return g.Queue.Compare(q) })
			if ok = ok && !grants[i].Epoch.IsZero(); ok {
				used[i] = true
				e.regain(t, h, grants[i])
				continue
			}
			e.lose(t, h, "the broker gave the lease to nobody or another member")
		}
	}
	for i, g := range grants { // what we did not hold: a predecessor's
		if used[i] || g.Queue.Broker != p.name || g.Epoch.IsZero() {
			continue
		}
		t := e.topic(g.Queue.Topic)
		if t == nil || !e.active(t) || t.last != nil && t.hold(g.Queue) == nil {
			e.giveBack(session.Release{Queue: g.Queue, Epoch: g.Epoch})
			continue
		}
		h := t.newHold(g.Queue)
		h.want = h.want || t.last == nil
		e.take(t, h, g)
	}
}

// regain takes the broker's answer for a queue that we named or claimed.
func (e *Engine) regain(t *topic, h *hold, g session.Grant) {
	switch {
	case h.state == claimed:
		h.want = h.want || t.last == nil
		e.take(t, h, g)
	case g.Kept && g.Epoch == h.epoch:
		if h.state == drained {
			e.giveBack(session.Release{Queue: h.queue, Epoch: h.epoch, Offset: h.offset, HasOffset: h.hasOffset})
			e.toFree(t, h)
		}
	default:
		// What was begun under the old epoch must not go on under the new one.
		if !e.cfg.Broken.KeepStaleQueue || !h.want {
			e.lost(h, "granted anew after a reconnect")
		}
		e.take(t, h, g)
	}
}

// inherit keeps what a static member's predecessor reported as owned out of the
// others' hands until its brokers have said who holds it.
func (e *Engine) inherit(p *peer, list []session.Owned) {
	for _, o := range list {
		t := e.topic(o.Queue.Topic)
		if t == nil || !e.active(t) || !e.exclusive() || t.last != nil || t.hold(o.Queue) != nil {
			continue
		}
		if b := e.peer(o.Queue.Broker); b == p || b != nil && b.phase == welcomed {
			continue // it has said so already
		}
		h := t.newHold(o.Queue)
		h.state, h.epoch, h.want = claimed, o.Epoch, false
		t.touch(h)
		if t.claimUntil.IsZero() {
			t.claimUntil = e.now.Add(e.cfg.SessionTimeout)
		}
	}
}

func (e *Engine) checkClaims(t *topic) {
	if t.claimUntil.IsZero() || e.now.Before(t.claimUntil) {
		return
	}
	t.claimUntil = time.Time{}
	for _, h := range t.holds {
		if h.state == claimed {
			e.toFree(t, h)
		}
	}
}
