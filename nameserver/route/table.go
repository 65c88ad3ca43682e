// Package route holds a name server's tables: which brokers are registered and
// which topics each hosts. It does no I/O, starts no goroutine and is told the
// time; its answers depend on its history alone.
//
// Rules:
//
//   - A broker's registration belongs to the stream it came on. Its first word on
//     a stream must be full, since only then every later delta of the stream fits:
//     a delta or heartbeat of another stream, of a config version that does not
//     follow, or after the registration was dropped, is answered NeedFull and
//     changes nothing. So a name server never shows a part for the whole.
//   - The entry with the higher (broker epoch, config version) stays. A process
//     with a lower epoch than the registered one, or with the same one at another
//     address, is told which epoch it must exceed.
//   - A sign-off counts only for its own (address, epoch): a late one of a process
//     that has a successor removes nothing.
//   - A broker that is silent for the expiry is dropped with all its topics.
//   - A table is warming for one expiry after its start, and while no broker is
//     registered: it cannot tell what is missing.
//
// Registrations and hosts are in go-memdb, so that readers take a [Snapshot]
// that never changes while registrations go on. Deadlines are outside of it: a
// heartbeat writes nothing. Which topics changed is returned by each step; pushes
// are made from that and not from memdb's watches, which wake a watcher for its
// topic's neighbours as well and cost one goroutine for each few dozen topics.
package route

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	memdb "github.com/hashicorp/go-memdb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/route"
)

// Config is what a Table is made of.
type Config struct {
	// Expiry is how long a broker may be silent, and how long a start warms up.
	Expiry time.Duration
	// MaxBrokers and MaxTopics, of all brokers together, bound the tables.
	MaxBrokers int
	MaxTopics  int
}

// Table holds the registrations. One goroutine at a time may use it; snapshots
// are free of that.
type Table struct {
	cfg     Config
	started time.Time
	db      *memdb.MemDB
	regs    map[string]*registration
	topics  map[string]int // hosts of each topic
	index   uint64
}

// registration is what is not in memdb: it changes with every heartbeat.
type registration struct {
	entry    route.Broker
	stream   uint64
	deadline time.Time
}

// Register is one message of a broker.
type Register struct {
	// Stream it came on; streams are never numbered twice.
	Stream uint64
	Entry  route.Broker
	// Full: Topics are the whole truth. Otherwise Topics have changed and Removed
	// are gone; neither is a heartbeat.
	Full    bool
	Topics  []route.Config
	Removed []string
	Leaving bool
}

// Result says what became of a Register.
type Result struct {
	// NeedFull: it did not fit, nothing was changed.
	NeedFull bool
	// SupersededBy is the epoch the broker must exceed, if it is not zero.
	// Nothing was changed.
	SupersededBy uint64
	Change
}

// Change says what a step changed.
type Change struct {
	// Topics whose route is different now, sorted. A newer config version alone
	// is no difference.
	Topics []string
	// Brokers: the list of brokers is different.
	Brokers bool
	// Expired are the brokers that were dropped for silence, sorted.
	Expired []route.Broker
}

func (c Change) empty() bool { return len(c.Topics) == 0 && !c.Brokers }

// ErrLimit says which limit a registration would exceed.
type ErrLimit struct {
	What  string
	Limit int
}

func (e *ErrLimit) Error() string { return fmt.Sprintf("%s: at most %d", e.What, e.Limit) }

const (
	brokerTable = "brokers"
	hostTable   = "hosts"
)

func schema() *memdb.DBSchema {
	name := func() memdb.Indexer { return &memdb.StringFieldIndex{Field: "Topic"} }
	broker := func() memdb.Indexer { return &memdb.StringFieldIndex{Field: "Broker"} }
	return &memdb.DBSchema{Tables: map[string]*memdb.TableSchema{
		brokerTable: {Name: brokerTable, Indexes: map[string]*memdb.IndexSchema{
			"id": {Name: "id", Unique: true, Indexer: &memdb.StringFieldIndex{Field: "Name"}},
		}},
		hostTable: {Name: hostTable, Indexes: map[string]*memdb.IndexSchema{
			"id":     {Name: "id", Unique: true, Indexer: &memdb.CompoundIndex{Indexes: []memdb.Indexer{name(), broker()}}},
			"topic":  {Name: "topic", Indexer: name()},
			"broker": {Name: "broker", Indexer: broker()},
		}},
	}}
}

