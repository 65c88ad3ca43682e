package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// Coordinator is the coordinator of the groups that one broker serves. It has one
// owner: no two calls at once.
type Coordinator struct {
	cfg    Config
	groups map[string]*group
	parked map[uint64]*member // joins and syncs, by request

	hosted  bool // Hosting came
	brokers []string
	topics  map[string][]allocate.Queue
	watched map[string]int // groups and members that subscribe
	rewatch bool

	timers timers
	seq    uint64
	wakeAt time.Time

	persistID uint64
	persisted uint64
	stores    []stored // batches on their way to the disk
	waiting   []late   // answers that wait for them, oldest first
	late      []late   // of this step
	dirty     []*group // with records to write
	deleted   []Key
	again     []Key // to be deleted with the next records: that failed once

	now time.Time
	out []Effect
}

// late is an answer that leaves once the group's records are on disk.
type late struct {
	g      *group
	batch  uint64
	id     uint64
	answer coordination.Answer
}

// stored is a batch and the groups it is about.
type stored struct {
	id      uint64
	groups  []*group
	deleted []Key
}

// New returns the coordinator that goes on from records, and what is to be done at
// once. Every member's session begins now.
func New(cfg Config, records []Record, now time.Time) (*Coordinator, []Effect, error) {
	if err := cfg.validate(); err != nil {
		return nil, nil, fmt.Errorf("new coordinator: %w", err)
	}
	c := &Coordinator{
		cfg: cfg, groups: map[string]*group{}, parked: map[uint64]*member{},
		topics: map[string][]allocate.Queue{}, watched: map[string]int{}, now: now,
	}
	c.load(records)
	return c, c.flush(), nil
}

// Step applies ev at now.
func (c *Coordinator) Step(now time.Time, ev Event) []Effect {
	c.now = now
	switch ev := ev.(type) {
	case Wake:
		c.wakeAt = time.Time{}
		c.wake()
	case Request:
		c.request(ev.ID, ev.Request)
	case Cancelled:
		c.cancelled(ev.ID)
	case Persisted:
		c.persistDone(ev.ID, ev.Failed)
	case Topics:
		c.setTopics(ev.Queues)
	case Hosting:
		c.setHosting(ev.Brokers)
	}
	return c.flush()
}

func (c *Coordinator) emit(e Effect) { c.out = append(c.out, e) }

func (c *Coordinator) answer(id uint64, a coordination.Answer) { c.emit(Answer{id, a}) }

// answerLate answers when everything known of g is on disk.
func (c *Coordinator) answerLate(g *group, id uint64, a coordination.Answer) {
	c.late = append(c.late, late{g: g, id: id, answer: a})
}

func (c *Coordinator) happened(g *group, what What, m *member, reason string) {
	h := Happened{Group: g.name, What: what, Reason: reason, Generation: g.generation, Members: len(g.members)}
	if m != nil {
		h.Member = m.id
	}
	c.emit(h)
}

// flush ends a step: records, answers that wait for them, topics, the next Wake.
func (c *Coordinator) flush() []Effect {
	if len(c.dirty)+len(c.deleted) > 0 {
		c.store()
	}
	for _, l := range c.late {
		if l.batch = l.g.batch; l.batch > c.persisted {
			c.waiting = append(c.waiting, l)
		} else {
			c.answer(l.id, l.answer)
		}
	}
	c.late = c.late[:0]
	if c.rewatch {
		c.rewatch = false
		c.emit(Watch{slices.Sorted(maps.Keys(c.watched))})
	}
	c.announce()
	out := c.out
	c.out = nil
	return out
}

// store writes what changed.
func (c *Coordinator) store() {
	c.persistID++
	for _, k := range c.again {
		if !c.lives(k) {
			c.deleted = append(c.deleted, k)
		}
	}
	c.again = nil
	p := Persist{ID: c.persistID, Delete: c.deleted}
	s := stored{id: p.ID}
	for _, g := range c.dirty {
		p.Put = g.records(p.Put)
		g.dirty, g.batch = false, p.ID
		s.groups = append(s.groups, g)
	}
	// What was deleted and is written again in one step is written.
	put := make(map[Key]bool, len(p.Put))
	if len(p.Delete) > 0 {
		for _, r := range p.Put {
			put[r.Key()] = true
		}
		p.Delete = slices.DeleteFunc(p.Delete, func(k Key) bool { return put[k] })
	}
	c.dirty, c.deleted = nil, nil
	if len(p.Put)+len(p.Delete) == 0 {
		c.persistID--
		for _, g := range s.groups {
			g.batch = min(g.batch, c.persistID)
		}
		return
	}
	s.deleted = p.Delete
	c.stores = append(c.stores, s)
	c.emit(p)
}

