package lease

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Table holds the leases of one broker. It has one owner; nothing in it is safe
// for concurrent use.
type Table struct {
	broken Broken
	last   session.Epoch // the last epoch granted
	local  map[allocate.Queue]struct{}
	groups map[string]map[allocate.Queue]*entry
	// claimed counts the claims of each group that has any.
	claimed map[string]int
	stats   Stats

	// What the next Flush hands out.
	dirty    []*entry // whose records changed, in order of the first change
	offsets  []Offset
	resets   []Offset
	answers  []Answer
	mailed   []*Holder // with something in their box, in order of the first
	welcomes []Welcome
	idle     []Key
	after    batch // what waits for the batch that the next Flush makes

	persistID uint64
	inFlight  []batch // sorted by id
}

// batch is what happens once a Persist is on disk.
type batch struct {
	id       uint64
	grants   []grant
	welcomes []*welcome
	answers  []Answer
	claims   []claimed
}

type grant struct {
	e     *entry
	h     *Holder
	epoch session.Epoch
}

// entry is the lease of one (group, queue).
type entry struct {
	key    Key
	epoch  session.Epoch // of the last grant, also when free
	holder *Holder       // nil: free, or claimed
	claim  string        // member id of whoever claimed it; empty: nobody
	used   time.Time     // when something was done under the claim
	stored bool          // the record of the present grant is on disk
	dirty  bool          // in Table.dirty
	gone   bool          // the queue was deleted or the lease forgotten
	// was is the epoch that the holder was told is lost, zero otherwise. Until it
	// says so or its session ends the holder may hand out messages, so nobody else
	// is granted the queue.
	was session.Epoch
	// idleSince is when it lost its last holder; meaningful while free.
	idleSince time.Time
	line      []waiter
}

type waiter struct {
	h          *Holder
	viewBroker string
}

// Holder is one life of a member as the table sees it. Its fields are for
// reading.
type Holder struct {
	Life
	// Session is the number of the live stream; 0 while detached.
	Session uint64

	held   map[allocate.Queue]*entry
	asked  map[allocate.Queue]*entry
	box    Mail
	mailed bool
}