// host is a row of the host table.
type host struct {
	Topic  string
	Broker string
	Config route.Config
}

// New returns an empty Table of a name server that starts at now.
func New(cfg Config, now time.Time) (*Table, error) {
	db, err := memdb.NewMemDB(schema())
	if err != nil {
		return nil, fmt.Errorf("make route tables: %w", err)
	}
	return &Table{cfg: cfg, started: now, db: db, regs: make(map[string]*registration), topics: make(map[string]int)}, nil
}

// Warming reports whether a topic or broker that is missing may just not be
// known yet.
func (t *Table) Warming(now time.Time) bool {
	return len(t.regs) == 0 || now.Before(t.started.Add(t.cfg.Expiry))
}

// Wake returns when Expire has something to do next.
func (t *Table) Wake(now time.Time) time.Time {
	next := now.Add(t.cfg.Expiry)
	if warm := t.started.Add(t.cfg.Expiry); warm.After(now) {
		next = warm
	}
	for _, r := range t.regs {
		if r.deadline.Before(next) {
			next = r.deadline
		}
	}
	return next
}

// Apply takes a message of a broker. An error is an [ErrLimit]; nothing was
// changed then.
func (t *Table) Apply(now time.Time, m Register) (Result, error) {
	known := t.regs[m.Entry.Name]
	switch {
	case m.Leaving:
		if known == nil || known.entry.Address != m.Entry.Address || known.entry.Stamp.Epoch != m.Entry.Stamp.Epoch {
			return Result{}, nil
		}
		return Result{Change: t.drop([]*registration{known})}, nil
	case known != nil && known.entry.Stamp.Epoch > m.Entry.Stamp.Epoch,
		known != nil && known.entry.Stamp.Epoch == m.Entry.Stamp.Epoch && known.entry.Address != m.Entry.Address:
		return Result{SupersededBy: known.entry.Stamp.Epoch}, nil
	case m.Full && known != nil && known.entry.Stamp.Compare(m.Entry.Stamp) > 0:
		return Result{NeedFull: true}, nil // a late word of a stream before
	case !m.Full && !fits(known, m):
		return Result{NeedFull: true}, nil
	}
	if err := t.room(known, m); err != nil {
		return Result{}, err
	}
	var change Change
	if m.Full || len(m.Topics) > 0 || len(m.Removed) > 0 {
		change = t.store(known, m)
	}
	t.regs[m.Entry.Name] = &registration{entry: m.Entry, stream: m.Stream, deadline: now.Add(t.cfg.Expiry)}
	return Result{Change: change}, nil
}

// fits tells whether a delta or heartbeat follows what is known.
func fits(known *registration, m Register) bool {
	if known == nil || known.stream != m.Stream || known.entry.Stamp.Epoch != m.Entry.Stamp.Epoch {
		return false
	}
	if len(m.Topics) == 0 && len(m.Removed) == 0 {
		return known.entry == m.Entry
	}
	return known.entry.Stamp.Version < m.Entry.Stamp.Version
}

// room tells whether m stays within the limits.
func (t *Table) room(known *registration, m Register) error {
	if known == nil && len(t.regs) >= t.cfg.MaxBrokers {
		return &ErrLimit{"brokers", t.cfg.MaxBrokers}
	}
	more := 0
	for _, c := range m.Topics {
		if t.topics[c.Topic] == 0 {
			more++
		}
	}
	if more > 0 && len(t.topics)+more > t.cfg.MaxTopics {
		return &ErrLimit{"topics", t.cfg.MaxTopics}
	}
	return nil
}

// Expire drops the brokers that were silent for too long.
func (t *Table) Expire(now time.Time) Change {
	var silent []*registration
	for _, r := range t.regs {
		if !r.deadline.After(now) {
			silent = append(silent, r)
		}
	}
	if len(silent) == 0 {
		return Change{}
	}
	slices.SortFunc(silent, func(a, b *registration) int { return allocate.CompareStrings(a.entry.Name, b.entry.Name) })
	change := t.drop(silent)
	for _, r := range silent {
		change.Expired = append(change.Expired, r.entry)
	}
	return change
}

