package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// Violation is a broken promise.
type Violation struct {
	Rule string // S1 ... L3
	Text string
	At   time.Duration // since the beginning
}

func (v *Violation) String() string {
	return fmt.Sprintf("%s at %.4fs: %s", v.Rule, v.At.Seconds(), v.Text)
}

// checker watches every grant, dispatch and commit.
type checker struct {
	w         *World
	violation *Violation

	latest     map[lease.Key]session.Epoch // newest epoch granted
	dispatches map[lease.Key]lastDispatch
	stores     map[lease.Key]int64
	seen       map[lease.Key]map[int64]int // hand-outs per message
	handledMap map[lease.Key]map[int64]bool
	calm       bool // no failure was injected: S4 counts
	still      bool // no queue may change hands: L2

	owners     map[lease.Key]string // last owner, for moves
	moved      int
	stopped    int // queues that live members were told to stop
	duplicates int
	dirty      bool
	settled    bool
	settledAt  time.Time
}

type lastDispatch struct {
	epoch  session.Epoch
	member *Member
	life   int
}

func newChecker(w *World) *checker {
	return &checker{
		w:          w,
		latest:     map[lease.Key]session.Epoch{},
		dispatches: map[lease.Key]lastDispatch{},
		stores:     map[lease.Key]int64{},
		seen:       map[lease.Key]map[int64]int{},
		handledMap: map[lease.Key]map[int64]bool{},
		owners:     map[lease.Key]string{},
		calm:       true,
	}
}

func (c *checker) failed() bool { return c.violation != nil }

func (c *checker) fail(rule, format string, args ...any) {
	if c.violation != nil {
		return
	}
	c.violation = &Violation{Rule: rule, Text: fmt.Sprintf(format, args...), At: c.w.now.Sub(beginning())}
	c.w.logf("VIOLATION %s: %s", rule, c.violation.Text)
}

func (c *checker) exclusive() bool { return c.w.opt.Mode == session.Exclusive && c.w.opt.Watch == nil }

// granted sees each grant as it is sent.
func (c *checker) granted(b *Broker, key lease.Key, g session.Grant) {
	if !c.exclusive() {
		return
	}
	last := c.latest[key]
	switch {
	case g.Kept && g.Epoch != last && !last.IsZero():
		c.fail("S1", "%s keeps %v under %v though %v was granted since", b.name, key.Queue, g.Epoch, last)
	case !g.Kept && g.Epoch.Compare(last) <= 0:
		c.fail("S1", "%s grants %v under %v, not above %v", b.name, key.Queue, g.Epoch, last)
	}
	if rec := b.records[key]; rec.Epoch != g.Epoch {
		c.fail("S1", "%s sends the grant of %v under %v before it is stored (%v is)", b.name, key.Queue, g.Epoch, rec.Epoch)
	}
	c.latest[key] = g.Epoch
}

// stored sees each lease record as it reaches the disk.
func (c *checker) stored(b *Broker, old, now lease.Record) {
	if now.Epoch.Compare(old.Epoch) < 0 {
		c.fail("S1", "%s stores %v epoch %v after %v", b.name, now.Queue, now.Epoch, old.Epoch)
	}
}

// committed sees the answer of each commit.
func (c *checker) committed(b *Broker, key lease.Key, e session.Epoch, err error) {
	if err != nil || !c.exclusive() {
		return
	}
	if last := c.latest[key]; e.Compare(last) < 0 && !e.IsZero() {
		c.fail("S2", "%s accepts a commit of %v under %v though %v was granted", b.name, key.Queue, e, last)
	}
	if stored := b.offsets[key]; stored < c.stores[key] {
		c.fail("S2", "%s: offset of %v went from %d back to %d", b.name, key.Queue, c.stores[key], stored)
	}
	c.stores[key] = b.offsets[key]
}

// assigned sees a member take a queue into dispatch.
func (c *checker) assigned(m *Member, p *process) {
	key := lease.Key{Group: m.group, Queue: p.queue}
	if c.exclusive() {
		for _, o := range c.w.members {
			if o == m || !o.up || o.group != m.group {
				continue
			}
			if q := o.procs[p.queue]; q != nil && o.may(q) {
				c.fail("S1", "%v: %s may dispatch under %v while %s still may under %v", p.queue, m.name, p.epoch, o.name, q.epoch)
			}
		}
	}
	if old, ok := c.owners[key]; ok && old != m.name {
		c.moved++
		if c.still {
			c.fail("L2", "%v moves from %s to %s", p.queue, old, m.name)
		}
	}
	c.owners[key] = m.name
	c.changed()
}

