package rocketmq

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Channel is a connection of a client to a broker.
type Channel uint64

// OffsetKey is whose offset it is, and of which queue.
type OffsetKey struct {
	Group string
	Queue allocate.Queue
}

// StoredOffset is an offset in the broker's file.
type StoredOffset struct {
	OffsetKey
	Offset int64
}

// BrokerEvent is what a broker is told.
//
//sumtype:decl
type BrokerEvent interface{ brokerEvent() }

// Events of a broker.
type (
	// BrokerWake says that the time of the last BrokerWakeAt has come.
	BrokerWake struct{}
	// Received is a request on a connection.
	Received struct {
		Channel Channel
		ID      uint64
		Request Request
	}
	// Closed is the end of a connection: closed, failed or idle.
	Closed struct{ Channel Channel }
)

func (BrokerWake) brokerEvent() {}
func (Received) brokerEvent()   {}
func (Closed) brokerEvent()     {}

// BrokerEffect is what a broker wants done.
//
//sumtype:decl
type BrokerEffect interface{ brokerEffect() }

// Effects of a broker.
type (
	// BrokerWakeAt asks for a BrokerWake then.
	BrokerWakeAt struct{ At time.Time }
	// Reply answers a request.
	Reply struct {
		Channel Channel
		ID      uint64
		Answer  Answer
	}
	// Notify sends a notice to connections, at once. The list is shared: not to be changed.
	Notify struct {
		Channels []Channel
		Notice   Notice
	}
	// Close closes a connection whose heartbeats stayed away.
	Close struct{ Channel Channel }
	// CreateTopic makes a topic with one queue, unless it is there.
	CreateTopic struct{ Topic string }
	// WriteFile stores offsets.
	WriteFile struct{ Offsets []StoredOffset }
)

func (BrokerWakeAt) brokerEffect() {}
func (Reply) brokerEffect()        {}
func (Notify) brokerEffect()       {}
func (Close) brokerEffect()        {}
func (CreateTopic) brokerEffect()  {}
func (WriteFile) brokerEffect()    {}

// Broker is a broker's table of consumers (ConsumerManager) and its offsets
// (ConsumerOffsetManager). It asks nobody whose a queue is.
type Broker struct {
	timers  Timers
	groups  map[string]*consumers
	offsets map[OffsetKey]int64
	dirty   map[OffsetKey]bool

	scan, file time.Time // when they are next
	out        []BrokerEffect
}

// consumers are the connections of a group, and what it subscribes to by its last
// heartbeat.
type consumers struct {
	channels map[Channel]*consumer
	topics   []string
	// Made from channels when asked for after a change, and shared then: list is only
	// added to.
	ids  []string
	list []Channel
}

type consumer struct {
	id   string
	seen time.Time // last heartbeat
}

// NewBroker starts a broker with the offsets of its file.
func NewBroker(timers Timers, file []StoredOffset, now time.Time) (*Broker, []BrokerEffect) {
	b := &Broker{
		timers: timers, groups: make(map[string]*consumers),
		offsets: make(map[OffsetKey]int64), dirty: make(map[OffsetKey]bool),
		scan: now.Add(scanInterval), file: now.Add(fileInterval),
	}
	for _, o := range file {
		b.offsets[o.OffsetKey] = o.Offset
	}
	b.wake()
	return b, b.out
}

// Step applies ev at now.
func (b *Broker) Step(now time.Time, ev BrokerEvent) []BrokerEffect {
	b.out = nil
	switch ev := ev.(type) {
	case BrokerWake:
		if !now.Before(b.scan) {
			b.scan = now.Add(scanInterval)
			b.expire(now)
		}
		if !now.Before(b.file) {
			b.file = now.Add(fileInterval)
			b.write()
		}
		b.wake()
	case Received:
		b.received(now, ev)
	case Closed:
		for _, name := range b.names() {
			if b.remove(name, ev.Channel) {
				b.notify(name)
			}
		}
	}
	return b.out
}

func (b *Broker) emit(e BrokerEffect) { b.out = append(b.out, e) }

func (b *Broker) wake() {
	at := b.scan
	if b.file.Before(at) {
		at = b.file
	}
	b.emit(BrokerWakeAt{at})
}

func (b *Broker) names() []string { return slices.Sorted(maps.Keys(b.groups)) }

