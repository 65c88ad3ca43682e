package rocketmq

import (
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// NameServer is the routes of one name server. Nothing is pushed.
type NameServer struct {
	brokers map[string]*registered
	routes  map[string]Route // made when asked for after a change
}

type registered struct {
	seen   time.Time
	topics map[string]int32 // readable queues
}

// NewNameServer returns one that knows nothing.
func NewNameServer() *NameServer {
	return &NameServer{brokers: make(map[string]*registered), routes: make(map[string]Route)}
}

// Register takes a broker's word for what it has.
func (n *NameServer) Register(now time.Time, broker string, topics map[string]int32) {
	old := n.brokers[broker]
	if old == nil || !maps.Equal(old.topics, topics) {
		clear(n.routes)
	}
	n.brokers[broker] = &registered{now, maps.Clone(topics)}
}

// Closed drops a broker whose connection closed.
func (n *NameServer) Closed(broker string) {
	delete(n.brokers, broker)
	clear(n.routes)
}

// Scan drops the brokers that were silent for too long.
func (n *NameServer) Scan(now time.Time) {
	for name, b := range n.brokers {
		if now.Sub(b.seen) > BrokerExpiry {
			n.Closed(name)
		}
	}
}

// Answer answers a RouteQuery.
func (n *NameServer) Answer(topic string) Answer {
	r, ok := n.routes[topic]
	if !ok {
		for _, name := range slices.Sorted(maps.Keys(n.brokers)) {
			count, hosts := n.brokers[name].topics[topic]
			if !hosts {
				continue
			}
			r.Brokers = append(r.Brokers, name)
			for id := range count {
				r.Queues = append(r.Queues, allocate.Queue{Topic: topic, Broker: name, ID: id})
			}
		}
		slices.SortFunc(r.Queues, allocate.Queue.Compare)
		n.routes[topic] = r
	}
	if len(r.Brokers) == 0 {
		return Refused{}
	}
	return Routed{r}
}
