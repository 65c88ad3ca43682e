package coordinator

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate/assignor"
	"github.com/tacitmq/tacit/coordination"
)

// write says which records of m are to be written.
func (c *Coordinator) write(m *member, d dirt) {
	if m.dirty == 0 {
		m.g.changed = append(m.g.changed, m)
	}
	m.dirty |= d
	c.touch(m.g)
}

// bump raises the group epoch.
func (c *Coordinator) bump(g *group, reason string) {
	g.generation = c.next(g)
	g.lacking = ""
	g.head = true
	c.touch(g)
	c.happened(g, EpochBumped, nil, reason)
}

func (c *Coordinator) assignorNamed(name string) assignor.Assignor {
	for _, a := range c.cfg.Assignors {
		if a.Name() == name {
			return a
		}
	}
	return nil
}

func (c *Coordinator) fenceConsumer(id uint64, code coordination.Code, text string) {
	c.answer(id, coordination.ConsumerHeartbeatAnswer{Result: coordination.Result{Code: code, Text: text}})
}

// consumerHeartbeat is all that members of the consumer protocol send.
func (c *Coordinator) consumerHeartbeat(id uint64, r coordination.ConsumerHeartbeat) {
	if r.Topics != nil {
		r.Topics = sortedTopics(r.Topics)
	}
	g := c.groups[r.Group]
	switch {
	case r.Assignor != "" && c.assignorNamed(r.Assignor) == nil:
		c.fenceConsumer(id, coordination.UnsupportedAssignor, fmt.Sprintf("assignor %q", r.Assignor))
	case g != nil && !g.consumer && len(g.members)+len(g.pending) > 0:
		code := coordination.UnknownMember
		if r.Generation.IsZero() {
			code = coordination.InconsistentProtocol
		}
		c.fenceConsumer(id, code, "the group has members of the classic protocol")
	case r.Leaving != coordination.Stays:
		c.consumerLeaves(g, id, r)
	case r.Generation.IsZero():
		c.consumerJoin(g, id, r)
	default:
		c.consumerBeat(g, id, r)
	}
}

// consumerJoin is a heartbeat with epoch 0: a new member, or one that was fenced or
// started again.
func (c *Coordinator) consumerJoin(g *group, id uint64, r coordination.ConsumerHeartbeat) {
	if g == nil || !g.consumer {
		g = c.begin(r.Group, true, r.Exceed)
		g.begun = true
	}
	if r.Exceed.Compare(g.generation) >= 0 {
		g.mustExceed(r.Exceed)
	}
	m := g.members[r.MemberID]
	if m != nil && m.instance != r.Instance {
		c.fenceConsumer(id, coordination.FencedInstance, fmt.Sprintf("member %s has the instance id %q", m.id, m.instance))
		return
	}
	if s := g.static[r.Instance]; s != nil && s != m {
		if !s.away {
			c.fenceConsumer(id, coordination.UnreleasedInstance, "member "+s.id+" has the instance id")
			return
		}
		c.consumerReturns(s, r)
		m = s
	} else if m != nil {
		// It has lost everything. What it had may go to others.
		c.release(m)
		m.assigned, m.epoch, m.previous, m.away = nil, coordination.Generation{}, coordination.Generation{}, false
	}
	if m == nil {
		if c.cfg.MaxSize > 0 && len(g.members) >= c.cfg.MaxSize {
			c.fenceConsumer(id, coordination.GroupMaxSize, fmt.Sprintf("the group has %d members, the greatest number allowed", len(g.members)))
			return
		}
		mid := r.MemberID
		if mid == "" {
			mid = c.memberID(g, r.Instance, r.ClientID)
		}
		m = c.add(g, mid, r.Instance, r.ClientID, c.cfg.ConsumerSession, rebalanceTimeout(r.RebalanceTimeout, c.cfg.ConsumerSession))
		m.sub.Topics, m.sub.Rack, m.assignor = r.Topics, r.Rack, r.Assignor
		c.watch(m)
		c.write(m, dirtyMember|dirtyTarget|dirtyCurrent)
		c.happened(g, MemberJoined, m, "")
		c.bump(g, "member "+m.id+" joined")
	} else {
		c.describeSelf(m, r)
	}
	c.set(&m.session, c.now.Add(m.sessionTimeout))
	c.maybeTarget(g)
	c.reconcile(m, r.Owned, true)
	c.answerCurrent(m, id, true)
}

// consumerReturns gives a static member that was away a new id in place.
func (c *Coordinator) consumerReturns(m *member, r coordination.ConsumerHeartbeat) {
	mid := r.MemberID
	if mid == "" {
		mid = c.memberID(m.g, r.Instance, r.ClientID)
	}
	old := m.id
	c.deleted = append(c.deleted, m.keys()...)
	c.rename(m, mid)
	m.away = false
	c.write(m, dirtyMember|dirtyTarget|dirtyCurrent)
	c.happened(m.g, MemberReplace, m, "was "+old)
}

