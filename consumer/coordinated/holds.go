package coordinated

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
)

func (e *Engine) hold(q allocate.Queue) *hold {
	i, ok := e.holdAt(q)
	if !ok {
		return nil
	}
	return e.holds[i]
}

func (e *Engine) holdAt(q allocate.Queue) (int, bool) {
	return slices.BinarySearchFunc(e.holds, q, func(h *hold, q allocate.Queue) int { return h.queue.Compare(q) })
}

// has returns the queues that are not being given up, sorted.
func (e *Engine) has() []allocate.Queue {
	var out []allocate.Queue
	for _, h := range e.holds {
		if !h.draining {
			out = append(out, h.queue)
		}
	}
	return out
}

func (e *Engine) draining() bool {
	return slices.ContainsFunc(e.holds, func(h *hold) bool { return h.draining })
}

// revoke begins to give a queue up.
func (e *Engine) revoke(h *hold) {
	if !h.draining {
		h.draining = true
		e.emit(rebalance.Revoke{Queue: h.queue, Epoch: h.epoch})
	}
}

func (e *Engine) letGo() {
	for _, h := range e.holds {
		e.revoke(h)
	}
}

func (e *Engine) drained(ev rebalance.Drained) {
	if i, ok := e.holdAt(ev.Queue); ok && e.holds[i].draining && e.holds[i].epoch == ev.Epoch {
		e.holds = slices.Delete(e.holds, i, i+1)
		e.report = true
		if _, again := slices.BinarySearchFunc(e.target, ev.Queue, allocate.Queue.Compare); again && !e.leaving && !e.stalled {
			e.take(e.target, "assignment") // it was given back while it drained
		}
	}
}

// loseAll drops everything: it may be others' by now.
func (e *Engine) loseAll(cause string) {
	for _, h := range e.holds {
		e.emit(rebalance.Lose{Queue: h.queue, Epoch: h.epoch, Cause: cause})
	}
	e.holds = nil
}

// take applies an assignment under the present generation, and reports whether
// something must be given up first.
func (e *Engine) take(queues []allocate.Queue, trigger string) (revoked bool) {
	p := rebalance.Pass{Trigger: trigger, Strategy: e.assignor, Mine: slices.Clone(queues)}
	for _, h := range e.holds {
		if _, keep := slices.BinarySearchFunc(queues, h.queue, allocate.Queue.Compare); !keep && !h.draining {
			p.Given = append(p.Given, h.queue)
			e.revoke(h)
			revoked = true
		}
	}
	for _, q := range queues {
		if e.hold(q) != nil {
			continue // kept; or still draining, and then it is joined for again
		}
		i, _ := e.holdAt(q)
		e.holds = slices.Insert(e.holds, i, &hold{queue: q, epoch: e.generation})
		p.Gained = append(p.Gained, q)
		e.emit(rebalance.Assign{Queue: q, Epoch: e.generation})
	}
	e.passed(p)
	return revoked
}

// passed reports the rebalance, topic by topic, as passes are.
func (e *Engine) passed(all rebalance.Pass) {
	of := func(topic string, queues []allocate.Queue) (out []allocate.Queue) {
		for _, q := range queues {
			if q.Topic == topic {
				out = append(out, q)
			}
		}
		return out
	}
	topics := slices.Clone(e.topics)
	for _, q := range all.Given {
		topics = append(topics, q.Topic)
	}
	for _, t := range sorted(topics) {
		e.emit(rebalance.Passed{Pass: rebalance.Pass{
			Topic: t, Trigger: all.Trigger, Strategy: all.Strategy, Queues: len(e.routes[t]),
			Mine: of(t, all.Mine), Gained: of(t, all.Gained), Given: of(t, all.Given),
		}})
	}
}

// refused hears that somebody claimed a queue of ours under a greater generation: ours
// is over, whatever our coordinator says.
func (e *Engine) refused(ev rebalance.Refused) {
	i, ok := e.holdAt(ev.Queue)
	if !ok || e.holds[i].epoch != ev.Epoch {
		return
	}
	if e.exceed.Compare(ev.Seen) < 0 {
		e.exceed = ev.Seen
	}
	if e.cfg.ServerSide {
		e.reset("a broker refused the epoch", coordination.FencedEpoch)
		return
	}
	e.emit(rebalance.Lose{Queue: ev.Queue, Epoch: ev.Epoch, Cause: "a broker refused the generation"})
	e.holds = slices.Delete(e.holds, i, i+1)
	e.want("a broker refused the generation")
}

// reset begins anew after the coordinator, or a broker, knows the member no more.
func (e *Engine) reset(reason string, code coordination.Code) {
	e.loseAll(reason)
	e.generation = coordination.Generation{}
	if code == coordination.UnknownMember && !e.cfg.ServerSide {
		e.memberID = ""
	}
	e.reqs, e.target = [kinds]asked{}, nil
	e.answered, e.report, e.leads = false, false, false
	e.rejoin = ""
	e.want(reason)
}

// stall is Kafka's poll timeout: a dynamic member leaves, a static one falls silent;
// both have lost their queues.
func (e *Engine) stall() {
	if e.stalled || e.leaving {
		return
	}
	e.sendLeave("handlers make no progress")
	e.reset("handlers make no progress", coordination.UnknownMember)
	e.stalled = true
}

// depart ends the member once nothing is dispatched any more.
func (e *Engine) depart() {
	if len(e.holds) > 0 || e.left && e.reqs[leave].id != 0 {
		return
	}
	if !e.left {
		e.left = true
		e.sendLeave("the member stops")
		if e.reqs[leave].id != 0 {
			return
		}
	}
	e.emit(rebalance.Left{})
	e.ended = true
}
