package group

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// view is the view of (group, topic) at this broker.
//
// It is forming until every member in it has reported and nobody who is expected
// is missing, then ready: published at a version and served. A pause of the
// broker, or a report that shows that members used another broker meanwhile,
// makes it form again.
type view struct {
	g     *group
	name  string // the topic's
	topic *topic
	first bool // this broker is the first in rank of those that host the topic

	// all are those who subscribe and are not leaving, sorted by client id.
	all []*viewMember

	// What was published last. Members may have left it since, in a window.
	ready    bool
	version  session.Version
	pub      []published
	queues   []allocate.Queue
	inputs   session.Digest
	roster   session.Digest // MembersDigest of pub
	owners   owners
	snap     *session.View          // of the version and the present ownership, shared by all who fetch
	expected map[session.Digest]int // how many of pub expect which ownership
	draining int                    // of all
	leftOut  int                    // of all
	departed []departed             // whose queues are perhaps still being drained

	// The notice window.
	open     bool
	openedAt time.Time
	joinedAt time.Time      // when the last member came
	closedAt time.Time      // when the last window closed
	streak   int            // windows that followed one another, up to maxStreak
	before   session.Digest // ownership as it was when the window opened

	// Forming.
	created time.Time
	since   uint64 // the registry's count of versions when it was created
	used    time.Time
	warmBy  time.Time // nobody is waited for after it
	known   bool      // a hello named a view from before while this one was not served
	expect  map[string]struct{}
	asked   map[session.Digest][]SessionID // digests of unknown lists: whom to ask, the first was
	heard   map[session.Digest]struct{}    // digests whose lists are known
	warmed  bool                           // counted in Registry.warm

	waiting      []fetch // FetchViews not answered yet
	waitingSince time.Time

	// Healing.
	quietAt    time.Time // zero: reports were compared since the last one
	signals    int       // quiet signals in vain since it was settled or a version was made
	mismatch   bool      // expectations differ from the ownership while all is quiet
	orphanAt   time.Time // zero: no orphan is suspected
	orphanWait time.Duration
	reachAt    time.Time // a witness may be there long enough then

	settled   bool
	changedAt time.Time // since when it is not settled, or was not before it settled
	settledAt time.Time

	touched bool
	dropped bool
	timer   timer
}

// viewMember is a member's part in one view.
type viewMember struct {
	m     *member
	v     *view
	since time.Time // its session was welcomed, or it subscribed
	// reported: it has said what it owns, or had a session timeout to do so.
	reported bool
	// confirmed: the same since its session was welcomed and the view began to form.
	confirmed bool
	lastFull  time.Time
	owned     []session.Owned // sorted; never changed in place
	expected  session.Digest
	draining  bool
	leftOut   bool // by the reach rule
	listed    bool // in view.pub
	staying   bool // in the next one too; only while it is replaced
}

// published is a member as the last version has it.
type published struct {
	vm          *viewMember
	id          string
	instance    string
	incarnation session.Incarnation
	offers      []session.Offer
}

// departed is a member that left a view with its session open: what it owned is
// being drained until somebody else owns it, the session ends or a timeout is over.
type departed struct {
	m     *member
	owned []session.Owned
	until time.Time
}

type fetch struct {
	session SessionID
	seq     uint64
}

func (vm *viewMember) publish() published {
	m := vm.m
	return published{vm, m.id, m.instance, m.incarnation, m.offers}
}

func (p *published) member() session.Member {
	return session.Member{
		ClientID: p.id, Instance: p.instance, Incarnation: p.incarnation, Offers: p.offers,
		Owned: p.vm.owned, Expected: p.vm.expected,
	}
}

// sameInputs reports whether a pass sees no difference between p and q.
func (p *published) sameInputs(q *published) bool {
	return p.incarnation == q.incarnation && session.EqualOffers(p.offers, q.offers)
}

// rank finds out whether this broker is the first in rank.
func (v *view) rank(cfg *Config) {
	ranked := session.RankBrokers(v.g.name, v.name, v.topic.brokers)
	v.first = len(ranked) > 0 && ranked[0] == cfg.Broker
}

func (v *view) window() time.Duration { return Window(len(v.all)) }

func (v *view) patience() time.Duration { return session.PatienceWindows * v.window() }

// closeAt is the end of the notice window. The first one waits while members keep
// coming, up to the patience of those who wait for it: members of a group that
// starts need not take queues from each other.
//
// Later ones get longer in a large group while changes do not end, since each costs
// every member a view and a pass: members that come in over many windows would be at
// work for longer than it takes them to come.
func (v *view) closeAt() time.Time {
	if !v.version.IsZero() {
		return v.openedAt.Add(max(v.window(), min(v.window()<<v.streak, maxDoubled)))
	}
	at, most := v.joinedAt.Add(v.window()), v.openedAt.Add(v.patience())
	if at.After(most) {
		return most
	}
	return at
}

const (
	// maxStreak bounds how often a window is doubled: 2.4 s with a thousand members.
	maxStreak = 3
	// maxDoubled is as far as doubling goes: the queues of a member that left wait.
	maxDoubled = 5 * time.Second
)

