package route

import (
	"fmt"
	"iter"
	"slices"
	"time"

	memdb "github.com/hashicorp/go-memdb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/route"
)

// Snapshot is the state at one moment. It never changes and may be read by many.
type Snapshot struct {
	txn *memdb.Txn
	// Index grows with every change; it starts anew with the name server.
	Index   uint64
	Warming bool
}

// Snapshot returns the present state.
func (t *Table) Snapshot(now time.Time) Snapshot {
	return Snapshot{txn: t.db.Txn(false), Index: t.index, Warming: t.Warming(now)}
}

// Topic returns the route of a topic, without hosts if there is none.
func (s Snapshot) Topic(name string) route.Topic {
	t := route.Topic{Name: name}
	for h := range rows[host](s.txn, hostTable, "topic", name) {
		t.Hosts = append(t.Hosts, route.Host{Broker: s.broker(h.Broker), Config: h.Config})
	}
	slices.SortFunc(t.Hosts, compareHosts)
	return t
}

// Topics returns the routes of the named topics, in that order.
func (s Snapshot) Topics(names []string) []route.Topic {
	out := make([]route.Topic, 0, len(names))
	for _, n := range names {
		out = append(out, s.Topic(n))
	}
	return out
}

// All returns the routes of all topics, sorted by name.
func (s Snapshot) All() []route.Topic {
	var out []route.Topic
	for h := range rows[host](s.txn, hostTable, "id") { // by topic
		if len(out) == 0 || out[len(out)-1].Name != h.Topic {
			out = append(out, route.Topic{Name: h.Topic})
		}
		t := &out[len(out)-1]
		t.Hosts = append(t.Hosts, route.Host{Broker: s.broker(h.Broker), Config: h.Config})
	}
	for i := range out {
		slices.SortFunc(out[i].Hosts, compareHosts)
	}
	slices.SortFunc(out, func(a, b route.Topic) int { return allocate.CompareStrings(a.Name, b.Name) })
	return out
}

// Brokers returns all registered brokers, sorted by name.
func (s Snapshot) Brokers() []route.Broker {
	var out []route.Broker
	for b := range rows[route.Broker](s.txn, brokerTable, "id") {
		out = append(out, *b)
	}
	slices.SortFunc(out, func(a, b route.Broker) int { return allocate.CompareStrings(a.Name, b.Name) })
	return out
}

func (s Snapshot) broker(name string) route.Broker {
	for b := range rows[route.Broker](s.txn, brokerTable, "id", name) {
		return *b
	}
	return route.Broker{Name: name} // cannot be: hosts go with their broker
}

// rows returns the rows that an index finds. That fails only for a table or index
// that the schema does not know, which is a bug here.
func rows[T any](txn *memdb.Txn, table, index string, args ...any) iter.Seq[*T] {
	it, err := txn.Get(table, index, args...)
	if err != nil {
		panic(fmt.Sprintf("route: read %s by %s: %v", table, index, err))
	}
	return func(yield func(*T) bool) {
		for row := it.Next(); row != nil; row = it.Next() {
			if t, ok := row.(*T); ok && !yield(t) {
				return
			}
		}
	}
}