// dispatched sees each message handed to a handler.
func (c *checker) dispatched(m *Member, p *process, offset int64) {
	if c.w.opt.Watch != nil {
		return
	}
	key := lease.Key{Group: m.group, Queue: p.queue}
	if c.exclusive() {
		last := c.dispatches[key]
		switch {
		case p.epoch.Compare(last.epoch) < 0:
			c.fail("S1", "%v: %s dispatches under %v after %s did under %v", p.queue, m.name, p.epoch, last.member.name, last.epoch)
		case p.epoch == last.epoch && last.member != nil && (last.member != m || last.life != m.life):
			c.fail("S1", "%v: %s and %s both dispatch under %v", p.queue, last.member.name, m.name, p.epoch)
		}
		c.dispatches[key] = lastDispatch{p.epoch, m, m.life}
	}
	if offset < p.floor {
		c.fail("S2", "%v: %s hands out message %d under %v, which was granted at %d", p.queue, m.name, offset, p.epoch, p.floor)
	}
	seen := c.seen[key]
	if seen == nil {
		seen = map[int64]int{}
		c.seen[key] = seen
	}
	seen[offset]++
	if seen[offset] > 1 {
		c.duplicates++
		if c.calm && c.exclusive() {
			c.fail("S4", "%v: message %d handed out again, to %s under %v, without any failure", p.queue, offset, m.name, p.epoch)
		}
	}
}

func (c *checker) handled(m *Member, p *process, offset int64) {
	if c.w.opt.Watch != nil {
		return
	}
	key := lease.Key{Group: m.group, Queue: p.queue}
	done := c.handledMap[key]
	if done == nil {
		done = map[int64]bool{}
		c.handledMap[key] = done
	}
	done[offset] = true
}

// revoked sees a member stop handing a queue out.
func (c *checker) revoked(m *Member, p *process) {
	if c.still {
		c.fail("L2", "%s gives up %v", m.name, p.queue)
	}
	c.stopped++
	c.changed()
}

// lost sees a member stop at once.
func (c *checker) lost() {
	c.stopped++
	c.changed()
}

// quietSignal sees a broker push the ownership: it must not while a member of the
// view drains and has long said so. Only links without faults tell in time. A
// member that leaves or unsubscribes is out of the view, and its drains with it.
func (c *checker) quietSignal(b *Broker, group, topic string) {
	if !c.calm || c.w.opt.Watch != nil || !c.w.viewBroker(b, group, topic) {
		return
	}
	for _, m := range c.w.members {
		if !m.takesPart() || m.group != group || !slices.Contains(m.topics, topic) {
			continue
		}
		for _, p := range m.sorted() {
			if p.queue.Topic == topic && p.revoking && min(c.w.now.Sub(p.revoked), c.w.now.Sub(m.since)) > 150*time.Millisecond {
				c.fail("C1", "%s pushes the ownership of %s while %s drains %v", b.name, topic, m.name, p.queue)
			}
		}
	}
}

// rewound sees an operator's reset reach the disk: the one way back for an offset.
func (c *checker) rewound(o lease.Offset) { c.stores[o.Key] = o.Offset }

// refused sees a broker turn a member away for good. That one came that does not
// agree with its group must not cost a member that was there before.
func (c *checker) refused(m *Member) {
	switch m.failed {
	case session.ReasonModeMismatch, session.ReasonStrategyMismatch, session.ReasonFilterMismatch, session.ReasonBadRequest:
		if m.misfit == "" {
			c.fail("S5", "%s is refused: %v", m.name, m.failed)
		}
	default:
	}
}

func (c *checker) changed() { c.dirty = true }

