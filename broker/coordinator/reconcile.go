package coordinator

import (
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/allocate/assignor"
)

// loaded goes on with a group of the consumer protocol from its records.
func (c *Coordinator) loaded(g *group) {
	// Records that were lost may leave a member that is gone, or behind.
	ms := g.sorted()
	slices.SortStableFunc(ms, func(a, b *member) int { return b.epoch.Compare(a.epoch) })
	for _, m := range ms {
		had := slices.Concat(m.assigned, m.revoking)
		if i := slices.IndexFunc(had, func(q allocate.Queue) bool { return g.owners[q] != nil }); i >= 0 {
			c.consumerFailed(g, m, fmt.Sprintf("%v is stored for member %s too, in a later epoch", had[i], g.owners[had[i]].id))
			continue
		}
		for _, q := range had {
			g.owners[q] = m
		}
		if len(m.revoking) > 0 {
			c.set(&m.revoke, c.now.Add(m.rebalanceTimeout))
		}
		m.held = true // its next heartbeat looks again
	}
	c.maybeTarget(g)
}

// free gives up m's hold of q.
func (c *Coordinator) free(m *member, q allocate.Queue) {
	if m.g.owners[q] == m {
		delete(m.g.owners, q)
	}
}

// release gives up everything m has.
func (c *Coordinator) release(m *member) {
	for _, qs := range [][]allocate.Queue{m.assigned, m.revoking} {
		for _, q := range qs {
			c.free(m, q)
		}
	}
	m.assigned, m.revoking = nil, nil
	m.revoke.off()
	c.write(m, dirtyCurrent)
}

// topicsChanged raises the epoch of a group that subscribes to one of the topics.
func (c *Coordinator) topicsChanged(g *group, changed map[string]bool) {
	if g.targetEpoch != g.generation || g.resuming() {
		c.maybeTarget(g) // it is behind anyway, or looks when all came back
		return
	}
	for _, m := range g.order {
		for _, t := range m.watching {
			if !changed[t] {
				continue
			}
			// The first news of a topic after a start need not be news to the group.
			if c.covers(g, t) {
				continue
			}
			c.bump(g, "the queues of topic "+t+" changed")
			c.maybeTarget(g)
			return
		}
	}
}

// covers says that the target has exactly the queues of the topic.
func (c *Coordinator) covers(g *group, topic string) bool {
	var qs []allocate.Queue
	for _, m := range g.order {
		for _, q := range m.target {
			if q.Topic == topic {
				qs = append(qs, q)
			}
		}
	}
	slices.SortFunc(qs, allocate.Queue.Compare)
	return slices.Equal(qs, c.topics[topic])
}

// maybeTarget sees to it that the target follows the group epoch.
func (c *Coordinator) maybeTarget(g *group) {
	if g.targetEpoch == g.generation || g.resuming() {
		return
	}
	if _, known := c.topics[g.lacking]; g.lacking != "" && !known {
		return
	}
	if at := g.computed.Add(c.cfg.AssignmentInterval); !g.computed.IsZero() && c.now.Before(at) {
		c.set(&g.compute, at)
		return
	}
	c.target(g)
}

// target computes the target of the present group epoch, if that is known to need it
// and the queues are known.
func (c *Coordinator) target(g *group) {
	if g.targetEpoch == g.generation || g.resuming() {
		return
	}
	plan, name, ok := c.plan848(g)
	if !ok {
		return
	}
	g.targetEpoch, g.assignor, g.computed = g.generation, name, c.now
	g.compute.off()
	g.head = true
	c.touch(g)
	for _, m := range g.sorted() {
		if qs := plan[m.id]; !slices.Equal(qs, m.target) {
			m.target = qs
			c.write(m, dirtyTarget)
		}
	}
	c.happened(g, Assigned, nil, "assignor "+name)
}

// retarget computes a target for what came back from elsewhere. If all is as it was,
// the epoch stays.
func (c *Coordinator) retarget(g *group) {
	if g.targetEpoch == g.generation {
		plan, _, ok := c.plan848(g)
		same := ok
		for _, m := range g.order {
			same = same && slices.Equal(plan[m.id], m.target)
		}
		if same {
			return
		}
		c.bump(g, "not all members of the epoch came back, or it was not at its target")
	}
	c.maybeTarget(g)
}

