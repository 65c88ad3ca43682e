package rebalance

import (
	"slices"
	"strings"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

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
			h.state, h.givenUp, t.recount = waiting, true, true
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

// askAgain asks a broker for what it has refused, since it says that queues of the
// topic wait there: it stores them again.
func (e *Engine) askAgain(t *topic, broker string) {
	for _, h := range t.holds {
		if h.refused && h.queue.Broker == broker {
			h.refused = false
			if h.state == waiting && h.want {
				e.obtain(t, h)
			}
		}
	}
}

// leaseLost takes a broker's word that leases are gone. Each is given back, held
// or not: the broker grants the queue to nobody before it has heard that we stopped.
func (e *Engine) leaseLost(p *peer, f session.LeaseLost) {
	for _, l := range f.Leases {
		if l.Queue.Broker != p.name {
			continue
		}
		epoch := l.Epoch
		if t := e.topic(l.Queue.Topic); t != nil {
			h := t.hold(l.Queue)
			if h != nil && h.leased() && (l.Epoch.IsZero() || l.Epoch.Compare(h.epoch) >= 0) {
				if l.Epoch.IsZero() {
					epoch = h.epoch
				}
				e.takenBack(t, h, f.Reason)
			}
		}
		if e.exclusive() && !epoch.IsZero() {
			e.giveBack(session.Release{Queue: l.Queue, Epoch: epoch})
		}
	}
}

func (e *Engine) takenBack(t *topic, h *hold, reason session.Reason) {
	if reason == session.ReasonUnknownQueue {
		h.refused = true // until the routes say more
		e.refresh = true
	}
	cause := "the broker took the lease back"
	if reason != 0 {
		cause += ": " + reason.String()
	}
	e.lose(t, h, cause)
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
	withdrawals := slices.DeleteFunc(slices.Compact(e.withdrawals), func(q allocate.Queue) bool { return !e.in(q, withdrawing) && !e.cfg.Broken.TwoRequests })
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
	t := e.find(q.Topic)
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
		if t := e.find(q.Topic); t != nil && t.last != nil {
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