// New returns a table with the stored leases. Each stored holder is returned,
// detached, in order of group, client id and incarnation: the caller drops it
// when its timeout, counted from now, has passed without its hello.
func New(cfg Config, stored []Record) (*Table, []*Holder) {
	t := &Table{
		broken: cfg.Broken,
		last:   session.Epoch{Broker: cfg.BrokerEpoch},
		local:  make(map[allocate.Queue]struct{}),
		groups: make(map[string]map[allocate.Queue]*entry), claimed: make(map[string]int),
	}
	type identity struct {
		group, client string
		incarnation   session.Incarnation
	}
	holders := make(map[identity]*Holder)
	for i := range stored {
		r := &stored[i]
		if r.Epoch.Compare(t.last) > 0 {
			t.last = r.Epoch
		}
		if r.Holder == "" {
			continue
		}
		if e := t.find(r.Key); e != nil && e.epoch.Compare(r.Epoch) >= 0 {
			continue
		}
		if r.Claimed {
			e := t.entry(r.Key)
			if e.claim == "" {
				t.claimed[r.Group]++
			}
			e.epoch, e.claim, e.stored = r.Epoch, r.Holder, true
			continue
		}
		id := identity{r.Group, r.Holder, r.Incarnation}
		h := holders[id]
		if h == nil {
			h = t.Holder(Life{
				Group: r.Group, ClientID: r.Holder, Instance: r.Instance, Incarnation: r.Incarnation,
				Timeout: time.Duration(r.TimeoutMillis) * time.Millisecond,
			})
			holders[id] = h
		}
		e := t.entry(r.Key)
		if e.holder != nil {
			delete(e.holder.held, r.Queue)
		}
		e.epoch, e.holder, e.stored = r.Epoch, h, true
		h.held[r.Queue] = e
		h.Timeout = max(h.Timeout, time.Duration(r.TimeoutMillis)*time.Millisecond)
	}
	out := make([]*Holder, 0, len(holders))
	for _, h := range holders {
		if len(h.held) > 0 {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, compareHolders)
	return t, out
}

func compareHolders(a, b *Holder) int {
	if c := session.CompareIDs(a.Group, b.Group); c != 0 {
		return c
	}
	if c := session.CompareIDs(a.ClientID, b.ClientID); c != 0 {
		return c
	}
	return a.Incarnation.Compare(b.Incarnation)
}

// Holder returns a new holder that holds nothing, detached.
func (t *Table) Holder(l Life) *Holder {
	return &Holder{Life: l, held: make(map[allocate.Queue]*entry), asked: make(map[allocate.Queue]*entry)}
}

// Holds returns the number of leases of h.
func (h *Holder) Holds() int { return len(h.held) }

// Asks returns the number of requests of h that wait.
func (h *Holder) Asks() int { return len(h.asked) }

func (t *Table) find(k Key) *entry { return t.groups[k.Group][k.Queue] }

func (t *Table) entry(k Key) *entry {
	g := t.groups[k.Group]
	if g == nil {
		g = make(map[allocate.Queue]*entry)
		t.groups[k.Group] = g
	}
	e := g[k.Queue]
	if e == nil {
		e = &entry{key: k}
		g[k.Queue] = e
	}
	return e
}

// Acquire asks for leases in the name of h, which must be attached. A queue that
// this broker does not store is refused, one that is free is granted, for any
// other h waits in line. What h asked for before, or holds, does not change.
func (t *Table) Acquire(h *Holder, queues []allocate.Queue, viewBroker string) {
	for _, q := range queues {
		t.stats.Acquires++
		if _, ok := t.local[q]; !ok {
			h.withdrawn(t, q, session.ReasonUnknownQueue)
			continue
		}
		e := t.entry(Key{h.Group, q})
		if e.holder == h && !e.was.IsZero() { // it would not ask if it had not heard
			t.pass(e)
		}
		switch {
		case e.holder == h:
			if e.stored { // it was told; once more does no harm
				h.granted(t, session.Grant{Queue: q, Epoch: e.epoch})
			}
		case h.asked[q] != nil:
			i := slices.IndexFunc(e.line, func(w waiter) bool { return w.h == h })
			e.line[i].viewBroker = viewBroker
		case e.holder == nil:
			t.grant(e, h)
		case t.broken.GrantBeforeRelease:
			e.holder.wanted(t, q, viewBroker)
			delete(e.holder.held, q)
			t.grant(e, h)
		default:
			e.line = append(e.line, waiter{h, viewBroker})
			h.asked[q] = e
			if e.stored {
				e.holder.wanted(t, q, viewBroker)
			} // else the new holder is told with its grant
		}
	}
}

// Withdraw takes requests back. A queue that h holds or is being granted needs
// no answer: the grant is under way or was sent.
func (t *Table) Withdraw(h *Holder, queues []allocate.Queue) {
	for _, q := range queues {
		if e := h.asked[q]; e != nil {
			t.stats.Withdrawals++
			leaveLine(e, h)
		} else if h.held[q] != nil {
			continue
		}
		h.withdrawn(t, q, 0)
	}
}

func leaveLine(e *entry, h *Holder) {
	e.line = slices.DeleteFunc(e.line, func(w waiter) bool { return w.h == h })
	delete(h.asked, e.key.Queue)
}

// Release gives leases of h back with the progress made under them. One with
// another epoch than the present lease's is ignored with its offset.
func (t *Table) Release(now time.Time, h *Holder, leases []session.Release) {
	for _, r := range leases {
		e := t.find(Key{h.Group, r.Queue})
		switch {
		case e == nil || e.holder == nil:
			t.stats.StaleReleases++
			continue
		case e.holder == h && !e.was.IsZero() && r.Epoch == e.was: // its progress does not count any more
			t.free(now, e)
			continue
		case e.holder == h && e.epoch == r.Epoch:
		case t.broken.ReleaseWithoutEpoch:
		default:
			t.stats.StaleReleases++
			continue
		}
		t.stats.Releases++
		if r.HasOffset && r.Offset >= 0 {
			t.offsets = append(t.offsets, Offset{e.key, r.Offset})
		}
		t.free(now, e)
	}
}

// Drop ends a holder: its leases are free, its requests forgotten.
func (t *Table) Drop(now time.Time, h *Holder) {
	t.forgetAsked(h)
	for _, q := range sortedQueues(h.held) {
		t.stats.Dropped++
		t.free(now, h.held[q])
	}
	h.Session = 0
}

// Detach says that the stream of h has ended while its leases stay. Its requests
// are forgotten: they belong to the session.
func (t *Table) Detach(h *Holder) {
	t.forgetAsked(h)
	h.Session = 0
}

func (t *Table) forgetAsked(h *Holder) {
	for _, q := range sortedQueues(h.asked) {
		leaveLine(h.asked[q], h)
	}
}

// SetQueues replaces the queues that this broker stores. Leases of others are
// taken away, requests for them refused.
func (t *Table) SetQueues(queues []allocate.Queue) {
	local := make(map[allocate.Queue]struct{}, len(queues))
	for _, q := range queues {
		local[q] = struct{}{}
	}
	t.local = local
	for _, name := range slices.SortedFunc(maps.Keys(t.groups), session.CompareIDs) {
		g := t.groups[name]
		for _, q := range sortedQueues(g) {
			if _, ok := local[q]; ok {
				continue
			}
			e := g[q]
			told := e.holder != nil && e.stored
			switch h := e.holder; {
			case h == nil:
			case told:
				t.take(e, session.ReasonUnknownQueue)
			case e.was.IsZero(): // it waits for an answer to its request
				h.withdrawn(t, q, session.ReasonUnknownQueue)
				delete(h.held, q)
				e.holder = nil
			}
			for _, w := range e.line {
				delete(w.h.asked, q)
				w.h.withdrawn(t, q, session.ReasonUnknownQueue)
			}
			e.line = nil
			if e.holder == nil {
				t.remove(e)
			}
		}
	}
}

// take tells the holder that its lease is lost. Its epoch is no longer the last
// one, so that nothing is kept or committed under it, also after a restart.
func (t *Table) take(e *entry, reason session.Reason) {
	e.was = e.epoch
	e.holder.lost(t, session.Owned{Queue: e.key.Queue, Epoch: e.was}, reason)
	e.epoch, e.stored = t.next(), false
	t.touch(e)
}

// Stores reports whether this broker stores the queue.
func (t *Table) Stores(q allocate.Queue) bool {
	_, ok := t.local[q]
	return ok
}

// Forget drops what is remembered of the free leases of a group. The stored
// records stay.
func (t *Table) Forget(group string) {
	for _, e := range t.groups[group] {
		if e.holder == nil && e.claim == "" && !e.dirty {
			t.remove(e)
		}
	}
}

func (t *Table) remove(e *entry) {
	t.unclaim(e)
	e.gone = true
	g := t.groups[e.key.Group]
	delete(g, e.key.Queue)
	if len(g) == 0 {
		delete(t.groups, e.key.Group)
	}
}

// Idle reports whether nobody holds or asks for the queue, and since when it
// has had no holder: the zero time if it never had one that is remembered.
func (t *Table) Idle(k Key) (since time.Time, idle bool) {
	e := t.find(k)
	if e == nil {
		return time.Time{}, true
	}
	return e.idleSince, e.holder == nil && e.claim == ""
}

// Check tells whether a pull of the group may be answered under the epoch: nil,
// or an error that wraps one of the package's. The zero epoch reads without a
// lease, which is always allowed.
func (t *Table) Check(group string, q allocate.Queue, epoch session.Epoch) error {
	k := Key{group, q}
	if _, ok := t.local[k.Queue]; !ok {
		return refusal(ErrUnknownQueue, k, epoch)
	}
	if epoch.IsZero() {
		return nil
	}
	return t.holds(k, epoch)
}

// holds tells whether the present lease of k has the epoch and was told its holder.
func (t *Table) holds(k Key, epoch session.Epoch) error {
	e := t.find(k)
	switch {
	case e == nil || e.epoch.IsZero():
		return refusal(ErrNotMember, k, epoch)
	case e.holder == nil && e.claim == "" || e.epoch != epoch || !e.stored:
		return refusal(ErrStaleEpoch, k, epoch)
	}
	return nil
}

// Commit asks to store a group's progress under an epoch; req is answered at
// once if it is refused, else when it is on disk. With the zero epoch it is
// accepted while nobody holds the lease.
func (t *Table) Commit(req uint64, k Key, epoch session.Epoch, offset int64) {
	if err := t.commit(k, epoch, offset); err != nil {
		t.stats.CommitsRefused++
		t.answers = append(t.answers, Answer{Req: req, Err: err})
		return
	}
	t.stats.Commits++
	t.offsets = append(t.offsets, Offset{k, offset})
	t.after.answers = append(t.after.answers, Answer{Req: req})
}

func (t *Table) commit(k Key, epoch session.Epoch, offset int64) error {
	if _, ok := t.local[k.Queue]; !ok {
		return refusal(ErrUnknownQueue, k, epoch)
	}
	if offset < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeOffset, offset)
	}
	switch {
	case t.broken.NoCommitEpochCheck:
		return nil
	case epoch.IsZero():
		if e := t.find(k); e != nil && (e.holder != nil || e.claim != "") {
			return refusal(ErrLeaseHeld, k, e.epoch)
		}
		return nil
	}
	return t.holds(k, epoch)
}

