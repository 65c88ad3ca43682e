package group

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// formed reports whether the view may be served for the first time: nobody who is
// expected is missing, and each member has reported or had a session timeout to
// do so since the view is in use.
func (r *Registry) formed(now time.Time, v *view) bool {
	if r.cfg.Broken.NoWarmUp {
		return true
	}
	if v.isWarm() || v.used.IsZero() {
		return false
	}
	for _, vm := range v.all {
		if !vm.leftOut && !vm.confirmed && now.Before(vm.silentAt()) {
			return false
		}
	}
	return true
}

// formedAt is when the view will be formed if nobody reports; zero: never.
func (v *view) formedAt(r *Registry) (at time.Time) {
	if v.used.IsZero() || v.isWarm() {
		return at
	}
	for _, vm := range v.all {
		if !vm.leftOut && !vm.confirmed {
			if t := vm.silentAt(); t.After(at) {
				at = t
			}
		}
	}
	if !at.After(r.stepped) {
		return time.Time{}
	}
	return at
}

// silentAt is when a member of a forming view that has said nothing counts as
// owning nothing more than it said before.
func (vm *viewMember) silentAt() time.Time {
	from := vm.since
	if vm.v.used.After(from) {
		from = vm.v.used
	}
	return from.Add(vm.m.timeout)
}

// silentJoinerAt is when the first joiner that does not report comes into a
// ready view all the same; zero: there is none.
func (v *view) silentJoinerAt() (at time.Time) {
	if !v.open && len(v.pub) == len(v.all) {
		return at
	}
	for _, vm := range v.all {
		if !vm.listed && !vm.leftOut {
			if t := vm.since.Add(vm.m.timeout); at.IsZero() || t.Before(at) {
				at = t
			}
		}
	}
	return at
}

func (v *view) anySilentJoiner(now time.Time) bool {
	at := v.silentJoinerAt()
	return !at.IsZero() && !now.Before(at)
}

// belongs reports whether vm is in the version to be published now.
func (r *Registry) belongs(now time.Time, vm *viewMember) bool {
	switch {
	case vm.leftOut:
		return false
	case !vm.v.ready, vm.listed, vm.reported, r.cfg.Broken.NoWarmUp:
		return true
	}
	return !now.Before(vm.since.Add(vm.m.timeout))
}

// publish closes the window: what has changed becomes a version, and a notice.
func (r *Registry) publish(now time.Time, v *view) {
	pub := make([]published, 0, len(v.all))
	for _, vm := range v.all {
		if r.belongs(now, vm) {
			pub = append(pub, vm.publish())
		}
	}
	notice := session.GroupChanged{Topic: v.name, Previous: v.version, OwnersBefore: v.before}
	changed := v.compare(&notice, pub)
	if !v.ready && v.version.IsZero() || !slices.Equal(v.queues, v.topic.queues) {
		changed = true
	}
	wasReady := v.ready
	v.open, v.ready, v.closedAt = false, true, now
	if changed {
		notice.Added, notice.Removed = queueDelta(v.queues, v.topic.queues)
		r.versions++
		v.version = session.Version{Broker: r.cfg.Broker, Epoch: r.cfg.BrokerEpoch, Counter: r.versions}
		v.replacePub(pub)
		v.queues = v.topic.queues
		v.digest()
		v.signals = 0
		r.stats.Versions++
	}
	if !wasReady {
		v.unsettle(now)
		r.stats.ViewsReady++
	}
	v.g.rev++
	v.quietFrom(now)
	r.touch(v) // to arm the quiet timer
	answered := r.answerWaiting(v, func(vm *viewMember) bool { return vm == nil || vm.listed || vm.leftOut })

	var frames []session.ToMember
	if changed && !notice.Previous.IsZero() {
		notice.Version, notice.Inputs = v.version, v.inputs
		frames = append(frames, notice)
		r.stats.Windows++
	}
	if !wasReady {
		frames = append(frames, session.ViewReady{Topic: v.name, Version: v.version, Inputs: v.inputs})
	}
	if len(frames) == 0 {
		return
	}
	for _, vm := range v.all {
		c := vm.m.conn
		if c == nil || !vm.listed && !vm.leftOut {
			continue
		}
		if _, ok := slices.BinarySearch(answered, c.id); ok {
			continue // it has the whole view
		}
		for _, f := range frames {
			if _, ok := f.(session.GroupChanged); ok {
				r.stats.Notices++
			}
			r.send(c, f)
		}
	}
}

