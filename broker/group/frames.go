package group

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// maxHeld is how many frames may wait for a welcome, which itself waits for the disk.
const maxHeld = 1024

// received handles a frame of a session.
func (r *Registry) received(now time.Time, id SessionID, f session.ToBroker) {
	c := r.conns[id]
	if c == nil {
		c = &conn{id: id}
		r.conns[id] = c
		if h, ok := f.(session.Hello); ok {
			r.hello(now, c, &h)
			return
		}
		r.refuse(c, session.ReasonBadRequest, fmt.Sprintf("first frame %s: must be Hello", frameName(f)), session.Incarnation{})
		return
	}
	m := c.m
	if c.dead || m == nil {
		return
	}
	r.stats.Frames++
	m.heard(now)
	if r.warm > 0 {
		r.present(m)
	}
	bad := r.frame(now, m, f)
	if bad == "" && !c.dead {
		bad = atMost("answers that wait for the welcome", len(c.held), maxHeld)
	}
	if bad != "" {
		r.refuse(c, session.ReasonBadRequest, bad, session.Incarnation{})
		r.detach(m)
	}
}

// frame handles a frame of a live session. A text says what is wrong with it.
func (r *Registry) frame(now time.Time, m *member, f session.ToBroker) (bad string) {
	l := &r.cfg.Limits
	switch f := f.(type) {
	case session.Heartbeat:
		r.stats.Heartbeats++
		r.send(m.conn, session.HeartbeatAck{Seq: f.Seq, Views: r.viewStates(m)})
	case session.Report:
		if bad = l.report(&f); bad == "" {
			bad = r.report(now, m, &f)
		}
	case session.FetchView:
		if bad = l.name("topic", f.Topic); bad == "" {
			r.fetch(now, m, f)
		}
	case session.Acquire:
		if bad = l.queues(f.Queues); bad == "" {
			bad = r.acquire(m, f)
		}
	case session.Withdraw:
		if bad = l.queues(f.Queues); bad == "" {
			r.leases.Withdraw(m.holder, f.Queues)
		}
	case session.Released:
		if bad = l.releases(f.Leases); bad == "" {
			r.leases.Release(now, m.holder, f.Leases)
		}
	case session.Subscribe:
		if bad = l.subscriptions(f.Subscriptions); bad == "" {
			r.subscribe(now, m, f.Subscriptions)
		}
	case session.Reach:
		if bad = l.silent(f.Silent); bad == "" {
			m.uncount()
			m.silent = slices.Clone(f.Silent)
			m.count()
			for _, vm := range m.views {
				r.touch(vm.v)
			}
		}
	case session.MemberList:
		if bad = atMost("members", len(f.IDs), l.Members); bad == "" {
			r.memberList(m, f)
		}
	case session.Leaving:
		m.leaving = true
		r.attend(now, m, inheritance{})
	case session.Goodbye:
		c := m.conn
		c.dead = true
		r.end(now, m)
		r.out = append(r.out, CloseSession{c.id})
	default: // a second Hello, or nothing
		bad = fmt.Sprintf("frame %s: must not come on an open session", frameName(f))
	}
	return bad
}

func frameName(f session.ToBroker) string {
	if f == nil {
		return "nil"
	}
	return fmt.Sprintf("%T", f)[len("session."):]
}

// closed handles the end of a session's stream.
func (r *Registry) closed(now time.Time, id SessionID, byPeer bool) {
	c := r.conns[id]
	if c == nil {
		return
	}
	delete(r.conns, id)
	c.dead = true
	m := c.m
	if o := c.fenced; o != nil {
		c.fenced, o.fencedConn = nil, nil
		if byPeer {
			r.end(now, o)
		}
	}
	switch {
	case m == nil || m.conn != c:
	case byPeer && m.instance == "":
		r.end(now, m)
	case byPeer:
		// A static member that stops is expected back: a full timeout from now.
		r.detach(m)
		m.closed = true
		m.deadline = now.Add(m.timeout)
	default:
		r.detach(m)
	}
}

func (r *Registry) acquire(m *member, f session.Acquire) (bad string) {
	if bad = r.cfg.Limits.optional("view broker", f.ViewBroker); bad != "" {
		return bad
	}
	if m.g.mode != session.Exclusive {
		return fmt.Sprintf("acquire in a group with mode %s: must be exclusive", m.g.mode)
	}
	r.leases.Acquire(m.holder, f.Queues, f.ViewBroker)
	return ""
}