// Reset is an operator's change of the group's offset, forward or back. While
// the lease is held it is refused, unless force takes the lease away. Nothing
// done under the epochs before counts any more.
func (t *Table) Reset(req uint64, k Key, offset int64, force bool) {
	if err := t.reset(k, offset, force); err != nil {
		t.answers = append(t.answers, Answer{Req: req, Err: err})
		return
	}
	t.stats.Resets++
	t.resets = append(t.resets, Offset{k, offset})
	t.after.answers = append(t.after.answers, Answer{Req: req})
}

func (t *Table) reset(k Key, offset int64, force bool) error {
	if _, ok := t.local[k.Queue]; !ok {
		return refusal(ErrUnknownQueue, k, session.Epoch{})
	}
	if offset < 0 {
		return fmt.Errorf("%w: %d", ErrNegativeOffset, offset)
	}
	e := t.find(k)
	if e != nil && e.holder != nil {
		if !force {
			return refusal(ErrLeaseHeld, k, e.epoch)
		}
		switch h := e.holder; {
		case !e.was.IsZero(): // taken before
		case !e.stored && h.Session != 0:
			t.grant(e, h) // it waits for an answer to its request: another epoch will do
		default:
			t.take(e, 0)
		}
	}
	// A holder of old that comes back must not keep its process queue: the
	// epoch it knows is not the last one any more.
	if e != nil && e.holder == nil {
		t.unclaim(e)
		e.epoch = t.next()
		t.touch(e)
	}
	return nil
}