// compare fills in who joined and left; it reports whether anything did.
func (v *view) compare(n *session.GroupChanged, pub []published) bool {
	old := v.pub
	for len(old) > 0 || len(pub) > 0 {
		c := 0
		switch {
		case len(old) == 0:
			c = 1
		case len(pub) == 0:
			c = -1
		default:
			c = session.CompareIDs(old[0].id, pub[0].id)
		}
		if c == 0 && old[0].sameInputs(&pub[0]) && old[0].vm == pub[0].vm {
			old, pub = old[1:], pub[1:]
			continue
		}
		if c <= 0 {
			n.Left = append(n.Left, old[0].id)
			old = old[1:]
		}
		if c >= 0 {
			n.Joined = append(n.Joined, pub[0].member())
			pub = pub[1:]
		}
	}
	return len(n.Left)+len(n.Joined) > 0
}

// queueDelta compares two sorted lists.
func queueDelta(old, now []allocate.Queue) (added, removed []allocate.Queue) {
	for len(old) > 0 || len(now) > 0 {
		switch {
		case len(old) == 0 || len(now) > 0 && now[0].Compare(old[0]) < 0:
			added = append(added, now[0])
			now = now[1:]
		case len(now) == 0 || old[0].Compare(now[0]) < 0:
			removed = append(removed, old[0])
			old = old[1:]
		default:
			old, now = old[1:], now[1:]
		}
	}
	return added, removed
}

// replacePub makes pub the published members, and their ownership the view's.
func (v *view) replacePub(pub []published) {
	for i := range pub {
		pub[i].vm.staying = true
	}
	for i := range v.pub {
		if vm := v.pub[i].vm; !vm.staying {
			v.unlist(vm)
		}
	}
	for i := range pub {
		vm := pub[i].vm
		vm.staying = false
		if !vm.listed {
			v.list(vm)
		}
	}
	v.pub = pub
}

// digest computes what of the version does not change with reports.
func (v *view) digest() {
	v.snap = nil
	s := v.snapshot()
	ids := make([]string, len(v.pub))
	for i := range v.pub {
		ids[i] = v.pub[i].id
	}
	v.inputs = session.InputsDigest(v.name, v.queues, s.Members)
	v.roster = session.MembersDigest(v.name, ids)
	s.Inputs = v.inputs
}

// snapshot returns the view of the version with the present ownership. It is
// made once and shared; a later change of ownership makes another one.
func (v *view) snapshot() *session.View {
	if v.snap != nil {
		return v.snap
	}
	s := &session.View{
		Topic: v.name, Version: v.version, Queues: v.queues, Inputs: v.inputs,
		Owners: v.owners.now(v.name), Members: make([]session.Member, len(v.pub)),
	}
	for i := range v.pub {
		s.Members[i] = v.pub[i].member()
	}
	v.snap = s
	return s
}