// Postpone moves every deadline to an expiry from now: the name server itself was
// paused, and heartbeats may wait to be read.
func (t *Table) Postpone(now time.Time) {
	for _, r := range t.regs {
		r.deadline = now.Add(t.cfg.Expiry)
	}
}

// store writes the entry and topics of m.
func (t *Table) store(known *registration, m Register) Change {
	w := t.begin()
	defer w.txn.Abort()
	var change Change
	if known == nil || known.entry != m.Entry {
		w.insert(brokerTable, &m.Entry)
		// A change of address, cluster or epoch concerns every route of the broker.
		before := route.Broker{}
		if known != nil {
			before = known.entry
		}
		before.Stamp.Version = m.Entry.Stamp.Version
		change.Brokers = before != m.Entry
	}
	for _, c := range m.Topics {
		if old := w.host(c.Topic, m.Entry.Name); old == nil || old.Config != c {
			w.put(&host{Topic: c.Topic, Broker: m.Entry.Name, Config: c}, old == nil)
		}
	}
	for _, topic := range m.Removed {
		if h := w.host(topic, m.Entry.Name); h != nil {
			w.remove(h)
		}
	}
	if m.Full {
		kept := make(map[string]bool, len(m.Topics))
		for _, c := range m.Topics {
			kept[c.Topic] = true
		}
		for _, h := range w.hosted(m.Entry.Name) {
			if !kept[h.Topic] {
				w.remove(h)
			}
		}
	}
	if change.Brokers {
		for _, h := range w.hosted(m.Entry.Name) {
			w.changed[h.Topic] = true
		}
	}
	return w.commit(change)
}

// drop removes brokers and all they host.
func (t *Table) drop(regs []*registration) Change {
	w := t.begin()
	defer w.txn.Abort()
	for _, r := range regs {
		for _, h := range w.hosted(r.entry.Name) {
			w.remove(h)
		}
		w.delete(brokerTable, &r.entry)
		delete(t.regs, r.entry.Name)
	}
	return w.commit(Change{Brokers: true})
}

// write is one transaction and what it changes.
type write struct {
	table   *Table
	txn     *memdb.Txn
	changed map[string]bool
}

func (t *Table) begin() *write {
	return &write{table: t, txn: t.db.Txn(true), changed: make(map[string]bool)}
}

func (w *write) commit(change Change) Change {
	w.txn.Commit()
	for topic := range w.changed {
		change.Topics = append(change.Topics, topic)
	}
	slices.SortFunc(change.Topics, allocate.CompareStrings)
	if !change.empty() {
		w.table.index++
	}
	return change
}

func (w *write) put(h *host, isNew bool) {
	w.insert(hostTable, h)
	w.changed[h.Topic] = true
	if isNew {
		w.table.topics[h.Topic]++
	}
}

func (w *write) remove(h *host) {
	w.delete(hostTable, h)
	w.changed[h.Topic] = true
	if w.table.topics[h.Topic]--; w.table.topics[h.Topic] == 0 {
		delete(w.table.topics, h.Topic)
	}
}

// hosted returns what a broker hosts.
func (w *write) hosted(broker string) []*host {
	return slices.Collect(rows[host](w.txn, hostTable, "broker", broker))
}

// host returns how a broker hosts a topic, nil if it does not.
func (w *write) host(topic, broker string) *host {
	for h := range rows[host](w.txn, hostTable, "id", topic, broker) {
		return h
	}
	return nil
}

// insert and delete fail only for rows or tables that the schema does not know,
// which is a bug here: nobody's input reaches that.
func (w *write) insert(table string, row any) {
	if err := w.txn.Insert(table, row); err != nil {
		panic(fmt.Sprintf("route: insert into %s: %v", table, err))
	}
}

func (w *write) delete(table string, row any) {
	if err := w.txn.Delete(table, row); err != nil {
		panic(fmt.Sprintf("route: delete from %s: %v", table, err))
	}
}

// Stamp of the state: it grows with every change that watchers are told of.
func (t *Table) Stamp() uint64 { return t.index }

// Counts returns the number of brokers and of topics.
func (t *Table) Counts() (brokers, topics int) { return len(t.regs), len(t.topics) }

func compareHosts(a, b route.Host) int {
	return cmp.Or(allocate.CompareStrings(a.Broker.Name, b.Broker.Name), a.Broker.Stamp.Compare(b.Broker.Stamp))
}
