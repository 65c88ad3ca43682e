package rebalance

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// choose picks the view broker: the first in rank that we can talk to and whose
// view can be served. Where none can, the first that we can talk to gets our
// reports, so that its view can become ready.
func (e *Engine) choose(t *topic) {
	if !e.active(t) || e.cfg.Mode == session.Broadcasting {
		return
	}
	best, warm := "", true
	for _, b := range t.rank {
		p := e.peer(b)
		if p == nil {
			continue
		}
		if p.phase != welcomed {
			if !p.freshBy.IsZero() && best == "" && t.using == "" {
				return // about to answer for the first time: a moment's wait saves a detour
			}
			continue
		}
		if p.silent > 0 {
			continue
		}
		if !t.isWarming(b) {
			best, warm = b, false
			break
		}
		if best == "" {
			best = b
		}
	}
	if best == "" {
		t.using, t.session, t.fetchSeq = "", 0, 0 // the share stays as it is
		return
	}
	p := e.peer(best)
	if t.using == best && t.session == p.session {
		return
	}
	t.using, t.session, t.fetchSeq, t.told = best, p.session, 0, 0
	t.full = true
	if !warm {
		e.fetch(t, "view broker")
	}
}

// fetch asks for the view, unless an answer is under way: that one is newer
// than whatever made us ask.
func (e *Engine) fetch(t *topic, trigger string) {
	if t.using == "" || t.fetchSeq != 0 || !e.active(t) || t.isWarming(t.using) {
		return
	}
	e.seq++
	t.fetchSeq, t.fetchFor, t.fetchDue = e.seq, trigger, true
	e.asking[e.seq] = t
}

func (e *Engine) sendFetch(t *topic) {
	if !t.fetchDue {
		return
	}
	t.fetchDue = false
	p := e.peer(t.using)
	if t.fetchSeq == 0 || p == nil || p.phase != welcomed {
		t.fetchSeq = 0
		return
	}
	e.send(p, session.FetchView{Topic: t.name, Seq: t.fetchSeq})
}

// viewed returns the topic if p is the view broker in use for it and healing by
// its signals is on.
func (e *Engine) viewed(p *peer, name string) *topic {
	t := e.topic(name)
	if t == nil || t.using != p.name || !e.active(t) || e.cfg.Broken.NoHealing {
		return nil
	}
	return t
}

// viewState compares the broker's digests with what our last pass started from.
func (e *Engine) viewState(p *peer, v session.ViewState) {
	if t := e.topic(v.Topic); t != nil && t.isWarming(p.name) {
		e.viewReady(p, v.Topic)
	}
	t := e.viewed(p, v.Topic)
	if t == nil {
		return
	}
	t.told = v.Inputs
	if v.Inputs != t.inputs {
		e.fetch(t, "heartbeat")
	}
	if v.OwnersSettled && v.Owners != t.expected {
		e.quiet(t, v.Owners, "heartbeat")
	}
}

// quiet hears that the ownership is not what members expect though nobody is at
// work on it. What we reported may not be what is known; and a pass that did not
// start from this ownership is due.
func (e *Engine) quiet(t *topic, owners session.Digest, trigger string) {
	if owners != t.quiet { // once: a report is itself not quiet
		t.quiet, t.full = owners, true
	}
	if owners != t.owners {
		e.fetch(t, trigger)
	}
}

func (e *Engine) viewReady(p *peer, name string) {
	t := e.topic(name)
	if t == nil || !e.active(t) {
		return
	}
	t.setWarming(p.name, false)
	e.choose(t)
	if t.using == p.name {
		e.fetch(t, "ready")
	}
}

func (e *Engine) viewAnswer(p *peer, a session.ViewAnswer) {
	t := e.asking[a.Seq]
	delete(e.asking, a.Seq)
	if t == nil || t.fetchSeq != a.Seq || t.using != p.name {
		return
	}
	e.concern(t)
	t.fetchSeq = 0
	if a.Warming {
		t.setWarming(p.name, true)
		return
	}
	if a.View.Topic != t.name || !e.active(t) || t.last != nil && t.last.version.After(a.View.Version) {
		return
	}
	e.passView(t, t.fetchFor, a.View)
}

