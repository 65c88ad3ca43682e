package coordinator

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// State is that of a group.
type State string

// The states. Assigning and Reconciling are those of the consumer protocol,
// Preparing and Completing of the classic one.
const (
	Empty       State = "Empty"
	Gathering   State = "PreparingRebalance"
	Completing  State = "CompletingRebalance"
	Stable      State = "Stable"
	Assigning   State = "Assigning"
	Reconciling State = "Reconciling"
)

type group struct {
	name     string
	consumer bool
	// generation is the classic generation or the group epoch.
	generation coordination.Generation
	exceed     coordination.Generation // the next generation is greater
	members    map[string]*member
	static     map[string]*member // by instance id
	order      []*member          // in the order in which they joined
	idle       alarm              // the group is empty

	// window is on while members of a generation made elsewhere may come back.
	window alarm
	begun  bool // a generation was completed or loaded

	dirty bool
	batch uint64 // the last Persist about the group

	// Classic.
	state     State
	pending   map[string]*alarm // ids that were handed out and have not joined
	leader    string
	assignor  string
	joined    int            // parked joins
	initial   bool           // gathering from nothing
	supports  map[string]int // members by assignor
	newcomer  bool           // somebody came in the last delay
	gatherEnd time.Time
	gather    alarm
	syncs     alarm
	unsynced  map[*member]bool
	storing   uint64 // the Persist of the plan
	head      bool   // the header is to be written

	// Consumer.
	targetEpoch coordination.Generation
	computed    time.Time
	compute     alarm
	lacking     string // a topic whose queues are not known
	owners      map[allocate.Queue]*member
	changed     []*member // with records to write
}

type member struct {
	g                *group
	id               string
	instance         string
	clientID         string
	sessionTimeout   time.Duration
	rebalanceTimeout time.Duration
	sub              coordination.Subscription
	session          alarm
	watching         []string

	// Classic.
	assignors []string
	assigned  []allocate.Queue // also the consumer protocol's current
	fresh     bool             // has not been in a generation
	resumed   bool             // is in one that was made elsewhere
	join      uint64           // parked requests, 0: none
	sync      uint64

	// Consumer.
	assignor string
	target   []allocate.Queue
	epoch    coordination.Generation
	previous coordination.Generation
	revoking []allocate.Queue
	held     bool // something of its target is somebody else's yet
	away     bool
	revoke   alarm
	dirty    dirt
}

// dirt says which records of a member are to be written.
type dirt uint8

const (
	dirtyMember dirt = 1 << iota
	dirtyTarget
	dirtyCurrent
)

func newGroup(name string, consumer bool) *group {
	g := &group{name: name, consumer: consumer, state: Empty, members: map[string]*member{}, static: map[string]*member{}}
	g.window = alarm{kind: alarmWindow, g: g}
	g.idle = alarm{kind: alarmIdle, g: g}
	if consumer {
		g.owners = map[allocate.Queue]*member{}
		g.compute = alarm{kind: alarmTarget, g: g}
	} else {
		g.supports = map[string]int{}
		g.pending, g.unsynced = map[string]*alarm{}, map[*member]bool{}
		g.gather = alarm{kind: alarmGather, g: g}
		g.syncs = alarm{kind: alarmSync, g: g}
	}
	return g
}

// add makes a member. Its session timer is the caller's.
func (c *Coordinator) add(g *group, id, instance, client string, session, rebalance time.Duration) *member {
	m := &member{g: g, id: id, instance: instance, clientID: client, sessionTimeout: session, rebalanceTimeout: rebalance}
	m.session = alarm{kind: alarmSession, g: g, m: m}
	m.revoke = alarm{kind: alarmRevoke, g: g, m: m}
	if a := g.pending[id]; a != nil {
		a.off()
		delete(g.pending, id)
	}
	g.members[id] = m
	g.order = append(g.order, m)
	if instance != "" {
		g.static[instance] = m
	}
	g.idle.off()
	return m
}

// setAssignors replaces the assignors of a classic member.
func (m *member) setAssignors(with []string) {
	for _, a := range m.assignors {
		if m.g.supports[a]--; m.g.supports[a] == 0 {
			delete(m.g.supports, a)
		}
	}
	m.assignors = with
	for _, a := range with {
		m.g.supports[a]++
	}
}

// remove takes a member out and answers what waits of it.
func (c *Coordinator) remove(m *member, text string) {
	g := m.g
	c.refuseParked(m, coordination.UnknownMember, text)
	c.unwatch(m)
	delete(g.members, m.id)
	g.order = slices.DeleteFunc(g.order, func(o *member) bool { return o == m })
	if g.static[m.instance] == m {
		delete(g.static, m.instance)
	}
	delete(g.unsynced, m)
	m.setAssignors(nil)
	m.session.off()
	m.revoke.off()
	if len(g.members) == 0 {
		c.set(&g.idle, c.now.Add(c.cfg.KeepEmpty))
	}
}

// sorted returns the members by id.
func (g *group) sorted() []*member {
	ms := slices.Clone(g.order)
	slices.SortFunc(ms, func(a, b *member) int { return cmp.Compare(a.id, b.id) })
	return ms
}

// keys names all records of the group.
func (g *group) keys() []Key {
	if !g.consumer {
		return []Key{{Group: g.name, Kind: ClassicKind}}
	}
	keys := []Key{{Group: g.name, Kind: ConsumerGroupKind}}
	for _, m := range g.sorted() {
		keys = append(keys, m.keys()...)
	}
	return keys
}