// describeSelf takes what a member says of itself. Only what concerns the target
// raises the group epoch.
func (c *Coordinator) describeSelf(m *member, r coordination.ConsumerHeartbeat) {
	why := ""
	if r.Topics != nil && !slices.Equal(r.Topics, m.sub.Topics) {
		m.sub.Topics = r.Topics
		c.watch(m)
		why = "member " + m.id + " changed its topics"
	}
	if r.Rack != "" && r.Rack != m.sub.Rack {
		m.sub.Rack = r.Rack
		why = cmp.Or(why, "member "+m.id+" changed its rack")
	}
	if r.Assignor != "" && r.Assignor != m.assignor {
		m.assignor = r.Assignor
		why = cmp.Or(why, "member "+m.id+" changed its assignor")
	}
	changed := why != ""
	if t := rebalanceTimeout(r.RebalanceTimeout, m.rebalanceTimeout); t != m.rebalanceTimeout {
		m.rebalanceTimeout, changed = t, true
	}
	if r.ClientID != "" && r.ClientID != m.clientID {
		m.clientID, changed = r.ClientID, true
	}
	if changed {
		c.write(m, dirtyMember)
	}
	if why != "" {
		c.bump(m.g, why)
	}
}

// consumerBeat is the heartbeat of a member.
func (c *Coordinator) consumerBeat(g *group, id uint64, r coordination.ConsumerHeartbeat) {
	if c.mayResume(g, r.MemberID, r.Generation) {
		c.fenceConsumer(id, coordination.LoadInProgress, "the epoch is not known here")
		return
	}
	if !g.consumer { // an empty classic group
		c.fenceConsumer(id, coordination.UnknownMember, "not a member")
		return
	}
	m, code, text := g.find(r.Identity)
	if m == nil {
		c.fenceConsumer(id, code, text)
		return
	}
	lost := false
	if r.Generation != m.epoch {
		lost = r.Generation == m.previous && r.HasOwned && subset(sortedQueues(r.Owned), m.assigned)
		if !lost {
			c.fenceConsumer(id, coordination.FencedEpoch, fmt.Sprintf("epoch %v, the member is at %v", r.Generation, m.epoch))
			return
		}
	}
	if m.away {
		c.fenceConsumer(id, coordination.UnknownMember, "the member left")
		return
	}
	if r.Exceed.Compare(g.generation) >= 0 {
		g.mustExceed(r.Exceed)
	}
	c.describeSelf(m, r)
	c.set(&m.session, c.now.Add(m.sessionTimeout))
	c.maybeTarget(g)
	changed := c.reconcile(m, r.Owned, r.HasOwned)
	full := r.HasOwned && r.Topics != nil && r.RebalanceTimeout > 0
	// An answer may be lost: whoever does not have what it may have is told again.
	behind := len(m.revoking) > 0 || r.HasOwned && !slices.Equal(sortedQueues(r.Owned), m.assigned)
	c.answerCurrent(m, id, changed || full || lost || behind)
}

// answerCurrent tells a member its epoch and, if it needs them, its queues.
func (c *Coordinator) answerCurrent(m *member, id uint64, queues bool) {
	a := coordination.ConsumerHeartbeatAnswer{MemberID: m.id, Generation: m.epoch, Interval: c.cfg.ConsumerInterval}
	if queues {
		a.Queues, a.HasQueues = m.assigned, true
	}
	c.answerLate(m.g, id, a)
}

// consumerLeaves takes the sender out, or lets a static one go for a while.
func (c *Coordinator) consumerLeaves(g *group, id uint64, r coordination.ConsumerHeartbeat) {
	if c.mayResume(g, r.MemberID, r.Generation) {
		c.fenceConsumer(id, coordination.LoadInProgress, "the epoch is not known here")
		return
	}
	if g == nil || !g.consumer {
		c.fenceConsumer(id, coordination.UnknownMember, "no such group")
		return
	}
	m, code, text := g.find(r.Identity)
	if m == nil {
		c.fenceConsumer(id, code, text)
		return
	}
	if r.Leaving == coordination.LeavesForAWhile && m.instance != "" {
		m.away = true
		for _, q := range m.revoking {
			c.free(m, q)
		}
		m.revoking = nil
		m.revoke.off()
		c.write(m, dirtyCurrent)
		c.happened(g, MemberLeft, m, "for a while")
	} else {
		c.consumerGone(g, m, MemberLeft, "")
	}
	c.answerLate(g, id, coordination.ConsumerHeartbeatAnswer{MemberID: m.id, Interval: c.cfg.ConsumerInterval})
}

// consumerLeave is a leave of the classic kind, as tools send it.
func (c *Coordinator) consumerLeave(g *group, who coordination.Identity, reason string) coordination.Result {
	if who.MemberID == "" {
		if m := g.static[who.Instance]; m != nil {
			who.MemberID = m.id
		}
	}
	m, code, text := g.find(who)
	if m != nil {
		c.consumerGone(g, m, MemberLeft, reason)
	}
	return coordination.Result{Code: code, Text: text}
}

func (c *Coordinator) consumerFailed(g *group, m *member, reason string) {
	c.consumerGone(g, m, MemberFailed, reason)
}

// consumerGone takes a member out of its group.
func (c *Coordinator) consumerGone(g *group, m *member, what What, reason string) {
	c.release(m)
	c.deleted = append(c.deleted, m.keys()...)
	c.remove(m, reason)
	c.happened(g, what, m, reason)
	c.bump(g, joinTexts(string(what), m.id, reason))
	if len(g.members) == 0 {
		c.happened(g, BecameEmpty, nil, "")
	}
	c.maybeTarget(g)
}