// groupChanged applies a notice to what the last pass expects, if the group was
// settled before it: then that is the present ownership, and nothing needs to be
// fetched.
func (e *Engine) groupChanged(p *peer, c session.GroupChanged) {
	t := e.topic(c.Topic)
	if t == nil || t.using != p.name || !e.active(t) || t.fetchSeq != 0 {
		return // a fetch under way brings this change along
	}
	l := t.last
	if l != nil && !t.failed && (c.Version == l.version || l.version.After(c.Version)) {
		return
	}
	joined := sortMembers(slices.Clone(c.Joined))
	left := slices.Sorted(slices.Values(c.Left))
	hasLeft := func(id string) bool { _, ok := slices.BinarySearch(left, id); return ok }
	hasJoined := func(id string) bool { return memberAt(joined, id) >= 0 }
	restarted := slices.ContainsFunc(joined, func(m session.Member) bool { return hasLeft(m.ClientID) })
	if l == nil || t.failed || restarted || c.Previous != l.version || c.OwnersBefore != t.expected {
		e.fetch(t, "notice")
		return
	}
	members := slices.DeleteFunc(slices.Clone(l.members), func(m session.Member) bool {
		return hasLeft(m.ClientID) || hasJoined(m.ClientID)
	})
	members = sortMembers(append(members, joined...))
	queues := l.queues
	if len(c.Removed)+len(c.Added) > 0 {
		removed := sortQueues(c.Removed)
		queues = slices.DeleteFunc(slices.Clone(queues), func(q allocate.Queue) bool {
			_, ok := slices.BinarySearchFunc(removed, q, allocate.Queue.Compare)
			return ok
		})
		queues = cleanQueues(t.name, append(queues, c.Added...))
	}
	if session.InputsDigest(t.name, queues, members) != c.Inputs {
		e.fetch(t, "notice")
		return
	}
	v := session.View{Topic: t.name, Version: c.Version, Queues: queues, Members: members, Inputs: c.Inputs}
	claims := slices.ContainsFunc(joined, func(m session.Member) bool { return len(m.Owned) > 0 })
	if len(c.Removed)+len(c.Added) == 0 && !claims { // all that is owned is what the pass before gave
		owner := moveOwners(l.owner, l.members, members, func(id string) bool { return !hasJoined(id) })
		if v.Owners = t.expected; count(owner) < count(l.owner) {
			v.Owners = session.OwnersDigestOf(t.name, queues, members, owner)
		}
		e.pass(t, "notice", v, owner)
		return
	}
	for at, m := range l.owner {
		if m < 0 {
			continue
		}
		if id := l.members[m].ClientID; !hasJoined(id) { // those come with what they have reported
			if i := memberAt(members, id); i >= 0 {
				members[i].Owned = append(members[i].Owned, session.Owned{Queue: l.queues[at]})
			}
		}
	}
	owner, all := owners(queues, members)
	v.Owners = ownersDigest(t.name, queues, members, owner, all)
	e.pass(t, "notice", v, owner)
}

// memberAt returns the index of a client id in sorted members, or -1.
func memberAt(members []session.Member, id string) int {
	at, ok := slices.BinarySearchFunc(members, id, func(m session.Member, id string) int { return session.CompareIDs(m.ClientID, id) })
	if !ok {
		return -1
	}
	return at
}

func sortMembers(members []session.Member) []session.Member {
	slices.SortStableFunc(members, func(a, b session.Member) int { return session.CompareIDs(a.ClientID, b.ClientID) })
	return slices.CompactFunc(members, func(a, b session.Member) bool { return a.ClientID == b.ClientID })
}

// cleanQueues returns the topic's queues of the list, sorted and without doubles.
func cleanQueues(topic string, queues []allocate.Queue) []allocate.Queue {
	queues = slices.DeleteFunc(slices.Clone(queues), func(q allocate.Queue) bool { return q.Topic != topic || q.Broker == "" })
	return slices.Compact(sortQueues(queues))
}

func sortQueues(queues []allocate.Queue) []allocate.Queue {
	if !slices.IsSortedFunc(queues, allocate.Queue.Compare) {
		queues = slices.Clone(queues)
		slices.SortFunc(queues, allocate.Queue.Compare)
	}
	return queues
}
