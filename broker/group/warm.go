package group

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/session"
)

// isWarm reports whether the view is warming: members named by hellos, or there
// before a pause, are missing, or brokers may be missing in the routes of a view
// that members knew before.
func (v *view) isWarm() bool { return v.awaits() || v.known && v.topic.partial }

// awaits reports whether members are waited for, until warmBy at the latest.
func (v *view) awaits() bool { return len(v.expect)+len(v.asked) > 0 }

func (v *view) warmUp(r *Registry) {
	if v.isWarm() != v.warmed {
		v.warmed = !v.warmed
		if v.warmed {
			r.warm++
			v.unserve()
		} else {
			r.warm--
		}
	}
	r.touch(v)
}

func (v *view) endWarm(r *Registry) {
	v.expect, v.asked = nil, nil
	v.warmUp(r)
}

// coolDown ends the warm-up when its time is over.
func (r *Registry) coolDown(now time.Time, v *view) {
	if v.awaits() && !now.Before(v.warmBy) {
		r.stats.WarmUpsEndedByTime++
		v.endWarm(r)
	}
}

// named takes up the view that a member used last. If its list of members is not
// known, one of those that name it is asked for it. Only a young view waits:
// later, whoever is missing has had its time.
func (r *Registry) named(now time.Time, m *member, ref session.ViewRef) {
	vm := m.view(ref.Topic)
	if vm == nil || r.cfg.Broken.NoWarmUp {
		return
	}
	v := vm.v
	if !ref.Version.IsZero() && !v.ready && !v.known {
		v.known = true
		v.warmUp(r)
	}
	mine := ref.Version.Broker == r.cfg.Broker && ref.Version.Epoch == r.cfg.BrokerEpoch && ref.Version.Counter > v.since
	switch {
	case !now.Before(v.warmBy):
		v.heard = nil
		return
	case mine, ref.Members == 0, ref.Version.IsZero():
		return
	case v.ready && ref.Members == v.roster:
		return
	}
	if v.asked == nil {
		v.asked = make(map[session.Digest][]SessionID)
	}
	ask := v.asked[ref.Members]
	if _, heard := v.heard[ref.Members]; heard {
		return
	}
	v.asked[ref.Members] = append(ask, m.conn.id)
	if len(ask) == 0 {
		r.send(m.conn, session.AskMembers{Topic: v.name, Members: ref.Members})
	}
	v.warmUp(r)
}

// memberList takes up who was in a view that hellos named.
func (r *Registry) memberList(m *member, f session.MemberList) {
	vm := m.view(f.Topic)
	if vm == nil {
		return
	}
	v := vm.v
	if _, ok := v.asked[f.Members]; !ok || session.MembersDigest(f.Topic, f.IDs) != f.Members {
		return
	}
	delete(v.asked, f.Members)
	if v.heard == nil {
		v.heard = make(map[session.Digest]struct{})
	}
	v.heard[f.Members] = struct{}{}
	for _, id := range f.IDs {
		if len(v.expect) >= r.cfg.Limits.Members {
			break // more than there can be
		}
		if i, ok := v.find(id); !ok || v.all[i].m.conn == nil {
			if v.expect == nil {
				v.expect = make(map[string]struct{})
			}
			v.expect[id] = struct{}{}
		}
	}
	v.warmUp(r)
}

// expected says that a member that a view may be waiting for is there.
func (r *Registry) expected(v *view, id string) {
	if _, ok := v.expect[id]; ok {
		delete(v.expect, id)
		v.warmUp(r)
	}
}

// present says that something was heard of m.
func (r *Registry) present(m *member) {
	for _, vm := range m.views {
		r.expected(vm.v, m.id)
	}
}

// forgetAsker turns to the next who named a list if the one asked is gone.
func (r *Registry) forgetAsker(m *member, c *conn) {
	for _, vm := range m.views {
		v := vm.v
		for _, d := range sortedDigests(v.asked) {
			ask := v.asked[d]
			i := slices.Index(ask, c.id)
			if i < 0 {
				continue
			}
			ask = slices.Delete(ask, i, i+1)
			if len(ask) == 0 {
				delete(v.asked, d)
			} else {
				v.asked[d] = ask
				if i == 0 {
					r.send(r.conns[ask[0]], session.AskMembers{Topic: v.name, Members: d})
				}
			}
			v.warmUp(r)
		}
	}
}

func sortedDigests(m map[session.Digest][]SessionID) []session.Digest {
	out := make([]session.Digest, 0, len(m))
	for d := range m {
		out = append(out, d)
	}
	slices.Sort(out)
	return out
}

// warmAgain makes a view wait for its members after the broker stood still: they
// may have left for another broker and come back one by one.
func (r *Registry) warmAgain(now time.Time, v *view) {
	if !v.ready {
		return
	}
	var longest time.Duration
	v.expect = make(map[string]struct{}, len(v.pub))
	for i := range v.pub {
		v.expect[v.pub[i].id] = struct{}{}
		longest = max(longest, v.pub[i].vm.m.timeout)
	}
	v.warmBy = now.Add(longest)
	v.used = now // from now on silence counts
	v.warmUp(r)
}

// cameBack takes a full report of a member that had reported in the same session
// for what it is: the member used another broker's view in between. Then others
// probably did so too, and what they reported here is old. The first broker in
// rank is spared: nobody leaves it while it serves.
func (r *Registry) cameBack(now time.Time, vm *viewMember) {
	v := vm.v
	if v.first || !v.ready || !vm.confirmed || r.cfg.Broken.NoWarmUp {
		return
	}
	stale := false
	for _, o := range v.all {
		if o != vm && o.confirmed && now.Sub(o.lastFull) >= o.m.timeout {
			o.confirmed, stale = false, true
		}
	}
	if stale {
		r.stats.Censuses++
		v.unserve()
		v.used = now
	}
}
