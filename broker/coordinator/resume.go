package coordinator

import (
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// resuming says that members of a generation made elsewhere may come back.
func (g *group) resuming() bool { return !g.window.at.IsZero() }

// mayResume says that a request which names a generation cannot be judged: the sender
// is to tell what it knows.
func (c *Coordinator) mayResume(g *group, memberID string, named coordination.Generation) bool {
	switch {
	case named.IsZero() || g != nil && g.takenBack(memberID):
		return false
	case g == nil || named.Compare(g.generation) > 0:
		return true
	case !g.resuming() || g.members[memberID] != nil:
		return false
	}
	return g.consumer || !g.begun || named == g.generation
}

// takenBack says that a member has told its generation, and that the group gathers
// for the next one: what the member names does not matter any more.
func (g *group) takenBack(memberID string) bool {
	m := g.members[memberID]
	return g.state == Gathering && m != nil && m.resumed
}

// endWindow takes nobody back any more.
func (c *Coordinator) endWindow(g *group) {
	g.window.off()
	if g.consumer {
		return
	}
	for _, m := range g.order {
		c.unwatch(m) // the topics of a classic group are its leader's concern
	}
}

// windowEnds goes on with those who came.
func (c *Coordinator) windowEnds(g *group) {
	lacks := c.lacks(g)
	c.endWindow(g)
	if !g.begun {
		return // it began here, nothing was taken over
	}
	c.happened(g, Resumed, nil, lacks)
	if g.consumer {
		c.retarget(g)
		return
	}
	switch {
	case g.state == Gathering:
		c.tryComplete(g)
	case g.state == Stable && lacks != "":
		c.prepare(g, lacks)
	}
}

// lacks says what shows that a member of a generation made elsewhere did not come.
func (c *Coordinator) lacks(g *group) string {
	if !g.consumer && g.members[g.leader] == nil {
		return "leader " + g.leader + " did not come back"
	}
	owned := map[allocate.Queue]bool{}
	topics := map[string]bool{}
	for _, m := range g.order {
		for _, q := range m.assigned {
			owned[q] = true
		}
		for _, t := range m.sub.Topics {
			topics[t] = true
		}
	}
	free, first := 0, allocate.Queue{}
	for t := range topics {
		for _, q := range c.topics[t] {
			if !owned[q] {
				if free == 0 || q.Compare(first) < 0 {
					first = q
				}
				free++
			}
		}
	}
	if free == 0 {
		return ""
	}
	return fmt.Sprintf("%d queues have no owner, such as %v: a member did not come back", free, first)
}

// missing says that a gathering is to wait for members that may come back.
func (c *Coordinator) missing(g *group) bool {
	if !g.resuming() || !g.begun {
		return false
	}
	for _, m := range g.order {
		for _, t := range m.watching {
			if _, known := c.topics[t]; !known {
				return true
			}
		}
	}
	return c.lacks(g) != ""
}

// resume takes back a member of a generation that this coordinator did not make, or
// does not remember.
func (c *Coordinator) resume(id uint64, r coordination.Resume) {
	var code coordination.Code
	var text string
	g := c.groups[r.Group]
	switch {
	case r.Generation.IsZero() || r.MemberID == "":
		code, text = coordination.InvalidRequest, "no generation or no member id"
	case g != nil && g.consumer != r.Consumer && len(g.members)+len(g.pending) > 0:
		code, text = coordination.UnknownMember, "the group has another protocol"
	default:
		r.Subscription.Topics = sortedTopics(r.Subscription.Topics)
		r.Assigned = sortedQueues(r.Assigned)
		r.RebalanceTimeout = rebalanceTimeout(r.RebalanceTimeout, c.cfg.ConsumerSession)
		if r.Consumer {
			code, text = c.resumeConsumer(g, r)
		} else {
			r.SessionTimeout = min(max(r.SessionTimeout, c.cfg.MinSessionTimeout), c.cfg.MaxSessionTimeout)
			code, text = c.resumeClassic(g, r)
		}
	}
	ans := coordination.ResumeAnswer{Result: coordination.Result{Code: code, Text: text}}
	if g = c.groups[r.Group]; g != nil {
		c.answerLate(g, id, ans)
		return
	}
	c.answer(id, ans)
}

// takeOver begins the group at a generation made elsewhere.
func (c *Coordinator) takeOver(old *group, r coordination.Resume) *group {
	if old != nil {
		c.forget(old, Resuming, "a later generation was made elsewhere")
	}
	g := newGroup(r.Group, r.Consumer)
	g.generation, g.begun = r.Generation, true
	c.groups[r.Group] = g
	if old != nil && !r.Consumer && !old.consumer {
		for _, a := range old.pending {
			a.g = g
		}
		g.pending = old.pending
	}
	if r.Consumer {
		g.targetEpoch = r.Generation
		c.set(&g.window, c.now.Add(c.cfg.ConsumerSession))
	} else {
		g.leader, g.assignor, g.state = r.Leader, r.Assignor, Stable
		c.set(&g.window, c.now.Add(r.SessionTimeout))
	}
	c.happened(g, Resuming, nil, "first heard of by member "+r.MemberID)
	return g
}

func (c *Coordinator) resumeClassic(g *group, r coordination.Resume) (coordination.Code, string) {
	later := 1
	if g != nil {
		later = r.Generation.Compare(g.generation)
	}
	gathering := g != nil && g.state == Gathering
	if !gathering && (later > 0 || g.state == Empty && !g.begun) {
		later = 1
		g = c.takeOver(g, r)
	}
	if m, code, text := g.find(r.Identity); m != nil || code == coordination.FencedInstance {
		switch {
		case m == nil:
			return code, text
		case later < 0 && (!gathering || g.begun):
			return coordination.IllegalGeneration, fmt.Sprintf("generation %v, the group is at %v", r.Generation, g.generation)
		}
		g.mustExceed(r.Generation)
		m.resumed = m.resumed || gathering
		if m.join == 0 && m.sync == 0 {
			c.set(&m.session, c.now.Add(m.sessionTimeout))
		}
		return g.resumed()
	}
	if g.members[r.MemberID] != nil || later <= 0 && (!g.resuming() || g.begun && later < 0) {
		return coordination.UnknownMember, fmt.Sprintf("the group is at %v, without this member", g.generation)
	}
	if len(r.Assignors) == 0 && r.Assignor != "" {
		r.Assignors = []string{r.Assignor}
	}
	if text := g.unsupported(coordination.Join{Identity: r.Identity, Assignors: r.Assignors}); text != "" || len(r.Assignors) == 0 {
		return coordination.InconsistentProtocol, text
	}
	m := c.add(g, r.MemberID, r.Instance, r.ClientID, r.SessionTimeout, r.RebalanceTimeout)
	m.sub, m.assigned, m.resumed = r.Subscription, r.Assigned, true
	m.setAssignors(unique(r.Assignors))
	c.set(&m.session, c.now.Add(m.sessionTimeout))
	g.mustExceed(r.Generation)
	if g.resuming() {
		c.watch(m)
	}
	if g.state == Stable {
		g.head = true
		c.touch(g)
	}
	return g.resumed()
}

// resumed is the outcome for a member that is taken back: while the group gathers it is
// to join, for no heartbeat of its generation can tell it so.
func (g *group) resumed() (coordination.Code, string) {
	if g.state == Gathering {
		return coordination.RebalanceInProgress, "the group is gathering"
	}
	return coordination.OK, ""
}

func (c *Coordinator) resumeConsumer(g *group, r coordination.Resume) (coordination.Code, string) {
	if g == nil || !g.consumer || r.Generation.Compare(g.generation) > 0 && !g.resuming() {
		g = c.takeOver(g, r)
	}
	m, code, text := g.find(r.Identity)
	switch {
	case code == coordination.FencedInstance:
		return code, text
	case m != nil && (m.epoch == r.Generation || m.previous == r.Generation):
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		return coordination.OK, ""
	case m != nil:
		return coordination.FencedEpoch, fmt.Sprintf("epoch %v, the member is at %v", r.Generation, m.epoch)
	case !g.resuming():
		return coordination.UnknownMember, "the group goes on without this member"
	case g.members[r.MemberID] != nil || r.Assignor != "" && c.assignorNamed(r.Assignor) == nil:
		return coordination.UnknownMember, "not the member or the assignor that is known here"
	}
	// Of two that say they have a queue one is behind.
	for _, q := range r.Assigned {
		if o := g.owners[q]; o != nil && o.epoch.Compare(r.Generation) >= 0 {
			return coordination.FencedEpoch, fmt.Sprintf("%v is of member %s in epoch %v", q, o.id, o.epoch)
		}
	}
	for _, q := range r.Assigned {
		if o := g.owners[q]; o != nil {
			c.consumerFailed(g, o, fmt.Sprintf("%v is of member %s in a later epoch", q, r.MemberID))
		}
	}
	m = c.add(g, r.MemberID, r.Instance, r.ClientID, c.cfg.ConsumerSession, r.RebalanceTimeout)
	m.sub.Topics, m.sub.Rack, m.assignor = r.Subscription.Topics, r.Subscription.Rack, r.Assignor
	m.assigned, m.target, m.epoch, m.previous = r.Assigned, slices.Clone(r.Assigned), r.Generation, r.Generation
	for _, q := range m.assigned {
		g.owners[q] = m
	}
	c.watch(m)
	c.set(&m.session, c.now.Add(m.sessionTimeout))
	g.generation = maxGeneration(g.generation, r.Generation)
	g.targetEpoch = maxGeneration(g.targetEpoch, r.Generation)
	g.head = true
	c.write(m, dirtyMember|dirtyTarget|dirtyCurrent)
	return coordination.OK, ""
}
