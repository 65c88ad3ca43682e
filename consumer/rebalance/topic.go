package rebalance

import (
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// topic is what the member knows and holds of a subscribed topic, or of one it
// is letting go of.
type topic struct {
	name       string
	subscribed bool
	brokers    []string         // by our own routes: whom to connect to
	queues     []allocate.Queue // by our own routes: for Broadcasting only
	rank       []string         // of brokers as view brokers
	holds      []*hold          // sorted by queue
	freed      bool             // some hold is free

	using   string   // view broker in use
	session uint64   // with it
	warming []string // brokers whose view cannot be served yet

	last     *basis         // what the last good pass was computed from
	inputs   session.Digest // what the last pass started from, good or not
	owners   session.Digest
	told     session.Digest // inputs by the last heartbeat answer
	expected session.Digest // the ownership that the last good pass expects
	failed   bool           // the last pass had an error
	passed   Pass           // the last one

	fetchSeq uint64 // outstanding; 0 is none
	fetchFor string // its trigger
	fetchDue bool   // not sent yet

	full     bool // the report due replaces what was reported
	dirty    bool // a report is due though no queue changed
	touched  []allocate.Queue
	draining bool // as reported

	patience   time.Duration
	patienceAt time.Time
	recount    bool // requests were answered

	claimUntil  time.Time
	routesAsked bool
}

// basis is a view as a pass used it, with the ownership the pass expects: what
// the next notice is applied to.
type basis struct {
	version session.Version
	queues  []allocate.Queue
	members []session.Member // without Owned
	ids     []string
	given   allocate.Assignment
}

func (t *topic) isWarming(broker string) bool { return slices.Contains(t.warming, broker) }

func (t *topic) setWarming(broker string, on bool) {
	i := slices.Index(t.warming, broker)
	switch {
	case on && i < 0:
		t.warming = append(t.warming, broker)
	case !on && i >= 0:
		t.warming = slices.Delete(t.warming, i, i+1)
	}
}

// forget drops all that is known of the topic's group.
func (t *topic) forget() {
	t.using, t.session, t.warming = "", 0, nil
	t.last, t.inputs, t.owners, t.told, t.expected, t.failed = nil, 0, 0, 0, 0, false
	t.fetchSeq, t.fetchDue = 0, false
	t.full, t.dirty, t.touched = false, false, nil
}

// routes takes what the name servers say.
func (e *Engine) routes(ev Routes) {
	for _, r := range ev.Topics {
		t := e.topic(r.Name)
		if t == nil {
			continue
		}
		t.routesAsked = false
		brokers := slices.Clone(r.Brokers)
		slices.Sort(brokers)
		brokers = slices.Compact(brokers)
		if len(brokers) == 0 {
			e.gone(t)
			continue
		}
		if !slices.Equal(brokers, t.brokers) {
			t.brokers = brokers
			t.rank = session.RankBrokers(e.cfg.Group, t.name, brokers)
			if e.cfg.Broken.RandomViewBroker {
				n := int(allocate.NewHash().String(e.cfg.ClientID).String(t.name).Sum64() % uint64(len(brokers)))
				t.rank = slices.Concat(t.rank[n:], t.rank[:n])
			}
		}
		t.queues = slices.Compact(sortQueues(slices.Clone(r.Queues)))
		if e.cfg.Mode == session.Broadcasting && e.active(t) {
			e.broadcast(t)
		}
	}
	if e.cfg.Broken.DropOnEmptyRoute {
		for _, t := range e.topics {
			if !slices.ContainsFunc(ev.Topics, func(r Topic) bool { return r.Name == t.name }) {
				e.gone(t)
			}
		}
	}
	e.route()
}

// gone lets a deleted topic go; it may come back as another one of that name.
func (e *Engine) gone(t *topic) {
	t.brokers, t.queues, t.rank = nil, nil, nil
	e.letGo(t)
	t.forget()
}

// broadcast takes every queue: there is no share and no lease.
func (e *Engine) broadcast(t *topic) {
	p := Pass{Topic: t.name, Trigger: "routes", Strategy: "broadcasting", Members: 1, Queues: len(t.queues)}
	e.apply(t, t.queues, &p)
	if len(p.Gained)+len(p.Given) > 0 {
		e.passedTopic(t, p)
	}
}

// subscribe replaces the subscriptions. A bad list is the shell's mistake and
// changes nothing.
func (e *Engine) subscribe(list []session.Subscription) {
	subs, err := sortSubscriptions(list)
	if err != nil || e.leaving || slices.Equal(subs, e.subs) {
		return
	}
	e.subs = subs
	for _, t := range e.topics {
		if t.subscribed && !slices.ContainsFunc(subs, func(s session.Subscription) bool { return s.Topic == t.name }) {
			t.subscribed = false
			e.letGo(t)
			t.forget()
		}
	}
	for _, s := range subs {
		i, ok := e.topicAt(s.Topic)
		switch {
		case !ok:
			e.topics = slices.Insert(e.topics, i, &topic{name: s.Topic, subscribed: true})
			e.refresh = true
		case !e.topics[i].subscribed:
			e.topics[i].subscribed = true
			e.refresh = true
			if e.cfg.Mode == session.Broadcasting && e.active(e.topics[i]) {
				e.broadcast(e.topics[i])
			}
		}
	}
	e.route()
	if !e.stalled {
		e.sendSubscriptions()
	}
}

func (e *Engine) sendSubscriptions() {
	for _, p := range e.peers {
		if p.phase == welcomed || p.phase == greeting {
			e.send(p, session.Subscribe{Subscriptions: e.subscriptions()})
		}
	}
}

// stall gives everything up: others read while our handlers are stuck.
func (e *Engine) stall() {
	if e.stalled || e.leaving {
		return
	}
	e.stalled = true
	for _, t := range e.topics {
		e.letGo(t)
		t.forget()
	}
	e.sendSubscriptions()
}

func (e *Engine) recovered() {
	if !e.stalled || e.leaving {
		return
	}
	e.stalled = false
	e.sendSubscriptions()
	if e.cfg.Mode == session.Broadcasting {
		for _, t := range e.topics {
			e.broadcast(t)
		}
	}
}

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

// sendReport tells the view broker what has changed in what we own.
func (e *Engine) sendReport(t *topic) {
	touched := t.touched
	t.touched = nil
	p := e.peer(t.using)
	if p == nil || p.phase != welcomed || !e.active(t) {
		return
	}
	busy := slices.ContainsFunc(t.holds, func(h *hold) bool { return h.state == draining || h.state == drained })
	if !t.full && !t.dirty && len(touched) == 0 && busy == t.draining {
		return
	}
	r := session.Report{Topic: t.name, Full: t.full, Expected: t.expected, Draining: busy}
	if t.full {
		for _, h := range t.holds {
			if h.reported() {
				r.Owned = append(r.Owned, session.Owned{Queue: h.queue, Epoch: h.epoch})
			}
		}
	} else {
		slices.SortFunc(touched, allocate.Queue.Compare)
		for _, q := range slices.Compact(touched) {
			if h := t.hold(q); h != nil && h.reported() {
				r.Owned = append(r.Owned, session.Owned{Queue: q, Epoch: h.epoch})
			} else {
				r.NotOwned = append(r.NotOwned, q)
			}
		}
	}
	t.full, t.dirty, t.draining = false, false, busy
	e.send(p, r)
}

// window is the broker's notice window for so many members.
func window(members int) time.Duration {
	if members <= 64 {
		return 20 * time.Millisecond
	}
	return time.Duration(members) * 300 * time.Microsecond
}

// firstPatience is how long a request may wait before the view is looked at
// again; it doubles up to a tick.
func (e *Engine) firstPatience(t *topic) time.Duration {
	members := 0
	if t.last != nil {
		members = len(t.last.members)
	}
	return min(5*window(members), e.cfg.Tick)
}

// watch begins to be patient.
func (e *Engine) watch(t *topic) {
	if t.patienceAt.IsZero() && !e.cfg.Broken.NoHealing {
		t.patience = e.firstPatience(t)
		t.patienceAt = e.now.Add(t.patience)
	}
}

// checkPatience looks at the view again when a request was not answered, or a
// queue of ours is wanted by others, for longer than our patience.
func (e *Engine) checkPatience(t *topic) {
	due := !t.patienceAt.IsZero() && !e.now.Before(t.patienceAt)
	if !t.recount && !due {
		return
	}
	t.recount = false
	var oldest time.Time
	for _, h := range t.holds {
		if (h.state == asked || h.state == owned && h.wanted) && (oldest.IsZero() || h.since.Before(oldest)) {
			oldest = h.since
		}
	}
	switch {
	case oldest.IsZero():
		t.patienceAt = time.Time{}
	case !due:
	case e.now.Before(oldest.Add(t.patience)):
		t.patienceAt = oldest.Add(t.patience)
	default:
		e.fetch(t, "patience")
		if t.patience == e.cfg.Tick {
			for _, h := range t.holds {
				h.wanted = false // from here on ticks look after it
			}
		}
		t.patience = min(2*t.patience, e.cfg.Tick)
		t.patienceAt = e.now.Add(t.patience)
	}
}

// received takes a frame of a broker, in whatever state.
func (e *Engine) received(name string, f session.ToMember) {
	p := e.peer(name)
	if p == nil || p.phase == connecting {
		return
	}
	switch f := f.(type) {
	case session.Welcome:
		e.welcome(p, f)
		return
	case session.Refused:
		e.refused(p, f)
		return
	}
	if p.phase != welcomed {
		return
	}
	switch f := f.(type) {
	case session.HeartbeatAck:
		e.answered(p, f.Seq)
		for _, v := range f.Views {
			e.viewState(p, v)
		}
	case session.ViewAnswer:
		e.viewAnswer(p, f)
	case session.ViewReady:
		e.viewReady(p, f.Topic)
	case session.GroupChanged:
		e.groupChanged(p, f)
	case session.OwnersChanged:
		if t := e.viewed(p, f.Topic); t != nil && f.Owners != t.owners {
			e.fetch(t, "quiet")
		}
	case session.Nudge:
		if t := e.topic(f.Topic); t != nil && e.active(t) && !e.cfg.Broken.NoHealing {
			t.full = true // what we believe to own may not be what is known
			e.fetch(t, "nudge")
		}
	case session.AskMembers:
		e.memberList(p, f)
	case session.Granted:
		e.granted(p, f)
	case session.LeaseWanted:
		e.leaseWanted(p, f)
	case session.Withdrawn:
		e.withdrawn(p, f)
	case session.LeaseLost:
		e.leaseLost(p, f)
	case session.Welcome, session.Refused: // above
	}
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
	if v.Inputs != t.inputs || v.OwnersSettled && v.Owners != t.owners {
		e.fetch(t, "heartbeat")
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
	i := slices.IndexFunc(e.topics, func(t *topic) bool { return a.Seq != 0 && t.fetchSeq == a.Seq })
	if i < 0 || e.topics[i].using != p.name {
		return
	}
	t := e.topics[i]
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
	removed := sortQueues(c.Removed)
	queues := slices.DeleteFunc(slices.Clone(l.queues), func(q allocate.Queue) bool {
		_, ok := slices.BinarySearchFunc(removed, q, allocate.Queue.Compare)
		return ok
	})
	queues = cleanQueues(t.name, append(queues, c.Added...))
	if session.InputsDigest(t.name, queues, members) != c.Inputs {
		e.fetch(t, "notice")
		return
	}
	for i := range members {
		id := members[i].ClientID
		if hasJoined(id) {
			continue // with what it has reported
		}
		for _, q := range l.given[id] {
			members[i].Owned = append(members[i].Owned, session.Owned{Queue: q})
		}
	}
	e.pass(t, "notice", session.View{
		Topic: t.name, Version: c.Version, Queues: queues, Members: members, Inputs: c.Inputs,
		Owners: session.OwnersDigest(t.name, session.Owners(members)),
	})
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
	queues = slices.DeleteFunc(slices.Clone(queues), func(q allocate.Queue) bool { return q.Topic != topic || strings.TrimSpace(q.Broker) == "" })
	return slices.Compact(sortQueues(queues))
}