func (r *Registry) subscribe(now time.Time, m *member, subs []session.Subscription) {
	if s, f := m.g.otherFilter(subs, m); f != nil {
		r.refuse(m.conn, session.ReasonFilterMismatch, filterText(m.g, s, f), session.Incarnation{})
		r.detach(m)
		return
	}
	m.uncount()
	m.subs = sortedSubscriptions(subs)
	m.count()
	r.attend(now, m, inheritance{})
}

// attend makes m's views those of its subscriptions.
func (r *Registry) attend(now time.Time, m *member, in inheritance) {
	wanted := m.subs
	if m.leaving || m.g.mode == session.Broadcasting {
		wanted = nil
	}
	for _, vm := range slices.Backward(m.views) { // leaving takes vm out of it
		if !slices.ContainsFunc(wanted, func(s session.Subscription) bool { return s.Topic == vm.v.name }) {
			r.leave(now, vm)
		}
	}
	for _, s := range wanted {
		if _, ok := m.findView(s.Topic); !ok {
			r.join(now, m, s.Topic, in.parts[s.Topic])
		}
	}
}

// report takes over what a member says it owns of a topic. One of a topic that
// it is not in the view of is late and means nothing.
func (r *Registry) report(now time.Time, m *member, rep *session.Report) (bad string) {
	vm := m.view(rep.Topic)
	if vm == nil {
		return ""
	}
	v := vm.v
	r.stats.Reports++
	v.use(now)
	if rep.Full {
		r.cameBack(now, vm)
		vm.reported, vm.confirmed, vm.lastFull = true, true, now
	}
	owned := applyReport(vm, rep)
	if bad = atMost("owned queues", len(owned), r.cfg.Limits.Queues); bad != "" {
		return bad
	}
	if v.ready && !vm.listed && !vm.leftOut {
		r.change(now, v) // a joiner whom the view waited for
	}
	if vm.expected != rep.Expected || vm.draining != rep.Draining || !slices.Equal(vm.owned, owned) {
		v.update(vm, owned, rep.Expected, rep.Draining)
		v.quietFrom(now)
	} // else it says the same again, perhaps because it was told of a mismatch
	r.touch(v)
	return ""
}

// applyReport returns what vm owns after the report, in a new list.
func applyReport(vm *viewMember, rep *session.Report) []session.Owned {
	byQueue := func(a, b session.Owned) int {
		if c := a.Queue.Compare(b.Queue); c != 0 {
			return c
		}
		return b.Epoch.Compare(a.Epoch) // the later one first
	}
	added := slices.Clone(rep.Owned)
	slices.SortFunc(added, byQueue)
	added = slices.CompactFunc(added, func(a, b session.Owned) bool { return a.Queue == b.Queue })
	if rep.Full {
		return added
	}
	var gone map[allocate.Queue]struct{}
	if len(rep.NotOwned) > 0 {
		gone = make(map[allocate.Queue]struct{}, len(rep.NotOwned))
		for _, q := range rep.NotOwned {
			gone[q] = struct{}{}
		}
	}
	out := make([]session.Owned, 0, len(vm.owned)+len(added))
	old := vm.owned
	for len(old) > 0 || len(added) > 0 {
		switch {
		case len(added) == 0 || len(old) > 0 && old[0].Queue.Compare(added[0].Queue) < 0:
			if _, ok := gone[old[0].Queue]; !ok {
				out = append(out, old[0])
			}
			old = old[1:]
		default:
			if len(old) > 0 && old[0].Queue == added[0].Queue {
				old = old[1:]
			}
			out = append(out, added[0])
			added = added[1:]
		}
	}
	return out
}

// viewStates is what a heartbeat answer says to m. The list is made anew only
// when a view of the group has changed.
func (r *Registry) viewStates(m *member) []session.ViewState {
	if m.statesRev == m.g.rev || r.cfg.Broken.NoHealing {
		return m.states
	}
	m.statesRev = m.g.rev
	m.states = nil // the old one may still be on its way to the member
	for _, vm := range m.views {
		if v := vm.v; v.ready {
			m.states = append(m.states, session.ViewState{
				Topic: v.name, Version: v.version, Inputs: v.inputs,
				Owners: v.owners.digest, OwnersSettled: v.mismatch,
			})
		}
	}
	return m.states
}