// plan848 asks the assignor. Not ok: queues are not known yet.
func (c *Coordinator) plan848(g *group) (plan map[string][]allocate.Queue, name string, ok bool) {
	in := assignor.Input{Topics: map[string][]allocate.Queue{}}
	for _, m := range g.sorted() {
		for _, t := range m.sub.Topics {
			qs, known := c.topics[t]
			if !known {
				g.lacking = t
				return nil, "", false
			}
			in.Topics[t] = qs
		}
		in.Members = append(in.Members, assignor.Member{
			ID: m.id, Instance: m.instance, Rack: m.sub.Rack, Topics: m.sub.Topics,
			Owned: m.target, Generation: assignor.NoGeneration,
		})
	}
	g.lacking = ""
	a := c.preferred(g)
	plan, err := a.Assign(in)
	if err != nil {
		c.happened(g, AssignFailed, nil, err.Error())
		plan = map[string][]allocate.Queue{}
		for _, m := range g.order {
			plan[m.id] = m.target
		}
	}
	for id, qs := range plan {
		plan[id] = sortedQueues(qs)
	}
	return plan, a.Name(), true
}

// preferred is the assignor that most members ask for, the first of them in the
// coordinator's order; without any wish the default.
func (c *Coordinator) preferred(g *group) assignor.Assignor {
	votes := map[string]int{}
	for _, m := range g.order {
		if m.assignor != "" {
			votes[m.assignor]++
		}
	}
	best := c.cfg.Assignors[0]
	for _, a := range c.cfg.Assignors {
		if votes[a.Name()] > votes[best.Name()] {
			best = a
		}
	}
	return best
}

// reconcile moves a member toward the target and says whether its queues changed.
// owned is what it says it has, if it says so.
func (c *Coordinator) reconcile(m *member, owned []allocate.Queue, hasOwned bool) (changed bool) {
	g := m.g
	if len(m.revoking) > 0 {
		if !hasOwned || slices.ContainsFunc(m.revoking, func(q allocate.Queue) bool { return slices.Contains(owned, q) }) {
			return false
		}
		for _, q := range m.revoking {
			c.free(m, q)
		}
		m.revoking = nil
		m.revoke.off()
		c.write(m, dirtyCurrent)
	} else if m.epoch == g.targetEpoch && !m.held && !m.epoch.IsZero() {
		return false
	}
	keep, revoke := split(m.assigned, m.target)
	m.held = false
	if len(revoke) > 0 && (!hasOwned || slices.ContainsFunc(revoke, func(q allocate.Queue) bool { return slices.Contains(owned, q) })) {
		m.assigned, m.revoking, m.previous = keep, revoke, m.epoch
		c.set(&m.revoke, c.now.Add(m.rebalanceTimeout))
		c.write(m, dirtyCurrent)
		return true
	}
	for _, q := range revoke { // it does not have them
		c.free(m, q)
	}
	next := make([]allocate.Queue, 0, len(m.target))
	for _, q := range m.target {
		switch o := g.owners[q]; o {
		case nil:
			g.owners[q] = m
			next = append(next, q)
		case m:
			next = append(next, q)
		default:
			m.held = true
		}
	}
	changed = !slices.Equal(next, m.assigned)
	epoch := g.targetEpoch
	if epoch.IsZero() { // there is no target yet
		epoch, m.held = g.generation, true
	}
	if changed || epoch != m.epoch {
		m.previous, m.epoch, m.assigned = m.epoch, epoch, next
		c.write(m, dirtyCurrent)
	}
	return changed
}

// split divides current into what is in target and what is not. Both are sorted.
func split(current, target []allocate.Queue) (keep, rest []allocate.Queue) {
	for _, q := range current {
		if _, in := slices.BinarySearchFunc(target, q, allocate.Queue.Compare); in {
			keep = append(keep, q)
		} else {
			rest = append(rest, q)
		}
	}
	return keep, rest
}

// subset reports whether all of a are in b. Both are sorted.
func subset(a, b []allocate.Queue) bool {
	_, rest := split(a, b)
	return len(rest) == 0
}
