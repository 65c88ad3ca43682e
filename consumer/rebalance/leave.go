package rebalance

import "github.com/tacitmq/tacit/session"

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
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.state == owned || h.state == draining {
				return false
			}
		}
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
