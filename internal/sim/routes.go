package sim

import (
	"maps"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// directory is the name servers' part as members and brokers see it: who hosts
// which topic. Each observer keeps the last route it could read, so an
// unreachable or empty name server removes nothing.
type directory struct {
	w       *World
	entries map[string]entry            // by broker
	seen    map[string]map[string]entry // what each observer last read
	down    bool
}

type entry struct {
	broker string
	epoch  uint64
	config uint64
	topics map[string]int32
	gone   bool
}

type topicRoute struct {
	name    string
	brokers []string
	queues  []allocate.Queue
}

func newDirectory(w *World) *directory {
	return &directory{w: w, entries: map[string]entry{}, seen: map[string]map[string]entry{}}
}

func (d *directory) register(b *Broker) {
	d.entries[b.name] = entry{b.name, b.epoch, b.config, maps.Clone(b.topics), false}
	d.changed()
}

// lost expires a broker whose registration stream broke, if it stays away.
func (d *directory) lost(b *Broker) {
	life := b.life
	d.w.after(d.w.opt.SessionTimeout, func() {
		if e := d.entries[b.name]; !d.down && (!b.up || b.life != life) && e.epoch == b.epoch && !b.up {
			e.gone = true
			d.entries[b.name] = e
			d.w.logf("routes   %s expired", b.name)
			d.changed()
		}
	})
}

func (d *directory) changed() {
	for _, m := range d.w.members {
		d.push(m.name, &m.node, m.readRoutes)
	}
	for _, b := range d.w.brokers {
		d.push(b.name, &b.node, b.readRoutes)
	}
}

func (d *directory) push(name string, n *node, read func()) {
	life := n.life
	if !n.up {
		return
	}
	d.w.after(d.w.delay(), func() { n.do(life, read) })
}

// seenBy reads the routes as the observer, or answers what it read last.
func (d *directory) seenBy(observer string) []topicRoute {
	known := d.seen[observer]
	if known == nil {
		known = map[string]entry{}
		d.seen[observer] = known
	}
	if !d.down && !d.w.link(observer, "ns").cut {
		for name, e := range d.entries {
			known[name] = e
		}
	}
	byTopic := map[string]*topicRoute{}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		e := known[name]
		if e.gone {
			continue
		}
		for t, n := range e.topics {
			r := byTopic[t]
			if r == nil {
				r = &topicRoute{name: t}
				byTopic[t] = r
			}
			r.brokers = append(r.brokers, name)
			for id := range n {
				r.queues = append(r.queues, allocate.Queue{Topic: t, Broker: name, ID: id})
			}
		}
	}
	out := make([]topicRoute, 0, len(byTopic))
	for _, t := range slices.Sorted(maps.Keys(byTopic)) {
		slices.SortFunc(byTopic[t].queues, session.CompareQueues)
		slices.Sort(byTopic[t].brokers)
		out = append(out, *byTopic[t])
	}
	return out
}

func (d *directory) setDown(down bool) {
	d.down = down
	d.w.logf("routes   name server down %v", down)
	if !down {
		d.changed()
	}
}

func sortedKeys[K interface{ ~uint64 | ~string }, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

// readable reports whether the observer could reach a name server just now.
func (d *directory) readable(observer string) bool {
	return !d.down && !d.w.link(observer, "ns").cut
}
