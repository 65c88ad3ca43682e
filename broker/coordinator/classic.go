package coordinator

import (
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/coordination"
)

func joinRefusal(code coordination.Code, text string) coordination.JoinAnswer {
	return coordination.JoinAnswer{Result: coordination.Result{Code: code, Text: text}}
}

// join takes a member into the next generation.
func (c *Coordinator) join(id uint64, r coordination.Join) {
	r.RebalanceTimeout = rebalanceTimeout(r.RebalanceTimeout, r.SessionTimeout)
	r.Subscription.Topics = sortedTopics(r.Subscription.Topics)
	r.Assignors = unique(r.Assignors)
	g := c.groups[r.Group]
	switch {
	case r.SessionTimeout < c.cfg.MinSessionTimeout || r.SessionTimeout > c.cfg.MaxSessionTimeout:
		c.answer(id, joinRefusal(coordination.InvalidSessionTimeout,
			fmt.Sprintf("session timeout %v, allowed are %v to %v", r.SessionTimeout, c.cfg.MinSessionTimeout, c.cfg.MaxSessionTimeout)))
		return
	case len(r.Assignors) == 0:
		c.answer(id, joinRefusal(coordination.InconsistentProtocol, "no assignor"))
		return
	case g != nil && g.consumer && len(g.members) > 0:
		c.answer(id, joinRefusal(coordination.InconsistentProtocol, "the group has members of the consumer protocol"))
		return
	}
	if r.MemberID != "" && c.mayResume(g, r.MemberID, r.Subscription.Generation) {
		c.answer(id, joinRefusal(coordination.LoadInProgress, "the group is not known here"))
		return
	}
	if r.MemberID != "" && (g == nil || g.consumer) {
		c.answer(id, joinRefusal(coordination.UnknownMember, "no such group"))
		return
	}
	if g == nil || g.consumer {
		fresh := g == nil
		g = c.begin(r.Group, false, r.Exceed)
		if fresh { // it may have been coordinated elsewhere
			c.set(&g.window, c.now.Add(r.SessionTimeout))
		}
	}
	if text := g.unsupported(r); text != "" {
		c.answer(id, joinRefusal(coordination.InconsistentProtocol, text))
		return
	}
	if r.Exceed.Compare(g.generation) >= 0 {
		g.mustExceed(r.Exceed)
	}
	if r.MemberID != "" {
		c.joinKnown(g, id, r)
		return
	}
	if old := g.static[r.Instance]; old != nil {
		c.replace(old, id, r)
		return
	}
	if c.cfg.MaxSize > 0 && len(g.members)+len(g.pending) >= c.cfg.MaxSize {
		c.answer(id, joinRefusal(coordination.GroupMaxSize, fmt.Sprintf("the group has %d members, the greatest number allowed", c.cfg.MaxSize)))
		return
	}
	mid := c.memberID(g, r.Instance, r.ClientID)
	if r.Instance != "" {
		c.joinNew(g, mid, id, r)
		return
	}
	a := &alarm{kind: alarmPending, g: g, p: mid}
	g.pending[mid] = a
	c.set(a, c.now.Add(r.SessionTimeout))
	ans := joinRefusal(coordination.MemberIDRequired, "")
	ans.MemberID = mid
	c.answer(id, ans)
}

// unsupported says why the others and the joining member have no assignor in common.
func (g *group) unsupported(r coordination.Join) string {
	self := g.members[r.MemberID]
	if s := g.static[r.Instance]; s != nil {
		self = s
	}
	others := len(g.members)
	if self != nil {
		others--
	}
	for _, a := range r.Assignors {
		n := g.supports[a]
		if self != nil && slices.Contains(self.assignors, a) {
			n--
		}
		if n == others {
			return ""
		}
	}
	return fmt.Sprintf("not all of the %d other members have one of %q", others, r.Assignors)
}

// joinKnown is the join of a member that has an id.
func (c *Coordinator) joinKnown(g *group, id uint64, r coordination.Join) {
	if g.pending[r.MemberID] != nil {
		if r.Instance != "" {
			c.answer(id, joinRefusal(coordination.InvalidRequest, "the id was given to a dynamic member"))
			return
		}
		c.joinNew(g, r.MemberID, id, r)
		return
	}
	m, code, text := g.find(r.Identity)
	if code != coordination.OK {
		c.answer(id, joinRefusal(code, text))
		return
	}
	changed := !slices.Equal(m.assignors, r.Assignors) || !m.sub.Equal(r.Subscription)
	why := ""
	switch g.state {
	case Completing:
		if changed {
			why = "member " + m.id + " joined again with a changed subscription"
		}
	case Stable:
		switch {
		case g.leader == m.id:
			why = "leader " + m.id + " joined again"
		case changed:
			why = "member " + m.id + " joined again with a changed subscription"
		}
	default: // gathering
		c.update(m, r)
		c.park(m, id)
		c.tryComplete(g)
		return
	}
	if why == "" {
		c.refuseSync(m, coordination.RebalanceInProgress, "the member joined again")
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		c.answer(id, g.joinAnswer(m, g.members[g.leader] == m))
		return
	}
	c.update(m, r)
	c.prepare(g, joinTexts(why, r.Reason))
	c.park(m, id)
	c.tryComplete(g)
}

// find returns the sender, or why it is refused.
func (g *group) find(who coordination.Identity) (*member, coordination.Code, string) {
	if m := g.static[who.Instance]; m != nil && m.id != who.MemberID {
		return nil, coordination.FencedInstance, fmt.Sprintf("instance %s is member %s now", who.Instance, m.id)
	}
	m := g.members[who.MemberID]
	if m == nil || who.Instance != "" && m.instance != who.Instance {
		return nil, coordination.UnknownMember, "not a member"
	}
	return m, coordination.OK, ""
}