// join makes m part of the view of a topic; from is the part that an earlier
// life of a static member had in it.
func (r *Registry) join(now time.Time, m *member, topic string, from *viewMember) {
	v := m.g.views[topic]
	if v == nil {
		v = &view{
			g: m.g, name: topic, topic: r.topic(topic), created: now, since: r.versions,
			warmBy: now.Add(m.timeout), changedAt: now, expected: make(map[session.Digest]int),
		}
		v.timer.owner = v
		v.rank(&r.cfg)
		v.orphanFrom(now)
		m.g.views[topic] = v
		v.topic.views[m.g.name] = v
	}
	v.returned(m)
	v.joinedAt = now
	r.change(now, v)
	vm := &viewMember{m: m, v: v, since: now}
	if from != nil {
		vm.owned, vm.reported, vm.confirmed = from.owned, true, true
	}
	i, _ := v.find(m.id)
	v.all = slices.Insert(v.all, i, vm)
	j, _ := m.findView(topic)
	m.views = slices.Insert(m.views, j, vm)
	r.expected(v, m.id)
	m.g.rev++
}

// leave takes a member out of a view.
func (r *Registry) leave(now time.Time, vm *viewMember) {
	v, m := vm.v, vm.m
	r.change(now, v)
	i, _ := v.find(m.id)
	v.all = slices.Delete(v.all, i, i+1)
	if vm.leftOut {
		v.leftOut--
	}
	if vm.draining {
		v.draining--
	}
	if m.conn != nil && len(vm.owned) > 0 { // it leaves or dropped the topic, and lives
		v.returned(m)
		v.departed = append(v.departed, departed{m, vm.owned, now.Add(m.timeout)})
		m.departed = true
	}
	if j, ok := m.findView(v.name); ok {
		m.views = slices.Delete(m.views, j, j+1)
	}
	v.waiting = slices.DeleteFunc(v.waiting, func(f fetch) bool { return m.conn != nil && f.session == m.conn.id })
	m.g.rev++
}

// returned forgets that m departed.
func (v *view) returned(m *member) {
	v.departed = slices.DeleteFunc(v.departed, func(d departed) bool { return d.m == m })
}

func (v *view) find(id string) (int, bool) {
	return slices.BinarySearchFunc(v.all, id, func(vm *viewMember, id string) int {
		return session.CompareIDs(vm.m.id, id)
	})
}

// change opens the notice window, if it is not open, before something that a
// pass depends on changes.
func (r *Registry) change(now time.Time, v *view) {
	if !v.open {
		if v.streak++; len(v.all) <= session.SmallGroup || now.Sub(v.closedAt) >= v.window() {
			v.streak = 0
		}
		v.streak = min(v.streak, maxStreak)
		v.open, v.openedAt = true, now
		v.before = 0
		if v.ready {
			v.before = v.owners.now(v.name)
		}
		v.unsettle(now)
	}
	r.touch(v)
}

func (v *view) unsettle(now time.Time) {
	if v.settled {
		v.settled, v.changedAt = false, now
	}
}

// welcomed says that the member's session is a new one of the same life. What
// it reported here counts on if this is the broker it reports to.
func (vm *viewMember) welcomed(now time.Time) {
	vm.since = now
	if !vm.v.first || !vm.v.ready {
		vm.confirmed = false
	}
}

// use says that a member asks or tells this broker about the view.
func (v *view) use(now time.Time) {
	if v.used.IsZero() {
		v.used = now
	}
}

// look does what is due in a view and sets its timer anew.
func (r *Registry) look(now time.Time, v *view) {
	if v.dropped {
		return
	}
	if len(v.all) == 0 {
		r.drop(v)
		return
	}
	r.reach(now, v)
	r.coolDown(now, v)
	switch {
	case !v.topic.hosted:
		v.unserve()
	case v.open && now.Before(v.closeAt()): // the window collects
	case v.ready && (v.open || v.anySilentJoiner(now)), !v.ready && r.formed(now, v):
		r.publish(now, v)
	}
	if len(v.waiting) > 0 && (!now.Before(v.waitUntil()) || v.isWarm() || !v.topic.hosted) {
		r.answerWaiting(v, func(*viewMember) bool { return true })
	}
	r.quiet(now, v)
	r.orphans(now, v)
	r.arm(v)
}

// due looks at the view.
func (v *view) due(r *Registry, _ time.Time) { r.touch(v) }

// arm sets the timer to the next time at which something may be due.
func (r *Registry) arm(v *view) {
	var next time.Time
	at := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	switch {
	case !v.topic.hosted:
	case v.ready && v.open:
		at(v.closeAt())
	case v.ready:
		at(v.silentJoinerAt())
	case v.isWarm():
		if v.awaits() {
			at(v.warmBy)
		}
	case v.open && r.stepped.Before(v.closeAt()):
		at(v.closeAt())
	default:
		at(v.formedAt(r))
	}
	if len(v.waiting) > 0 {
		at(v.waitUntil())
	}
	if v.ready && !v.open { // otherwise the next version asks again
		at(v.quietAt)
	}
	at(v.orphanAt)
	at(v.reachAt)
	if next.IsZero() {
		r.timers.stop(&v.timer)
		return
	}
	r.timers.set(&v.timer, next)
}

// drop forgets a view without members.
func (r *Registry) drop(v *view) {
	v.dropped = true
	v.endWarm(r)
	r.timers.stop(&v.timer)
	delete(v.g.views, v.name)
	delete(v.topic.views, v.g.name)
	r.dropTopicIfUnused(v.name)
	v.g.rev++
}

// unserve stops serving the view until it is formed again.
func (v *view) unserve() {
	if v.ready {
		v.ready, v.mismatch = false, false
		v.g.rev++
	}
}
