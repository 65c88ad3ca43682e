package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// prepare begins a gathering. Its end is tried by whoever has parked a join.
func (c *Coordinator) prepare(g *group, reason string) {
	for _, m := range g.sorted() {
		if m.sync != 0 {
			c.refuseSync(m, coordination.RebalanceInProgress, reason)
			c.set(&m.session, c.now.Add(m.sessionTimeout))
		}
	}
	g.storing = 0
	clear(g.unsynced)
	g.syncs.off()
	g.initial = g.state == Empty && c.cfg.InitialDelay > 0
	g.newcomer = false
	g.state = Gathering
	end := c.now.Add(g.longest())
	g.gatherEnd = end
	if first := c.now.Add(c.cfg.InitialDelay); g.initial && first.Before(end) {
		end = first
	}
	c.set(&g.gather, end)
	c.happened(g, Preparing, nil, reason)
}

// longest is the greatest rebalance timeout.
func (g *group) longest() (d time.Duration) {
	for _, m := range g.order {
		d = max(d, m.rebalanceTimeout)
	}
	return d
}

// tryComplete ends the gathering if everybody is here.
func (c *Coordinator) tryComplete(g *group) {
	if g.state != Gathering || g.initial || g.joined < len(g.members) || len(g.pending) > 0 || c.missing(g) {
		return
	}
	c.complete(g)
}

// gatherDue is the end of the initial delay, or of the longest rebalance timeout.
func (c *Coordinator) gatherDue(g *group) {
	if g.state != Gathering {
		return
	}
	if g.initial && g.newcomer && c.now.Before(g.gatherEnd) {
		g.newcomer = false
		at := c.now.Add(c.cfg.InitialDelay)
		if g.gatherEnd.Before(at) {
			at = g.gatherEnd
		}
		c.set(&g.gather, at)
		return
	}
	if g.initial && c.now.Before(g.gatherEnd) && g.joined > 0 && g.joined < len(g.members) && g.resuming() {
		// Members of an earlier life of the group came back and will join.
		g.initial = false
		c.set(&g.gather, g.gatherEnd)
		c.tryComplete(g)
		return
	}
	c.complete(g)
}

// complete ends the gathering with those who are here.
func (c *Coordinator) complete(g *group) {
	for _, m := range g.sorted() {
		if m.join == 0 && m.instance == "" {
			c.remove(m, "it did not join again in time")
			c.happened(g, MemberFailed, m, "it did not join again in time")
		}
	}
	if g.joined == 0 && len(g.members) > 0 {
		c.set(&g.gather, c.now.Add(g.longest()))
		return
	}
	g.initial = false
	g.gather.off()
	c.endWindow(g)
	g.generation = c.next(g)
	g.begun = true
	if len(g.members) == 0 {
		g.state, g.leader, g.assignor = Empty, "", ""
		g.head = true
		c.touch(g)
		c.happened(g, BecameEmpty, nil, "")
		return
	}
	if l := g.members[g.leader]; l == nil || l.join == 0 {
		g.leader = ""
		for _, m := range g.order {
			if m.join != 0 {
				g.leader = m.id
				break
			}
		}
	}
	g.assignor = g.vote()
	g.state = Completing
	c.set(&g.syncs, c.now.Add(g.longest()))
	for _, m := range g.sorted() {
		g.unsynced[m] = true
		m.assigned, m.fresh, m.resumed = nil, false, false
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		if m.join == 0 {
			continue
		}
		delete(c.parked, m.join)
		c.answer(m.join, g.joinAnswer(m, m.id == g.leader))
		m.join = 0
	}
	g.joined = 0
	c.happened(g, Gathered, g.members[g.leader], "leader "+g.leader+", assignor "+g.assignor)
}

// joinAnswer is that of the present generation.
func (g *group) joinAnswer(m *member, leads bool) coordination.JoinAnswer {
	a := coordination.JoinAnswer{MemberID: m.id, Generation: g.generation, Assignor: g.assignor, Leader: g.leader}
	if leads {
		for _, o := range g.sorted() {
			a.Members = append(a.Members, coordination.Joined{MemberID: o.id, Instance: o.instance, Subscription: o.sub})
		}
	}
	return a
}

// vote chooses the assignor: of those that all have, each member votes for its first.
// A tie is won by the first name.
func (g *group) vote() string {
	votes := map[string]int{}
	for _, m := range g.order {
		for _, a := range m.assignors {
			if g.supports[a] == len(g.order) {
				votes[a]++
				break
			}
		}
	}
	best := ""
	for a, n := range votes {
		if best == "" || cmp.Or(cmp.Compare(n, votes[best]), cmp.Compare(best, a)) > 0 {
			best = a
		}
	}
	return best
}

