package sim

import (
	"fmt"
	"time"

	"github.com/tacitmq/tacit/internal/rocketmq"
	nsroute "github.com/tacitmq/tacit/nameserver/route"
	"github.com/tacitmq/tacit/route"
)

// NameServer is a name server process: the real tables, all in memory.
type NameServer struct {
	node
	w     *World
	table *nsroute.Table
	wake  int
	// polled has the tables in place of table, in a model whose routes are not pushed.
	polled *rocketmq.NameServer
}

const (
	registerInterval = 3 * time.Second
	brokerExpiry     = 10 * time.Second
)

func (w *World) addNameServer() *NameServer {
	n := &NameServer{node: node{name: fmt.Sprintf("n%d", len(w.nameServers)+1)}, w: w}
	w.nameServers = append(w.nameServers, n)
	return n
}

// start begins a life with empty tables. Brokers and clients notice that their
// streams ended and come back, each in its own time.
func (n *NameServer) start() {
	n.life++
	n.up = true
	if n.w.opt.Model == RocketMQ {
		n.w.logf("%-8s starts", n.name)
		n.startPolled()
		return
	}
	table, err := nsroute.New(nsroute.Config{Expiry: brokerExpiry, MaxBrokers: 100, MaxTopics: 100}, n.w.now)
	if err != nil {
		n.w.check.fail("start", "%s: %v", n.name, err)
		return
	}
	n.table = table
	n.w.logf("%-8s starts", n.name)
	n.arm()
	for _, b := range n.w.brokers {
		if b.up {
			life := b.life
			n.w.after(n.w.between(50*time.Millisecond, 2*time.Second), func() { b.do(life, func() { b.register(n) }) })
		}
	}
	for _, o := range n.w.observers() {
		life := o.node.life
		if o.node.up {
			n.w.after(n.w.between(50*time.Millisecond, 2*time.Second), func() { o.node.do(life, func() { o.ask(n) }) })
		}
	}
}

func (n *NameServer) stop() {
	n.w.logf("%-8s stops", n.name)
	n.up = false
	for _, o := range n.w.observers() {
		life := o.node.life
		n.w.transit(n.name, o.node.name, n.w.now, func() {
			o.node.do(life, func() { o.hear(n, nil) })
		})
	}
}

// arm wakes the tables when a broker may have been silent for too long.
func (n *NameServer) arm() {
	n.wake++
	wake, life := n.wake, n.life
	n.w.at(n.table.Wake(n.w.now), func() {
		n.do(life, func() {
			if n.wake != wake {
				return
			}
			change := n.table.Expire(n.w.now)
			for _, b := range change.Expired {
				n.w.logf("%-8s drops %s", n.name, b.Name)
			}
			n.push(change)
			n.arm()
		})
	})
}

// apply takes a broker's word; it reports whether the broker must send all.
func (n *NameServer) apply(m nsroute.Register) (needFull bool) {
	res, err := n.table.Apply(n.w.now, m)
	if err != nil {
		n.w.check.fail("ns", "%s: %v", n.name, err)
		return false
	}
	n.push(res.Change)
	n.arm()
	return res.NeedFull
}

// push tells every observer, as watches do.
func (n *NameServer) push(c nsroute.Change) {
	if len(c.Topics) == 0 && !c.Brokers {
		return
	}
	for _, o := range n.w.observers() {
		n.tell(o)
	}
}

func (n *NameServer) tell(o *observer) {
	snap := n.table.Snapshot(n.w.now)
	u := route.Update{Full: true, Warming: snap.Warming, Topics: snap.All()}
	if n.w.opt.Model == Coordinated { // brokers must know each other
		u.HasBrokers, u.Brokers = true, snap.Brokers()
	}
	life := o.node.life
	o.last = n.w.transit(n.name, o.node.name, o.last, func() { o.node.do(life, func() { o.hear(n, &u) }) })
}

// observer is the part of a member or broker that watches all name servers and
// merges what they say.
type observer struct {
	w     *World
	node  *node
	table *route.Table
	last  time.Time // arrival of the last push, to keep order
	read  func()    // the merged routes may be other ones now
	heard map[string]time.Time
}

func newObserver(w *World, n *node, read func()) *observer {
	return &observer{w: w, node: n, table: route.NewTable(), read: read, heard: map[string]time.Time{}}
}

func (w *World) observers() []*observer {
	var out []*observer
	for _, b := range w.brokers {
		if b.routes != nil {
			out = append(out, b.routes)
		}
	}
	for _, m := range w.members {
		if m.routes != nil {
			out = append(out, m.routes)
		}
	}
	return out
}

// askAll reads the routes of all name servers anew, as each tick does.
func (o *observer) askAll() {
	for _, n := range o.w.nameServers {
		o.ask(n)
	}
}

// ask is one read: without an answer within three seconds the name server counts
// as unreachable.
func (o *observer) ask(n *NameServer) {
	life, asked := o.node.life, o.w.now
	o.w.transit(o.node.name, n.name, o.w.now, func() {
		if n.up {
			n.do(n.life, func() { n.tell(o) })
		}
	})
	o.w.after(3*time.Second, func() {
		o.node.do(life, func() {
			if o.heard[n.name].Before(asked) {
				o.hear(n, nil)
			}
		})
	})
}

// hear takes an answer or push; nil says that the name server is unreachable.
func (o *observer) hear(n *NameServer, u *route.Update) {
	if o.w.opt.MemberBroken.DropOnEmptyRoute { // the variant: the last word is the whole truth
		if u == nil {
			u = &route.Update{Full: true}
		}
		u.Warming = false
		o.table = route.NewTable()
	}
	if u == nil {
		o.table.Unreachable(n.name)
	} else {
		o.heard[n.name] = o.w.now
		o.table.Apply(n.name, *u)
	}
	o.read()
}

// known reports the merged route of a topic, and whether it is gone for certain.
func (o *observer) known(topic string) (t route.Topic, absent bool) {
	t, k := o.table.Lookup(topic)
	return t, k == route.Absent
}
