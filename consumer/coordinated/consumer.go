package coordinated

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// beatServer sends the one request of the consumer protocol: at once when the member
// joins, or has given up or got what it was told to; else at the server's interval.
func (e *Engine) beatServer() {
	if e.reqs[beat].id != 0 || e.reqs[resume].id != 0 {
		return
	}
	first := e.generation.IsZero()
	changed := !first && !slices.Equal(e.topics, e.joinedAs)
	due := e.report && !e.draining()
	if !first && !changed && !due && e.now.Before(e.beatAt) {
		return
	}
	req := coordination.ConsumerHeartbeat{Identity: e.who(), ClientID: e.cfg.ClientID}
	if first || changed {
		if req.Topics = e.topics; req.Topics == nil {
			req.Topics = []string{}
		}
		e.joinedAs = e.topics
	}
	if first {
		req.Rack, req.RebalanceTimeout, req.Assignor, req.Exceed = e.cfg.Rack, e.cfg.RebalanceTimeout, e.cfg.ServerAssignor, e.exceed
	}
	if first || due || !e.answered {
		req.Owned, req.HasOwned = e.has(), true
		e.report = false
	}
	e.nextBeat()
	e.ask(beat, requestTimeout, req)
}

func (e *Engine) consumerAnswered(a coordination.ConsumerHeartbeatAnswer) {
	if a.Code != coordination.OK {
		e.outcome(a.Code, a.Text)
		return
	}
	e.memberID, e.generation, e.rejoin = a.MemberID, a.Generation, ""
	e.exceed = coordination.Generation{}
	e.answered = true
	if a.Interval > 0 && a.Interval != e.interval {
		e.interval = a.Interval
		e.nextBeat()
	}
	if !a.HasQueues {
		return
	}
	queues := slices.Clone(a.Queues)
	slices.SortFunc(queues, allocate.Queue.Compare)
	e.assignor, e.target = e.cfg.ServerAssignor, queues
	before := e.has()
	e.take(queues, "assignment")
	if !slices.Equal(before, e.has()) {
		e.report = true
	}
}