// joinNew adds a member.
func (c *Coordinator) joinNew(g *group, mid string, id uint64, r coordination.Join) {
	m := c.add(g, mid, r.Instance, r.ClientID, r.SessionTimeout, r.RebalanceTimeout)
	m.sub, m.fresh = r.Subscription, true
	m.setAssignors(r.Assignors)
	c.happened(g, MemberJoined, m, r.Reason)
	g.newcomer = true
	if g.state != Gathering {
		c.prepare(g, joinTexts("member "+mid+" joined", r.Reason))
	}
	c.park(m, id)
	c.tryComplete(g)
}

func (c *Coordinator) update(m *member, r coordination.Join) {
	m.sub = r.Subscription
	m.setAssignors(r.Assignors)
	m.sessionTimeout, m.rebalanceTimeout, m.clientID = r.SessionTimeout, r.RebalanceTimeout, r.ClientID
	if m.watching != nil {
		c.watch(m)
	}
}

// park keeps a join until the gathering ends.
func (c *Coordinator) park(m *member, id uint64) {
	c.refuseParked(m, coordination.RebalanceInProgress, "the member joined again")
	m.join = id
	m.g.joined++
	c.parked[id] = m
	m.session.off()
	if m.fresh {
		c.set(&m.session, c.now.Add(c.cfg.PendingJoinTimeout))
	}
}

// classicSilent is a session timeout. A parked member waits for us, not we for it.
func (c *Coordinator) classicSilent(m *member) {
	switch {
	case m.join != 0 && m.fresh:
		c.classicGone(m, MemberFailed, "its first join waited for "+c.cfg.PendingJoinTimeout.String())
	case m.join != 0 || m.sync != 0:
	default:
		c.classicGone(m, MemberFailed, "no heartbeat for "+m.sessionTimeout.String())
	}
}

// classicGone takes a member out of its group.
func (c *Coordinator) classicGone(m *member, what What, reason string) {
	g := m.g
	c.remove(m, string(what)+": "+reason)
	if g.leader == m.id {
		g.leader = ""
	}
	c.happened(g, what, m, reason)
	switch g.state {
	case Stable, Completing:
		c.prepare(g, fmt.Sprintf("%s: %s: %s", what, m.id, reason))
		c.tryComplete(g)
	case Gathering:
		c.tryComplete(g)
	default:
	}
}

func (c *Coordinator) pendingExpired(g *group, mid string) {
	delete(g.pending, mid)
	if g.state == Gathering {
		c.tryComplete(g)
	}
}

// heartbeat of the classic protocol.
func (c *Coordinator) heartbeat(id uint64, r coordination.Heartbeat) {
	m, code, text := c.classicSender(r.Identity)
	if m != nil {
		if m.join == 0 {
			c.set(&m.session, c.now.Add(m.sessionTimeout))
		}
		if m.g.state == Gathering {
			code, text = coordination.RebalanceInProgress, ""
		}
	}
	c.answer(id, coordination.HeartbeatAnswer{Result: coordination.Result{Code: code, Text: text}})
}

// classicSender returns the member that sent a request of the present generation, or
// what the request is answered.
func (c *Coordinator) classicSender(who coordination.Identity) (*member, coordination.Code, string) {
	g := c.groups[who.Group]
	if c.mayResume(g, who.MemberID, who.Generation) {
		return nil, coordination.LoadInProgress, "the generation is not known here"
	}
	if g == nil || g.consumer {
		return nil, coordination.UnknownMember, "no such group"
	}
	m, code, text := g.find(who)
	if m != nil && who.Generation != g.generation && !g.takenBack(m.id) {
		return nil, coordination.IllegalGeneration, fmt.Sprintf("generation %v, the group is at %v", who.Generation, g.generation)
	}
	return m, code, text
}

// leave takes members out at once.
func (c *Coordinator) leave(id uint64, r coordination.Leave) {
	g := c.groups[r.Group]
	if c.mayResume(g, r.MemberID, r.Generation) {
		c.answer(id, refusal(r, coordination.LoadInProgress, "the generation is not known here"))
		return
	}
	named := r.Members
	if len(named) == 0 {
		named = []coordination.Identity{r.Identity}
	}
	var ans coordination.LeaveAnswer
	for _, who := range named {
		res := coordination.Result{Code: coordination.UnknownMember, Text: "no such group"}
		if g != nil && g.consumer {
			res = c.consumerLeave(g, who, r.Reason)
		} else if g != nil {
			res = c.classicLeave(g, who, r.Reason)
		}
		ans.Members = append(ans.Members, res)
	}
	if len(r.Members) == 0 {
		ans.Result = ans.Members[0]
	}
	c.answer(id, ans)
}

func (c *Coordinator) classicLeave(g *group, who coordination.Identity, reason string) coordination.Result {
	if a := g.pending[who.MemberID]; a != nil {
		a.off()
		c.pendingExpired(g, who.MemberID)
		return coordination.Result{}
	}
	if who.MemberID == "" {
		if m := g.static[who.Instance]; m != nil {
			who.MemberID = m.id
		}
	}
	m, code, text := g.find(who)
	if m == nil {
		return coordination.Result{Code: code, Text: text}
	}
	c.classicGone(m, MemberLeft, reason)
	return coordination.Result{}
}
