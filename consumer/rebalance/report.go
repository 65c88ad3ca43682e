package rebalance

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// sendReport tells the view broker what has changed in what we own.
func (e *Engine) sendReport(t *topic) {
	touched := t.touched
	t.touched = nil
	p := e.peer(t.using)
	if p == nil || p.phase != welcomed || !e.active(t) {
		return
	}
	busy := slices.ContainsFunc(t.holds, func(h *hold) bool { return h.state == draining || h.state == drained })
	if !t.full && !t.dirty && len(touched) == 0 && busy == t.draining {
		return
	}
	r := session.Report{Topic: t.name, Full: t.full, Expected: t.expected, Draining: busy}
	if t.full {
		for _, h := range t.holds {
			if h.reported() {
				r.Owned = append(r.Owned, session.Owned{Queue: h.queue, Epoch: h.epoch})
			}
		}
	} else {
		slices.SortFunc(touched, allocate.Queue.Compare)
		for _, q := range slices.Compact(touched) {
			if h := t.hold(q); h != nil && h.reported() {
				r.Owned = append(r.Owned, session.Owned{Queue: q, Epoch: h.epoch})
			} else {
				r.NotOwned = append(r.NotOwned, q)
			}
		}
	}
	t.full, t.dirty, t.draining = false, false, busy
	e.send(p, r)
}