func (m *member) keys() []Key {
	return []Key{{m.g.name, ConsumerMemberKind, m.id}, {m.g.name, ConsumerTargetKind, m.id}, {m.g.name, ConsumerCurrentKind, m.id}}
}

// records appends what is to be written of the group.
func (g *group) records(out []Record) []Record {
	if g.head {
		g.head = false
		if g.consumer {
			out = append(out, ConsumerGroup{Group: g.name, Epoch: g.generation, TargetEpoch: g.targetEpoch, Assignor: g.assignor})
		} else {
			out = append(out, g.classic())
		}
	}
	for _, m := range g.changed {
		d := m.dirty
		m.dirty = 0
		if g.members[m.id] != m {
			continue
		}
		if d&dirtyMember != 0 {
			out = append(out, ConsumerMember{
				Group: g.name, MemberID: m.id, Instance: m.instance, ClientID: m.clientID, Rack: m.sub.Rack,
				RebalanceTimeout: m.rebalanceTimeout, Topics: m.sub.Topics, Assignor: m.assignor,
			})
		}
		if d&dirtyTarget != 0 {
			out = append(out, ConsumerTarget{g.name, m.id, m.target})
		}
		if d&dirtyCurrent != 0 {
			out = append(out, ConsumerCurrent{
				Group: g.name, MemberID: m.id, Epoch: m.epoch, Previous: m.previous,
				Assigned: m.assigned, Revoking: m.revoking, Away: m.away,
			})
		}
	}
	g.changed = nil
	return out
}

func (g *group) classic() Classic {
	r := Classic{Group: g.name, Generation: g.generation, Assignor: g.assignor, Leader: g.leader}
	for _, m := range g.order {
		r.Members = append(r.Members, ClassicMember{
			MemberID: m.id, Instance: m.instance, ClientID: m.clientID, SessionTimeout: m.sessionTimeout,
			RebalanceTimeout: m.rebalanceTimeout, Assignors: m.assignors, Subscription: m.sub, Assigned: m.assigned,
		})
	}
	return r
}

// rewrite has everything written with the next change.
func (g *group) rewrite() {
	g.head = true
	for _, m := range g.order {
		if m.dirty == 0 {
			g.changed = append(g.changed, m)
		}
		m.dirty = dirtyMember | dirtyTarget | dirtyCurrent
	}
}

// load makes the groups of the records.
func (c *Coordinator) load(records []Record) {
	records = slices.Clone(records)
	slices.SortFunc(records, func(a, b Record) int { return a.Key().Compare(b.Key()) })
	var loaded []*group
	for _, r := range records {
		switch r := r.(type) {
		case Classic:
			loaded = append(loaded, c.loadClassic(r))
		case ConsumerGroup:
			g := newGroup(r.Group, true)
			g.generation, g.targetEpoch, g.assignor, g.begun = r.Epoch, r.TargetEpoch, r.Assignor, true
			c.groups[r.Group] = g
			loaded = append(loaded, g)
		case ConsumerMember, ConsumerTarget, ConsumerCurrent:
			c.loadMember(r)
		}
	}
	for _, g := range loaded {
		if c.groups[g.name] != g {
			continue
		}
		if len(g.members) == 0 {
			c.set(&g.idle, c.now.Add(c.cfg.KeepEmpty))
		}
		if g.consumer {
			c.loaded(g)
		}
	}
}

func (c *Coordinator) loadClassic(r Classic) *group {
	g := newGroup(r.Group, false)
	g.generation, g.assignor, g.leader, g.begun = r.Generation, r.Assignor, r.Leader, true
	for _, rm := range r.Members {
		m := c.add(g, rm.MemberID, rm.Instance, rm.ClientID, rm.SessionTimeout, rm.RebalanceTimeout)
		m.sub, m.assigned = rm.Subscription, rm.Assigned
		m.setAssignors(unique(rm.Assignors))
		c.set(&m.session, c.now.Add(m.sessionTimeout))
		g.state = Stable
	}
	// A generation that was gathered and not completed is not on disk: the next one
	// must not have its number.
	g.mustExceed(coordination.Generation{Broker: g.generation.Broker, Counter: g.generation.Counter + 1})
	c.groups[g.name] = g
	return g
}

// loadMember takes a record of a member; those of a group come after its head, and
// what a member said of itself before what it has.
func (c *Coordinator) loadMember(r Record) {
	k := r.Key()
	g := c.groups[k.Group]
	if g == nil || !g.consumer {
		return
	}
	m := g.members[k.MemberID]
	switch r := r.(type) {
	case ConsumerMember:
		m = c.add(g, r.MemberID, r.Instance, r.ClientID, c.cfg.ConsumerSession, r.RebalanceTimeout)
		m.sub.Topics, m.sub.Rack, m.assignor = r.Topics, r.Rack, r.Assignor
		c.watch(m)
		c.set(&m.session, c.now.Add(m.sessionTimeout))
	case ConsumerTarget:
		if m != nil {
			m.target = r.Queues
		}
	case ConsumerCurrent:
		if m != nil {
			m.epoch, m.previous, m.assigned, m.revoking, m.away = r.Epoch, r.Previous, r.Assigned, r.Revoking, r.Away
		}
	case Classic, ConsumerGroup:
	}
}

func joinTexts(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	return strings.Join(parts, ": ")
}