func refusal(err error, k Key, epoch session.Epoch) error {
	return fmt.Errorf("%w: group %q, queue %s/%s/%d, epoch %s", err, k.Group, k.Queue.Topic, k.Queue.Broker, k.Queue.ID, epoch)
}

// free ends the lease of e and grants it to the first in line.
func (t *Table) free(now time.Time, e *entry) {
	e.idleSince = now
	t.pass(e)
	if _, ok := t.local[e.key.Queue]; !ok {
		t.remove(e)
		return
	}
	if e.holder == nil {
		t.touch(e)
		t.idle = append(t.idle, e.key)
	}
}

// pass takes e from its holder and gives it to the first in line.
func (t *Table) pass(e *entry) {
	delete(e.holder.held, e.key.Queue)
	e.holder, e.stored, e.was = nil, false, session.Epoch{}
	if len(e.line) > 0 {
		first := e.line[0].h
		leaveLine(e, first)
		t.grant(e, first)
	}
}

// grant gives e to h under a new epoch; h is told when the record is on disk.
func (t *Table) grant(e *entry, h *Holder) {
	t.stats.Grants++
	t.hold(e, h, t.next())
	t.after.grants = append(t.after.grants, grant{e, h, e.epoch})
}

// hold makes h the holder of e, to be stored.
func (t *Table) hold(e *entry, h *Holder, epoch session.Epoch) {
	t.unclaim(e)
	e.epoch, e.holder, e.stored, e.was = epoch, h, false, session.Epoch{}
	h.held[e.key.Queue] = e
	t.touch(e)
}

func (t *Table) next() session.Epoch {
	t.last.Counter++
	return t.last
}

func (t *Table) touch(e *entry) {
	if !e.dirty {
		e.dirty = true
		t.dirty = append(t.dirty, e)
	}
}

func (e *entry) record() Record {
	r := Record{Key: e.key, Epoch: e.epoch}
	if e.claim != "" {
		r.Holder, r.Claimed = e.claim, true
	} else if h := e.holder; h != nil {
		r.Holder, r.Instance, r.Incarnation = h.ClientID, h.Instance, h.Incarnation
		r.TimeoutMillis = (h.Timeout + time.Millisecond - 1).Milliseconds() // never less
	}
	return r
}

// Stats returns the counters.
func (t *Table) Stats() Stats { return t.stats }

func sortedQueues[V any](m map[allocate.Queue]V) []allocate.Queue {
	if len(m) == 0 {
		return nil
	}
	return slices.SortedFunc(maps.Keys(m), allocate.Queue.Compare)
}