// update sets what a member reported. Only what differs costs anything.
func (v *view) update(vm *viewMember, owned []session.Owned, expected session.Digest, draining bool) {
	if vm.draining != draining {
		if vm.draining = draining; draining {
			v.draining++
		} else {
			v.draining--
		}
	}
	if vm.listed {
		v.snap = nil
		old, now := vm.owned, owned
		for len(old) > 0 || len(now) > 0 {
			switch {
			case len(now) == 0 || len(old) > 0 && old[0].Queue.Compare(now[0].Queue) < 0:
				v.owners.remove(old[0].Queue, claim{old[0].Epoch, vm.m.id})
				old = old[1:]
			case len(old) == 0 || old[0].Queue != now[0].Queue:
				v.owners.add(now[0].Queue, claim{now[0].Epoch, vm.m.id})
				now = now[1:]
			default:
				if old[0].Epoch != now[0].Epoch {
					v.owners.remove(old[0].Queue, claim{old[0].Epoch, vm.m.id})
					v.owners.add(now[0].Queue, claim{now[0].Epoch, vm.m.id})
				}
				old, now = old[1:], now[1:]
			}
		}
		v.tally(vm, -1)
	}
	vm.owned, vm.expected = owned, expected
	if vm.listed {
		v.tally(vm, 1)
	}
}

// list counts what a published member owns and expects; unlist ends that.
func (v *view) list(vm *viewMember) {
	vm.listed = true
	for _, o := range vm.owned {
		v.owners.add(o.Queue, claim{o.Epoch, vm.m.id})
	}
	v.tally(vm, 1)
}

func (v *view) unlist(vm *viewMember) {
	vm.listed = false
	for _, o := range vm.owned {
		v.owners.remove(o.Queue, claim{o.Epoch, vm.m.id})
	}
	v.tally(vm, -1)
}

// tally adds vm to, or takes it from, those who expect the same.
func (v *view) tally(vm *viewMember, n int) {
	if v.expected[vm.expected] += n; v.expected[vm.expected] == 0 {
		delete(v.expected, vm.expected)
	}
}

// fetch answers a FetchView, or lets it wait for the version in the making.
func (r *Registry) fetch(now time.Time, m *member, f session.FetchView) {
	r.stats.Fetches++
	v := m.g.views[f.Topic]
	if v == nil {
		r.send(m.conn, session.ViewAnswer{Seq: f.Seq, Warming: true, View: session.View{Topic: f.Topic}})
		return
	}
	v.use(now)
	vm := m.view(f.Topic)
	r.touch(v)
	pending := vm != nil && !vm.leftOut && (v.open || !vm.listed)
	if v.topic.hosted && !v.isWarm() && (!v.ready || pending) {
		if len(v.waiting) == 0 {
			v.waitingSince = now
		}
		f := fetch{m.conn.id, f.Seq}
		if i := slices.IndexFunc(v.waiting, func(o fetch) bool { return o.session == f.session }); i >= 0 {
			v.waiting[i] = f // the newer one is what it waits for
		} else {
			v.waiting = append(v.waiting, f)
		}
		return
	}
	r.answer(m.conn, v, f.Seq)
}

// waitUntil is when a fetch is told that the view is warming.
func (v *view) waitUntil() time.Time {
	at := v.waitingSince.Add(v.patience())
	if v.open && v.closeAt().After(at) {
		return v.closeAt()
	}
	return at
}

// answer serves the view, unless it cannot be served or does not hold the asker
// only because that has not reported yet.
func (r *Registry) answer(c *conn, v *view, seq uint64) {
	vm := c.m.view(v.name)
	if !v.ready || !v.topic.hosted || vm != nil && !vm.listed && !vm.leftOut {
		r.stats.Warming++
		r.send(c, session.ViewAnswer{Seq: seq, Warming: true, View: session.View{Topic: v.name}})
		return
	}
	r.stats.ViewsServed++
	r.send(c, session.ViewAnswer{Seq: seq, View: *v.snapshot()})
}

// answerWaiting answers the waiting fetches of those that may have an answer; it
// returns the sessions that got the view, sorted.
func (r *Registry) answerWaiting(v *view, may func(*viewMember) bool) (answered []SessionID) {
	left := v.waiting[:0]
	for _, f := range v.waiting {
		c := r.conns[f.session]
		if c == nil || c.m == nil {
			continue
		}
		if !may(c.m.view(v.name)) {
			left = append(left, f)
			continue
		}
		r.answer(c, v, f.seq)
		answered = append(answered, f.session)
	}
	v.waiting = left
	slices.Sort(answered)
	return answered
}
