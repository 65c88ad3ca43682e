package coordinated

import (
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
)

// answer takes an answer, unless nobody waits for it any more.
func (e *Engine) answer(ev rebalance.Answered) {
	for k := range e.reqs {
		r := e.reqs[k]
		if r.id != ev.ID || ev.ID == 0 {
			continue
		}
		e.reqs[k] = asked{}
		e.count(kind(k), ev.Answer)
		if kind(k) == leave {
			return // whatever it says, we are gone
		}
		if kind(k) != join && r.generation != e.generation {
			return // of another life
		}
		e.accept(ev.Answer)
		return
	}
}

// count has a member wait that is refused again and again: the first time it does at
// once what the code asks for.
func (e *Engine) count(k kind, answer coordination.Answer) {
	code, _ := answer.Outcome()
	switch {
	case code == coordination.OK:
		e.heardAt, e.failures = e.now, 0
		if k == join || k == syncing {
			e.refusals = 0
		}
	case (k == join || k == syncing || k == resume) && code != coordination.MemberIDRequired:
		if e.refusals++; e.refusals > 1 {
			e.failures = max(e.failures, e.refusals-2)
			e.backOff()
		}
	}
}

func (e *Engine) accept(answer coordination.Answer) {
	switch a := answer.(type) {
	case coordination.JoinAnswer:
		e.joined(a)
	case coordination.SyncAnswer:
		e.synced(a)
	case coordination.HeartbeatAnswer:
		e.outcome(a.Code, a.Text)
	case coordination.ConsumerHeartbeatAnswer:
		e.consumerAnswered(a)
	case coordination.ResumeAnswer:
		e.outcome(a.Code, a.Text)
		if a.Code == coordination.OK {
			e.nextBeat()
			e.report = e.cfg.ServerSide // what the coordinator before may not have answered
		}
	case coordination.LeaveAnswer:
	}
}

// outcome does what a code asks for.
func (e *Engine) outcome(code coordination.Code, text string) {
	switch code {
	case coordination.OK, coordination.MemberIDRequired:
	case coordination.LoadInProgress:
		if e.generation.IsZero() || e.reqs[resume].id != 0 {
			e.backOff()
			return
		}
		e.sendResume()
	case coordination.NotAvailable, coordination.NotCoordinator:
		e.lookAgain()
	case coordination.IllegalGeneration, coordination.UnknownMember, coordination.FencedEpoch:
		e.reset(code.String(), code)
	case coordination.RebalanceInProgress:
		e.want("the group is rebalancing")
	case coordination.UnreleasedInstance:
		e.backOff()
	case coordination.InconsistentProtocol, coordination.InvalidSessionTimeout, coordination.InvalidRequest, coordination.GroupMaxSize,
		coordination.FencedInstance, coordination.UnsupportedAssignor:
		e.fail(code, text)
	default: // of a later version
		e.backOff()
	}
}

// sendResume tells a coordinator that knows nothing of the group what the one before said.
func (e *Engine) sendResume() {
	r := coordination.Resume{
		Identity: e.who(), ClientID: e.cfg.ClientID, SessionTimeout: e.cfg.SessionTimeout, RebalanceTimeout: e.cfg.RebalanceTimeout,
		Assignor: e.assignor, Leader: e.leader, Assigned: e.has(), Consumer: e.cfg.ServerSide,
		Subscription: coordination.Subscription{Topics: e.joinedAs, Owned: e.has(), Generation: e.generation, Rack: e.cfg.Rack},
	}
	if !e.cfg.ServerSide {
		r.Assigned = e.claims
		for _, a := range e.cfg.Assignors {
			r.Assignors = append(r.Assignors, a.Name())
		}
	}
	e.ask(resume, requestTimeout, r)
}
