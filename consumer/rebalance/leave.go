package rebalance

import (
	"slices"

	"github.com/tacitmq/tacit/session"
)

// leave begins a graceful leave: out of all views, drain, release, goodbye.
func (e *Engine) leave() {
	if e.leaving {
		return
	}
	e.leaving = true
	for _, p := range e.peers {
		if p.phase == connecting {
			continue // its hello will say so
		}
		if e.cfg.Broken.GoodbyeFirst {
			e.send(p, session.Goodbye{})
			continue
		}
		e.send(p, session.Leaving{})
	}
	for _, t := range e.topics {
		e.letGo(t)
		t.forget()
	}
}

// leaveDone ends the leave once nothing is dispatched any more. What a broker
// cannot be told now it learns from the end of the session.
func (e *Engine) leaveDone() bool {
	dispatched := func(t *topic) bool {
		return slices.ContainsFunc(t.holds, func(h *hold) bool { return h.state == owned || h.state == draining })
	}
	if e.last != nil && dispatched(e.last) { // with many topics each look at all costs
		return false
	}
	if i := slices.IndexFunc(e.topics, dispatched); i >= 0 {
		e.last = e.topics[i]
		return false
	}
	for _, p := range e.peers {
		if p.phase == welcomed && !e.cfg.Broken.GoodbyeFirst {
			e.send(p, session.Goodbye{})
		}
		e.emit(Disconnect{p.name})
	}
	e.emit(Left{})
	e.ended = true
	return true
}