// persistDone takes the disk's answer.
func (c *Coordinator) persistDone(id uint64, failed bool) {
	if id > c.persistID || id <= c.persisted {
		return
	}
	c.persisted = id
	n := 0
	for n < len(c.stores) && c.stores[n].id <= id {
		s := c.stores[n]
		if failed && s.id == id {
			c.again = append(c.again, s.deleted...)
		}
		for _, g := range s.groups {
			if c.groups[g.name] != g {
				continue
			}
			if failed && s.id == id {
				c.notStored(g)
			} else if g.storing == s.id {
				c.stabilize(g)
			}
		}
		n++
	}
	c.stores = slices.Delete(c.stores, 0, n)
	n = 0
	for n < len(c.waiting) && c.waiting[n].batch <= id {
		l := c.waiting[n]
		if failed && l.batch == id {
			l.answer = refuse(l.answer, coordination.NotAvailable, "what the answer would say could not be stored")
		}
		c.answer(l.id, l.answer)
		n++
	}
	c.waiting = slices.Delete(c.waiting, 0, n)
}

// notStored goes on without the records: a plan that is not on disk is dropped, the
// rest is written again with the group's next change.
func (c *Coordinator) notStored(g *group) {
	c.happened(g, NotStored, nil, "")
	if g.consumer {
		g.rewrite()
		return
	}
	if g.storing != 0 {
		c.prepare(g, "the assignment could not be stored")
	}
}

// lives says that there is something to store under the key.
func (c *Coordinator) lives(k Key) bool {
	g := c.groups[k.Group]
	switch {
	case g == nil || g.consumer == (k.Kind == ClassicKind):
		return false
	case k.MemberID == "":
		return true
	}
	return g.members[k.MemberID] != nil
}

// touch says that g has something to write.
func (c *Coordinator) touch(g *group) {
	if !g.dirty {
		g.dirty = true
		c.dirty = append(c.dirty, g)
	}
}

func (c *Coordinator) cancelled(id uint64) {
	c.waiting = slices.DeleteFunc(c.waiting, func(l late) bool { return l.id == id })
	m := c.parked[id]
	if m == nil {
		return
	}
	delete(c.parked, id)
	if m.join == id {
		m.join = 0
		m.g.joined--
	}
	if m.sync == id {
		m.sync = 0
	}
	c.set(&m.session, c.now.Add(m.sessionTimeout))
}

// setTopics takes the queues of topics.
func (c *Coordinator) setTopics(queues map[string][]allocate.Queue) {
	fresh := make(map[string][]allocate.Queue, len(queues))
	changed := map[string]bool{}
	for t, qs := range queues {
		qs = slices.Clone(qs)
		slices.SortFunc(qs, allocate.Queue.Compare)
		qs = slices.Compact(qs)
		fresh[t] = qs
		old, known := c.topics[t]
		if !known || !slices.Equal(old, qs) {
			changed[t] = true
		}
	}
	c.topics = fresh
	if len(changed) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		if g := c.groups[name]; g.consumer {
			c.topicsChanged(g, changed)
		} else if g.resuming() {
			c.tryComplete(g)
		}
	}
}

// setHosting takes the list of live brokers.
func (c *Coordinator) setHosting(brokers []string) {
	c.hosted, c.brokers = true, slices.Clone(brokers)
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		if host := coordination.Host(name, c.brokers); host != c.cfg.Broker {
			c.forget(c.groups[name], Unloaded, "coordinated by "+host)
		}
	}
}

// forget drops a group and its records. Who waits for an answer is told to look for
// the coordinator again, or to say what it knows.
func (c *Coordinator) forget(g *group, what What, reason string) {
	c.happened(g, what, nil, reason)
	code := coordination.LoadInProgress
	if what == Unloaded {
		code = coordination.NotCoordinator
		for _, ls := range [][]late{c.waiting, c.late} {
			for i := range ls {
				if ls[i].g == g {
					ls[i].answer = refuse(ls[i].answer, code, reason)
				}
			}
		}
	}
	for _, m := range g.sorted() {
		c.refuseParked(m, code, reason)
	}
	c.deleted = append(c.deleted, g.keys()...)
	if g.dirty {
		g.dirty = false
		c.dirty = slices.DeleteFunc(c.dirty, func(o *group) bool { return o == g })
	}
	for _, m := range g.sorted() {
		c.unwatch(m)
	}
	delete(c.groups, g.name)
}

// watch counts the topics of m.
func (c *Coordinator) watch(m *member) {
	if m.watching != nil {
		c.unwatch(m)
	}
	m.watching = m.sub.Topics
	for _, t := range m.watching {
		c.watched[t]++
		c.rewatch = c.rewatch || c.watched[t] == 1
	}
}

func (c *Coordinator) unwatch(m *member) {
	for _, t := range m.watching {
		if c.watched[t]--; c.watched[t] == 0 {
			delete(c.watched, t)
			c.rewatch = true
		}
	}
	m.watching = nil
}
