package coordinated

import (
	"fmt"
	"maps"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
)

// mayJoin joins when there is a reason to and nothing must be given up before: an eager
// member gives everything up, a cooperative one what it does not subscribe to any more.
func (e *Engine) mayJoin() {
	if e.reqs[join].id != 0 || e.reqs[syncing].id != 0 || e.reqs[resume].id != 0 {
		return
	}
	if e.rejoin == "" && !slices.Equal(e.topics, e.joinedAs) {
		e.want("the subscription changed")
	}
	if e.rejoin == "" {
		return
	}
	for _, h := range e.holds {
		if _, subscribed := slices.BinarySearch(e.topics, h.queue.Topic); !e.cooperative || !subscribed {
			e.revoke(h)
		}
	}
	if e.draining() {
		return
	}
	e.sendJoin()
}

func (e *Engine) sendJoin() {
	sub := coordination.Subscription{Topics: e.topics, Owned: e.claims, Generation: e.claimed, Rack: e.cfg.Rack}
	if e.cooperative {
		sub.Owned, sub.Generation = e.has(), e.generation
	}
	names := make([]string, len(e.cfg.Assignors))
	for i, a := range e.cfg.Assignors {
		names[i] = a.Name()
	}
	e.ask(join, max(requestTimeout, e.cfg.RebalanceTimeout+joinGrace), coordination.Join{
		Identity: e.who(), ClientID: e.cfg.ClientID, SessionTimeout: e.cfg.SessionTimeout, RebalanceTimeout: e.cfg.RebalanceTimeout,
		Assignors: names, Subscription: sub, Reason: e.rejoin, Exceed: e.exceed,
	})
	e.rejoin, e.joinedAs = "", e.topics
}

func (e *Engine) joined(a coordination.JoinAnswer) {
	switch a.Code {
	case coordination.OK:
	case coordination.MemberIDRequired:
		e.memberID = a.MemberID
		e.want("the coordinator gave the member id")
		return
	default:
		e.want("the join was refused")
		e.outcome(a.Code, a.Text)
		return
	}
	e.memberID, e.generation, e.assignor, e.leader = a.MemberID, a.Generation, a.Assignor, a.Leader
	e.leads = a.Leader == a.MemberID
	e.exceed = coordination.Generation{}
	e.nextBeat()
	var plan []coordination.Assignment
	if e.leads {
		e.watch(a.Members)
		e.planned = e.known(a.Members)
		if !a.SkipAssignment {
			var err error
			if plan, err = e.plan(a); err != nil {
				e.fail(coordination.InconsistentProtocol, err.Error())
				return
			}
		}
	}
	e.ask(syncing, max(requestTimeout, e.cfg.RebalanceTimeout+joinGrace), coordination.Sync{Identity: e.who(), Assignments: plan})
}

// plan is the leader's.
func (e *Engine) plan(a coordination.JoinAnswer) ([]coordination.Assignment, error) {
	i := slices.IndexFunc(e.cfg.Assignors, func(x Assignor) bool { return x.Name() == a.Assignor })
	if i < 0 {
		return nil, fmt.Errorf("assignor %q was chosen, which this member does not have", a.Assignor)
	}
	given, err := e.cfg.Assignors[i].Assign(a.Members, e.planned)
	if err != nil {
		return nil, fmt.Errorf("assign by %s: %w", a.Assignor, err)
	}
	plan := make([]coordination.Assignment, 0, len(given))
	for _, id := range slices.Sorted(maps.Keys(given)) {
		plan = append(plan, coordination.Assignment{MemberID: id, Queues: given[id]})
	}
	return plan, nil
}

// known returns the queues of the members' topics as far as they are known.
func (e *Engine) known(members []coordination.Joined) map[string][]allocate.Queue {
	out := make(map[string][]allocate.Queue)
	for i := range members {
		for _, t := range members[i].Subscription.Topics {
			if qs, ok := e.routes[t]; ok {
				out[t] = qs
			}
		}
	}
	return out
}

// watch asks for the routes of topics that others subscribe to: the leader must know them.
func (e *Engine) watch(members []coordination.Joined) {
	var topics []string
	for i := range members {
		for _, t := range members[i].Subscription.Topics {
			if _, mine := slices.BinarySearch(e.topics, t); !mine {
				topics = append(topics, t)
			}
		}
	}
	if topics = sorted(topics); !slices.Equal(topics, e.watched) {
		e.watched = topics
		e.emit(rebalance.WatchTopics{Topics: topics})
	}
}

// learn takes routes. A leader whose plan was made from others joins again.
func (e *Engine) learn(ev rebalance.Routes) {
	for _, r := range ev.Topics {
		qs := slices.Clone(r.Queues)
		slices.SortFunc(qs, allocate.Queue.Compare)
		if qs = slices.Compact(qs); slices.Equal(qs, e.routes[r.Name]) {
			if len(qs) == 0 {
				delete(e.routes, r.Name)
			}
			continue
		}
		e.routes[r.Name] = qs
		if len(qs) == 0 {
			delete(e.routes, r.Name)
		}
		_, mine := slices.BinarySearch(e.topics, r.Name)
		_, others := slices.BinarySearch(e.watched, r.Name)
		if !e.cfg.ServerSide && e.leads && !e.generation.IsZero() && (mine || others) && !slices.Equal(qs, e.planned[r.Name]) {
			e.want(fmt.Sprintf("the queues of topic %s changed", r.Name))
		}
	}
}

func (e *Engine) synced(a coordination.SyncAnswer) {
	if a.Code != coordination.OK {
		e.want("the sync was refused")
		e.outcome(a.Code, a.Text)
		return
	}
	queues := slices.Clone(a.Queues)
	slices.SortFunc(queues, allocate.Queue.Compare)
	e.claims, e.claimed = queues, e.generation
	if e.take(queues, "generation") && e.cooperative {
		e.want("queues are to be given up")
	}
}

// beatClassic sends the heartbeat that is due. A parked join needs none.
func (e *Engine) beatClassic() {
	if e.generation.IsZero() || e.reqs[join].id != 0 || e.reqs[syncing].id != 0 || e.reqs[beat].id != 0 || e.reqs[resume].id != 0 || e.now.Before(e.beatAt) {
		return
	}
	e.nextBeat()
	e.ask(beat, requestTimeout, coordination.Heartbeat{Identity: e.who()})
}

// sendLeave asks to be taken out of the group at once. A static member does not: it comes back.
func (e *Engine) sendLeave(reason string) {
	switch {
	case e.coordinator == "" || e.memberID == "":
	case e.cfg.ServerSide:
		how := coordination.Leaves
		if e.cfg.Instance != "" {
			how = coordination.LeavesForAWhile
		}
		e.ask(leave, retryMax, coordination.ConsumerHeartbeat{Identity: e.who(), ClientID: e.cfg.ClientID, Leaving: how})
	case e.cfg.Instance == "":
		e.ask(leave, retryMax, coordination.Leave{Identity: e.who(), Reason: reason})
	}
}
