package rebalance

import (
	"github.com/tacitmq/tacit/session"
)

// received takes a frame of a broker, in whatever state.
func (e *Engine) received(name string, f session.ToMember) {
	p := e.peer(name)
	if p == nil || p.phase == connecting {
		return
	}
	if w, ok := f.(session.Welcome); ok {
		e.welcome(p, w)
		return
	}
	if r, ok := f.(session.Refused); ok {
		e.refused(p, r)
		return
	}
	if p.phase != welcomed {
		return
	}
	switch f := f.(type) {
	case session.HeartbeatAck:
		e.answered(p, f.Seq)
		for _, v := range f.Views {
			e.viewState(p, v)
		}
	case session.ViewAnswer:
		e.viewAnswer(p, f)
	case session.ViewReady:
		e.viewReady(p, f.Topic)
	case session.GroupChanged:
		e.groupChanged(p, f)
	case session.OwnersChanged:
		if t := e.viewed(p, f.Topic); t != nil && f.Owners != t.expected {
			e.quiet(t, f.Owners, "quiet")
		}
	case session.Nudge:
		if t := e.topic(f.Topic); t != nil && e.active(t) && !e.cfg.Broken.NoHealing {
			t.full = true // what we believe to own may not be what is known
			e.askAgain(t, p.name)
			e.fetch(t, "nudge")
		}
	case session.AskMembers:
		e.memberList(p, f)
	case session.Granted:
		e.granted(p, f)
	case session.LeaseWanted:
		e.leaseWanted(p, f)
	case session.Withdrawn:
		e.withdrawn(p, f)
	case session.LeaseLost:
		e.leaseLost(p, f)
	case session.Welcome, session.Refused: // above
	}
}