// sync gives a member its part.
func (c *Coordinator) sync(id uint64, r coordination.Sync) {
	m, code, text := c.classicSender(r.Identity)
	if m == nil {
		c.answer(id, refusal(r, code, text))
		return
	}
	g := m.g
	switch g.state {
	case Completing:
		c.refuseSync(m, coordination.RebalanceInProgress, "the member sent another sync")
		m.sync = id
		c.parked[id] = m
		m.session.off()
		delete(g.unsynced, m)
		if m.id == g.leader && g.storing == 0 {
			c.plan(g, r.Assignments)
		}
	case Stable:
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		if m.resumed {
			c.prepare(g, "member "+m.id+" was not told its part of a generation made elsewhere")
			c.answer(id, refusal(r, coordination.RebalanceInProgress, ""))
			return
		}
		delete(g.unsynced, m)
		// What is in memory may be on its way to the disk: a static member's new id.
		c.answerLate(g, id, coordination.SyncAnswer{Queues: m.assigned})
	default: // gathering
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		c.answer(id, refusal(r, coordination.RebalanceInProgress, ""))
	}
}

// plan takes the leader's assignment and stores it.
func (c *Coordinator) plan(g *group, parts []coordination.Assignment) {
	for _, p := range parts {
		if m := g.members[p.MemberID]; m != nil {
			m.assigned = sortedQueues(p.Queues)
		}
	}
	g.head = true
	c.touch(g)
	g.storing = c.persistID + 1 // what flush will give it
}

func sortedQueues(qs []allocate.Queue) []allocate.Queue {
	s := slices.Clone(qs)
	slices.SortFunc(s, allocate.Queue.Compare)
	return slices.Compact(s)
}

// stabilize hands the stored plan out.
func (c *Coordinator) stabilize(g *group) {
	g.storing = 0
	g.state = Stable
	c.happened(g, Stabilized, nil, "")
	for _, m := range g.sorted() {
		if m.sync == 0 {
			continue
		}
		delete(c.parked, m.sync)
		c.answer(m.sync, coordination.SyncAnswer{Queues: m.assigned})
		m.sync = 0
		c.set(&m.session, c.now.Add(m.sessionTimeout))
	}
}

// syncDue removes the members that did not sync in time.
func (c *Coordinator) syncDue(g *group) {
	if g.state != Completing && g.state != Stable || len(g.unsynced) == 0 {
		return
	}
	var gone []*member
	for _, m := range g.sorted() {
		if g.unsynced[m] {
			gone = append(gone, m)
		}
	}
	for _, m := range gone {
		c.remove(m, "it did not sync in time")
		if g.leader == m.id {
			g.leader = ""
		}
		c.happened(g, MemberFailed, m, "it did not sync in time")
	}
	c.prepare(g, fmt.Sprintf("%d members did not sync in time", len(gone)))
	c.tryComplete(g)
}

// replace gives a static member that was started again the place of its old life.
func (c *Coordinator) replace(m *member, id uint64, r coordination.Join) {
	g, old := m.g, m.id
	c.refuseParked(m, coordination.FencedInstance, "a newer process has the instance id")
	mid := c.memberID(g, r.Instance, r.ClientID)
	c.rename(m, mid)
	if g.leader == old {
		g.leader = mid
	}
	before := g.assignor
	c.update(m, r)
	c.happened(g, MemberReplace, m, joinTexts("was "+old, r.Reason))
	if g.state == Stable && g.vote() == before {
		delete(g.unsynced, m)
		g.head = true
		c.touch(g)
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		a := g.joinAnswer(m, m.id == g.leader)
		a.SkipAssignment = m.id == g.leader
		c.answerLate(g, id, a)
		return
	}
	if g.state != Gathering {
		why := "static member " + mid + " came back before the assignment was there"
		if g.state == Stable {
			why = "static member " + mid + " came back and another assignor has the vote"
		}
		c.prepare(g, joinTexts(why, r.Reason))
	}
	c.park(m, id)
	c.tryComplete(g)
}

// rename gives m a new id in place. Timers know the member, not its id.
func (c *Coordinator) rename(m *member, id string) {
	delete(m.g.members, m.id)
	m.id = id
	m.g.members[id] = m
}
