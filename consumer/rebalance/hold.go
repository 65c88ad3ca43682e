package rebalance

import (
	"slices"
	"strings"
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
	refused bool // the broker refused the request: ask again at the next tick
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
	if p == nil || p.phase != welcomed || h.refused {
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
	h.want, h.wanted = false, false
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
			e.lose(t, h, "the broker refused the lease")
		}
	}
}

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
		case h == nil:
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

// withdrawn takes the answer to Withdraw, or the refusal of Acquire.
func (e *Engine) withdrawn(p *peer, f session.Withdrawn) {
	for _, q := range f.Queues {
		t := e.topic(q.Topic)
		if t == nil || q.Broker != p.name {
			continue
		}
		h := t.hold(q)
		switch {
		case h == nil:
		case h.state == asked && f.Reason == 0 && e.cfg.Broken.TwoRequests:
			h.state, h.want, t.freed, t.recount = free, false, true, true
		case h.state == asked && f.Reason != 0:
			h.state, h.refused = waiting, true
			t.recount = true
			if f.Reason == session.ReasonUnknownQueue {
				e.refresh = true
			}
		case h.state == withdrawing:
			h.refused = f.Reason != 0
			e.toFree(t, h)
		}
	}
}

// leaseLost takes a broker's word that leases are gone.
func (e *Engine) leaseLost(p *peer, f session.LeaseLost) {
	for _, l := range f.Leases {
		t := e.topic(l.Queue.Topic)
		if t == nil || l.Queue.Broker != p.name {
			continue
		}
		h := t.hold(l.Queue)
		if h == nil || !h.leased() || !l.Epoch.IsZero() && l.Epoch.Compare(h.epoch) < 0 {
			continue
		}
		if f.Reason == session.ReasonUnknownQueue {
			h.refused = true // until the routes say more
			e.refresh = true
		}
		e.lose(t, h, "the broker took the lease back: "+f.Reason.String())
	}
}

// leaseWanted hears that others wait. Most often the pass has said so too, or
// will; if it gives the queue to us, somebody's inputs are wrong.
func (e *Engine) leaseWanted(p *peer, f session.LeaseWanted) {
	for _, q := range f.Queues {
		t := e.topic(q.Topic)
		if t == nil || q.Broker != p.name {
			continue
		}
		h := t.hold(q)
		if h == nil || h.state != owned || !h.want {
			continue
		}
		if e.yields(t, f.ViewBroker) {
			e.unwant(t, h)
			continue
		}
		if e.cfg.Broken.NoHealing {
			continue
		}
		if !h.wanted {
			h.wanted, h.since = true, e.now
			e.watch(t)
		}
		e.fetch(t, "conflict")
	}
}

// yields reports whether the asker uses a view broker that ranks above ours and
// that we have not heard for a session timeout: its view is the better one.
func (e *Engine) yields(t *topic, other string) bool {
	at := slices.Index(t.rank, other)
	if at < 0 || t.using == other {
		return false
	}
	if mine := slices.Index(t.rank, t.using); mine >= 0 && mine < at {
		return false
	}
	p := e.peer(other)
	return p == nil || p.silent > 0
}

// sendLeases sends the leases' frames of a Step, one of each kind and broker.
func (e *Engine) sendLeases() {
	if len(e.releases)+len(e.withdrawals)+len(e.asks) == 0 {
		return
	}
	slices.SortStableFunc(e.releases, func(a, b session.Release) int { return a.Queue.Compare(b.Queue) })
	slices.SortFunc(e.withdrawals, allocate.Queue.Compare)
	slices.SortFunc(e.asks, allocate.Queue.Compare)
	asks := slices.DeleteFunc(slices.Compact(e.asks), func(q allocate.Queue) bool { return !e.in(q, asked) })
	withdrawals := slices.DeleteFunc(slices.Compact(e.withdrawals), func(q allocate.Queue) bool { return !e.in(q, withdrawing) })
	for _, p := range e.peers {
		if p.phase != welcomed {
			continue // the next hello says it
		}
		var back []session.Release
		for _, r := range e.releases {
			if r.Queue.Broker == p.name {
				back = append(back, r)
			}
		}
		if len(back) > 0 {
			e.send(p, session.Released{Leases: back})
		}
		if qs := at(withdrawals, p.name); len(qs) > 0 {
			e.send(p, session.Withdraw{Queues: qs})
		}
		e.sendAsks(p, at(asks, p.name))
	}
	e.releases, e.withdrawals, e.asks = e.releases[:0], e.withdrawals[:0], e.asks[:0]
}

func (e *Engine) in(q allocate.Queue, s state) bool {
	t := e.topic(q.Topic)
	if t == nil {
		return false
	}
	h := t.hold(q)
	return h != nil && h.state == s
}

// sendAsks sends one Acquire for all topics that use the same view broker.
func (e *Engine) sendAsks(p *peer, queues []allocate.Queue) {
	var brokers []string
	of := func(q allocate.Queue) string {
		if t := e.topic(q.Topic); t != nil && t.last != nil {
			return t.last.version.Broker
		}
		return ""
	}
	for _, q := range queues {
		if b := of(q); !slices.Contains(brokers, b) {
			brokers = append(brokers, b)
		}
	}
	slices.SortFunc(brokers, strings.Compare)
	for _, b := range brokers {
		var qs []allocate.Queue
		for _, q := range queues {
			if of(q) == b {
				qs = append(qs, q)
			}
		}
		e.send(p, session.Acquire{Queues: qs, ViewBroker: b})
	}
}

func at(queues []allocate.Queue, broker string) []allocate.Queue {
	var out []allocate.Queue
	for _, q := range queues {
		if q.Broker == broker {
			out = append(out, q)
		}
	}
	return out
}