// settledNow reports whether each readable queue has exactly one owner among the
// live subscribers and loads are balanced; the text says what is wrong.
func (c *checker) settledNow() (bool, string) {
	type part struct{ group, topic string }
	members := map[part][]*Member{}
	var parts []part
	for _, m := range c.w.members {
		if !m.takesPart() {
			continue
		}
		for _, t := range m.topics {
			k := part{m.group, t}
			if members[k] == nil {
				parts = append(parts, k)
			}
			members[k] = append(members[k], m)
		}
	}
	for _, k := range parts {
		// Who is cut off from a broker for good is left out, as long as somebody
		// else is not.
		well := slices.DeleteFunc(slices.Clone(members[k]), func(m *Member) bool { return c.w.cutOff(m, k.topic) })
		if len(well) == 0 {
			continue
		}
		for _, m := range members[k] {
			for q := range m.procs {
				// Without leases nothing tells a member that hears nobody.
				if q.Topic == k.topic && c.w.cutOff(m, k.topic) && c.exclusive() {
					return false, fmt.Sprintf("%s is cut off from a broker of %s but holds %v", m.name, k.topic, q)
				}
			}
		}
		members[k] = well
		total := 0
		owner := map[allocate.Queue]*Member{}
		for _, m := range members[k] {
			load := 0
			for _, p := range m.sorted() {
				if p.queue.Topic != k.topic {
					continue
				}
				if p.revoking || !m.may(p) {
					return false, fmt.Sprintf("%s holds %v but may not dispatch", m.name, p.queue)
				}
				if o := owner[p.queue]; o != nil {
					return false, fmt.Sprintf("%v owned by %s and %s", p.queue, o.name, m.name)
				}
				owner[p.queue] = m
				load++
			}
			total += load
		}
		queues := 0
		for _, b := range c.w.brokers {
			if !b.up {
				continue
			}
			for _, q := range b.localQueues() {
				if q.Topic != k.topic {
					continue
				}
				queues++
				if owner[q] == nil {
					return false, fmt.Sprintf("group %s: %v has no owner", k.group, q)
				}
			}
		}
		if total != queues {
			return false, fmt.Sprintf("group %s topic %s: %d owned of %d queues", k.group, k.topic, total, queues)
		}
		for _, m := range members[k] {
			load := 0
			for q := range m.procs {
				if q.Topic == k.topic {
					load++
				}
			}
			if n := len(members[k]); load < queues/n || load > (queues+n-1)/n {
				return false, fmt.Sprintf("group %s topic %s: %s has %d of %d queues among %d members", k.group, k.topic, m.name, load, queues, n)
			}
		}
	}
	return true, ""
}

// watch notes when the group became settled last.
func (c *checker) watch() {
	if !c.dirty || c.w.opt.Watch != nil {
		return
	}
	c.dirty = false
	ok, _ := c.settledNow()
	if ok && !c.settled {
		c.settledAt = c.w.now
	}
	c.settled = ok
}

// final checks what must hold after the quiet time.
func (c *checker) final() {
	if ok, why := c.settledNow(); !ok {
		c.fail("L1", "not settled after the quiet time: %s", why)
		return
	}
	for _, m := range c.w.members {
		if m.up && m.misfit != "" {
			c.fail("S5", "%s differs from its group in its %s and is not refused", m.name, m.misfit)
		}
	}
	for _, b := range c.w.brokers {
		if !b.up {
			continue
		}
		for _, q := range b.localQueues() {
			for _, g := range c.w.groupsOf(q.Topic, b.name) {
				key := lease.Key{Group: g, Queue: q}
				for o := range b.ends[q] {
					if !c.handledMap[key][o] {
						c.fail("S3", "group %s: message %d of %v was never handled (of %d)", g, o, q, b.ends[q])
						return
					}
				}
			}
		}
	}
}

// groupsOf lists the groups with a live subscriber of the topic that can reach the
// broker.
func (w *World) groupsOf(topic, broker string) []string {
	var out []string
	for _, m := range w.members {
		if m.up && slices.Contains(m.topics, topic) && !w.forGood[link{m.name, broker}] && !slices.Contains(out, m.group) {
			out = append(out, m.group)
		}
	}
	return out
}

// cutOff reports whether a member is, for good, cut off from a broker of the topic.
func (w *World) cutOff(m *Member, topic string) bool {
	for _, b := range w.brokers {
		if _, hosts := b.topics[topic]; hosts && w.forGood[link{m.name, b.name}] {
			return true
		}
	}
	return false
}

// viewBroker reports whether b is the first in rank for the view.
func (w *World) viewBroker(b *Broker, group, topic string) bool {
	var hosts []string
	for _, o := range w.brokers {
		if _, ok := o.topics[topic]; ok {
			hosts = append(hosts, o.name)
		}
	}
	return len(hosts) > 0 && session.RankBrokers(group, topic, hosts)[0] == b.name
}