func (b *Broker) received(now time.Time, ev Received) {
	reply := func(a Answer) { b.emit(Reply{ev.Channel, ev.ID, a}) }
	switch r := ev.Request.(type) {
	case Heartbeat:
		b.heartbeat(now, ev.Channel, r)
		reply(Done{})
	case Unregister:
		if !r.Producer && b.remove(r.Group, ev.Channel) {
			b.notify(r.Group)
		}
		reply(Done{})
	case ConsumerList:
		if g := b.groups[r.Group]; g != nil {
			reply(IDs{g.clientIDs()})
			return
		}
		reply(Refused{})
	case QueryOffset:
		// Of a queue whose first message is still in memory the answer is 0 as if stored,
		// and so it is of every queue here.
		reply(Offset{b.offsets[OffsetKey(r)]})
	case UpdateOffset:
		b.Commit(OffsetKey{r.Group, r.Queue}, r.Offset)
	case RouteQuery:
		reply(Refused{})
	}
}

// Commit stores an offset: the last write wins, whosever it is, also backwards. A pull
// commits as well.
func (b *Broker) Commit(key OffsetKey, offset int64) {
	b.offsets[key] = offset
	b.dirty[key] = true
}

// heartbeat notes a client. A new connection, or another set of topics, is news for all
// connections of the group, the cause included.
func (b *Broker) heartbeat(now time.Time, ch Channel, r Heartbeat) {
	g := b.groups[r.Group]
	if g == nil {
		g = &consumers{channels: make(map[Channel]*consumer)}
		b.groups[r.Group] = g
	}
	b.emit(CreateTopic{RetryTopic(r.Group)})
	m := g.channels[ch]
	news := m == nil
	if news {
		m = &consumer{}
		g.channels[ch] = m
		if n := len(g.list); n > 0 && g.list[n-1] < ch {
			g.list = append(g.list, ch)
		} else {
			g.list = nil
		}
	}
	if m.id != r.ClientID { // replaced silently on a connection that is known
		m.id = r.ClientID
		g.ids = nil
	}
	m.seen = now
	if !slices.Equal(g.topics, r.Topics) {
		g.topics, news = r.Topics, true
	}
	if news {
		b.notify(r.Group)
	}
}

// remove takes a connection out of a group; it reports whether it was there.
func (b *Broker) remove(name string, ch Channel) bool {
	g := b.groups[name]
	if g == nil || g.channels[ch] == nil {
		return false
	}
	delete(g.channels, ch)
	g.ids, g.list = nil, nil
	if len(g.channels) == 0 {
		delete(b.groups, name)
	}
	return true
}

func (b *Broker) notify(name string) {
	if g := b.groups[name]; g != nil {
		b.emit(Notify{g.connections(), Notice{name}})
	}
}

func (g *consumers) connections() []Channel {
	if g.list == nil {
		g.list = slices.Sorted(maps.Keys(g.channels))
	}
	return g.list
}

// clientIDs has an id for each connection; any order would do.
func (g *consumers) clientIDs() []string {
	if g.ids == nil {
		g.ids = make([]string, 0, len(g.channels))
		for _, m := range g.channels {
			g.ids = append(g.ids, m.id)
		}
		slices.SortFunc(g.ids, allocate.CompareStrings)
	}
	return g.ids
}

// expire is the scan. It tells nobody: the event of the close finds nothing to remove.
func (b *Broker) expire(now time.Time) {
	for _, name := range b.names() {
		g := b.groups[name]
		for _, ch := range slices.Sorted(maps.Keys(g.channels)) {
			if now.Sub(g.channels[ch].seen) > b.timers.Expiry {
				b.remove(name, ch)
				b.emit(Close{ch})
			}
		}
	}
}

func (b *Broker) write() {
	if len(b.dirty) == 0 {
		return
	}
	out := make([]StoredOffset, 0, len(b.dirty))
	for key := range b.dirty {
		out = append(out, StoredOffset{key, b.offsets[key]})
	}
	clear(b.dirty)
	slices.SortFunc(out, func(x, y StoredOffset) int {
		return cmp.Or(cmp.Compare(x.Group, y.Group), x.Queue.Compare(y.Queue))
	})
	b.emit(WriteFile{out})
}
