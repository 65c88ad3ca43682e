package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// State is the small mutable state of a broker, kept in Pebble. All changes go
// through an Update; updates that wait together share one sync. Offsets are read
// as they are on disk, never as they will be. Safe for concurrent use.
type State struct {
	o      Options
	dir    string
	dbMu   sync.RWMutex // held for writing while the database is opened again
	db     *pebble.DB   // nil if that did not succeed yet
	cache  *pebble.Cache
	fatal  *fatalLogger
	bounds func(Queue) (end int64, ok bool)

	mu       sync.Mutex
	offsets  map[string]map[Queue]*offset
	leases   map[string]map[Queue]Lease
	graves   map[Queue]address // where in the log queues were deleted
	seq      uint64            // of the last group of updates
	durable  uint64            // of the last one that is on disk
	epoch    uint64
	next     gathering // updates that wait
	spare    gathering
	idle     bool
	closed   bool
	wake     chan struct{}
	wg       sync.WaitGroup
	stop     chan struct{}
	opened   uint64        // how often the database was opened again
	schedule atomic.Uint64 // last id given out
	saved    uint64        // seq of the newest checkpoint; the checkpointer's
}

// offset is a committed offset: as the next sync will leave it, and as the last
// one did. -1 means none.
type offset struct{ latest, durable int64 }

// gathering is a group of updates.
type gathering struct {
	batch   *pebble.Batch
	touched []touched
	done    []func(error)
}

type touched struct {
	group string
	queue Queue
	at    *offset
	value int64
}

// Lease is the last lease of a queue for a group, as it must survive a restart.
type Lease struct {
	Group        string
	Queue        Queue
	EpochBroker  uint64 // broker epoch under which it was granted
	EpochCounter uint64
	Holder       string // client id; "" if released
	Incarnation  [2]uint64
	Timeout      time.Duration // session timeout of the holder, to the millisecond
}

// Scheduled is a batch that waits for its due time.
type Scheduled struct {
	ID    uint64 // also the Origin of the Entry that delivers it
	Due   int64  // Unix milliseconds
	Batch []byte
}

type opKind uint8

const (
	opCommit opKind = iota
	opReset
	opDeleteGroup
	opLease
	opSchedule
	opUnschedule
	opPut
	opDelete
	opDeleteRange
)

// op is one change of an Update.
type op struct {
	kind  opKind
	group string // or space
	key   string
	to    string
	queue Queue
	value int64
	id    uint64
	data  []byte
	lease Lease
}

// Update gathers changes that become durable together, in order. Not for
// concurrent use; it may be used again after Apply, which empties it.
type Update struct {
	st  *State
	ops []op
}

// NewUpdate returns an empty update.
func (st *State) NewUpdate() *Update { return &Update{st: st} }

// CommitOffset raises the committed offset of group for q. A lower one than
// stored changes nothing.
func (u *Update) CommitOffset(group string, q Queue, offset int64) {
	u.ops = append(u.ops, op{kind: opCommit, group: group, queue: q, value: offset})
}

// ResetOffset sets the committed offset of group for q, also backwards.
func (u *Update) ResetOffset(group string, q Queue, offset int64) {
	u.ops = append(u.ops, op{kind: opReset, group: group, queue: q, value: offset})
}

// DeleteGroup removes all offsets and leases of a group.
func (u *Update) DeleteGroup(group string) {
	u.ops = append(u.ops, op{kind: opDeleteGroup, group: group})
}

// PutLease stores the last lease of (group, queue).
func (u *Update) PutLease(l Lease) {
	u.ops = append(u.ops, op{kind: opLease, group: l.Group, queue: l.Queue, lease: l})
}

// Schedule stores a batch until due (Unix milliseconds, not negative) and returns
// its id, which no other scheduled batch ever gets. The batch must not change
// until the update is applied.
func (u *Update) Schedule(due int64, batch []byte) (id uint64) {
	id = u.st.schedule.Add(1)
	u.ops = append(u.ops, op{kind: opSchedule, value: max(0, due), id: id, data: batch})
	return id
}

// Unschedule removes a scheduled batch. Delivered batches must be removed before
// keptOrigins (4096) others are delivered: so many the log recognizes.
func (u *Update) Unschedule(id uint64, due int64) {
	u.ops = append(u.ops, op{kind: opUnschedule, value: max(0, due), id: id})
}

// Put sets a key of the named space. Spaces are the broker's own: group state of
// the coordinated model, send-backs already done. A space's name must not contain NUL.
func (u *Update) Put(space, key string, value []byte) {
	u.ops = append(u.ops, op{kind: opPut, group: space, key: key, data: value})
}

// Delete removes a key of a space.
func (u *Update) Delete(space, key string) {
	u.ops = append(u.ops, op{kind: opDelete, group: space, key: key})
}

// DeleteRange removes the keys from <= key < to of a space; an empty to means
// all from there on.
func (u *Update) DeleteRange(space, from, to string) {
	u.ops = append(u.ops, op{kind: opDeleteRange, group: space, key: from, to: to})
}

// Apply makes u durable. Offsets that no queue can have are refused with
// ErrOffsetRange, unknown queues with ErrNoQueue, and nothing of u is stored then.
// If ctx ends first, u may still become durable.
func (st *State) Apply(ctx context.Context, u *Update) error {
	done := make(chan error, 1)
	st.ApplyAsync(u, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("apply update: %w", context.Cause(ctx))
	}
}

// ApplyAsync does the same and calls done once, from a goroutine of the store or
// before it returns. u is empty again when ApplyAsync returns. done must not
// block and must not wait for another update.
func (st *State) ApplyAsync(u *Update, done func(error)) {
	err := st.enqueue(u, done)
	clear(u.ops)
	u.ops = u.ops[:0]
	if err != nil {
		done(err)
	}
}

func (st *State) enqueue(u *Update, done func(error)) error {
	for i := range u.ops {
		if err := st.check(&u.ops[i]); err != nil {
			return err
		}
	}
	return st.gather(func(g *gathering) error {
		for i := range u.ops {
			if err := st.do(g, &u.ops[i]); err != nil {
				return err
			}
		}
		return nil
	}, done)
}

// gather adds changes to the next group. f runs with st.mu held; an error of it
// is one of Pebble's encoding, after which the group is not to be trusted.
func (st *State) gather(f func(g *gathering) error, done func(error)) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return ErrClosed
	}
	if err := st.fatal.err(); err != nil {
		return err
	}
	if err := f(&st.next); err != nil {
		st.fatal.set(err)
		return err
	}
	st.next.done = append(st.next.done, done)
	if st.idle {
		st.idle = false
		st.wake <- struct{}{}
	}
	return nil
}

// sync applies changes of the store's own and waits.
func (st *State) sync(f func(g *gathering) error) error {
	done := make(chan error, 1)
	if err := st.gather(f, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
}

// check refuses what must not be stored.
func (st *State) check(o *op) error {
	switch o.kind {
	case opCommit, opReset:
		end, ok := st.bounds(o.queue)
		if !ok {
			return fmt.Errorf("%w: %s/%d", ErrNoQueue, o.queue.Topic, o.queue.ID)
		}
		if o.value < 0 || o.value > end {
			return fmt.Errorf("%w: commit %d of %s/%d for group %s: must be 0 to %d", ErrOffsetRange, o.value, o.queue.Topic, o.queue.ID, o.group, end)
		}
		return noNUL("group", o.group)
	case opDeleteGroup, opLease:
		return errors.Join(noNUL("group", o.group), noNUL("topic", o.queue.Topic))
	case opPut, opDelete, opDeleteRange:
		return noNUL("space", o.group)
	case opSchedule, opUnschedule:
	}
	return nil
}

func noNUL(what, s string) error {
	if strings.ContainsRune(s, 0) {
		return fmt.Errorf("%s %q: must not contain NUL", what, s)
	}
	return nil
}

// do adds one change to a group.
func (st *State) do(g *gathering, o *op) error {
	switch o.kind {
	case opCommit, opReset:
		return st.setOffset(g, o.group, o.queue, o.value, o.kind == opReset)
	case opDeleteGroup:
		return st.deleteGroup(g, o.group)
	case opLease:
		queues := st.leases[o.group]
		if queues == nil {
			queues = map[Queue]Lease{}
			st.leases[o.group] = queues
		}
		queues[o.queue] = o.lease
		return g.batch.Set(queueKey(keyLease, o.queue, o.group), o.lease.encode(), nil)
	case opSchedule:
		if err := g.batch.Set([]byte{keyScheduleID}, binary.AppendUvarint(nil, st.schedule.Load()), nil); err != nil {
			return err
		}
		return g.batch.Set(scheduleKey(o.value, o.id), o.data, nil)
	case opUnschedule:
		return g.batch.Delete(scheduleKey(o.value, o.id), nil)
	case opPut:
		return g.batch.Set(spaceKey(o.group, o.key), o.data, nil)
	case opDelete:
		return g.batch.Delete(spaceKey(o.group, o.key), nil)
	case opDeleteRange:
		end := spaceKey(o.group, o.to)
		if o.to == "" {
			end[len(end)-1] = 1 // the byte after the NUL that ends the space's name
		}
		return g.batch.DeleteRange(spaceKey(o.group, o.key), end, nil)
	}
	return nil
}

func (st *State) setOffset(g *gathering, group string, q Queue, value int64, reset bool) error {
	queues := st.offsets[group]
	if queues == nil {
		queues = map[Queue]*offset{}
		st.offsets[group] = queues
	}
	at := queues[q]
	if at == nil {
		at = &offset{latest: -1, durable: -1}
		queues[q] = at
	}
	if value == at.latest || value < at.latest && !reset {
		return nil
	}
	at.latest = value
	g.touched = append(g.touched, touched{group, q, at, value})
	return g.batch.Set(queueKey(keyOffset, q, group), binary.AppendUvarint(nil, uint64(value)), nil)
}

// forgetOffset removes a committed offset.
func (g *gathering) forgetOffset(group string, q Queue, at *offset) error {
	at.latest = -1
	g.touched = append(g.touched, touched{group, q, at, -1})
	return g.batch.Delete(queueKey(keyOffset, q, group), nil)
}

func (st *State) deleteGroup(g *gathering, group string) error {
	for q, at := range st.offsets[group] {
		if err := g.forgetOffset(group, q, at); err != nil {
			return err
		}
	}
	for q := range st.leases[group] {
		if err := g.batch.Delete(queueKey(keyLease, q, group), nil); err != nil {
			return err
		}
	}
	delete(st.leases, group)
	return nil
}

// commitLoop writes groups of updates until the state is closed and none waits.
func (st *State) commitLoop() {
	for {
		st.mu.Lock()
		for len(st.next.done) == 0 {
			if st.closed {
				st.mu.Unlock()
				return
			}
			st.idle = true
			st.mu.Unlock()
			<-st.wake
			st.mu.Lock()
		}
		g, opened := st.next, st.opened
		st.next, st.spare = st.spare, gathering{}
		seq := st.seq
		if g.batch.Count() > 0 {
			st.seq++
			seq = st.seq
		}
		st.mu.Unlock()

		err := st.write(&g, seq, opened)
		if err == nil {
			st.settle(&g, seq)
		}
		for _, done := range g.done {
			done(err)
		}
		g.batch.Reset()
		clear(g.touched)
		clear(g.done)
		st.mu.Lock()
		if st.opened == opened {
			st.spare = gathering{batch: g.batch, touched: g.touched[:0], done: g.done[:0]}
		}
		st.mu.Unlock()
	}
}

func (st *State) write(g *gathering, seq, opened uint64) error {
	st.dbMu.RLock()
	defer st.dbMu.RUnlock()
	if err := st.fatal.err(); err != nil {
		return err
	}
	if opened != st.opened { // changed only with dbMu held
		return errReopened
	}
	if g.batch.Count() == 0 {
		return nil // all of it was known already, and is durable since the last group
	}
	err := g.batch.Set([]byte{keySeq}, binary.AppendUvarint(nil, seq), nil)
	if err == nil {
		err = g.batch.Commit(pebble.Sync)
	}
	if err == nil {
		err = st.fatal.err() // Commit itself does not say
	}
	if err != nil {
		st.fatal.set(err)
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// settle shows the offsets of a group that is durable now.
func (st *State) settle(g *gathering, seq uint64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.durable = seq
	for _, t := range g.touched {
		t.at.durable = t.value
		if t.value < 0 && t.at.latest < 0 {
			delete(st.offsets[t.group], t.queue)
			if len(st.offsets[t.group]) == 0 {
				delete(st.offsets, t.group)
			}
		}
	}
}

// CommitOffset raises one committed offset and waits until it is durable.
func (st *State) CommitOffset(ctx context.Context, group string, q Queue, offset int64) error {
	u := st.NewUpdate()
	u.CommitOffset(group, q, offset)
	return st.Apply(ctx, u)
}

// Offset returns the committed offset of group for q; ok is false if there is none.
func (st *State) Offset(group string, q Queue) (offset int64, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	at := st.offsets[group][q]
	if at == nil || at.durable < 0 {
		return 0, false
	}
	return at.durable, true
}

// Offsets returns every committed offset of group.
func (st *State) Offsets(group string) map[Queue]int64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	out := make(map[Queue]int64, len(st.offsets[group]))
	for q, at := range st.offsets[group] {
		if at.durable >= 0 {
			out[q] = at.durable
		}
	}
	return out
}

// Groups returns the names of the groups that have committed offsets, sorted.
func (st *State) Groups() []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Sorted(maps.Keys(st.offsets))
}

// eachOffset calls f with every committed offset.
func (st *State) eachOffset(f func(q Queue, offset int64)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, queues := range st.offsets {
		for q, at := range queues {
			f(q, at.durable)
		}
	}
}

// Leases returns all stored leases, sorted by group and queue.
func (st *State) Leases() []Lease {
	st.mu.Lock()
	defer st.mu.Unlock()
	var out []Lease
	for _, group := range slices.Sorted(maps.Keys(st.leases)) {
		queues := st.leases[group]
		for _, q := range slices.SortedFunc(maps.Keys(queues), compareQueues) {
			out = append(out, queues[q])
		}
	}
	return out
}

// Due returns at most limit batches that are due at now (Unix milliseconds), in
// order of time, and the time at which the one after them will be: 0 if there is
// none.
func (st *State) Due(now int64, limit int) (batches []Scheduled, next int64, err error) {
	err = st.scan([]byte{keySchedule}, []byte{keySchedule + 1}, func(k, v []byte) (bool, error) {
		if len(k) != 17 {
			return false, fmt.Errorf("%w: schedule key of %d bytes", ErrDamaged, len(k))
		}
		due, id := int64(binary.BigEndian.Uint64(k[1:])), binary.BigEndian.Uint64(k[9:])
		if due > now || len(batches) >= limit {
			next = due
			return false, nil
		}
		batches = append(batches, Scheduled{ID: id, Due: due, Batch: slices.Clone(v)})
		return true, nil
	})
	return batches, next, err
}

// Get returns the value of a key of a space.
func (st *State) Get(space, key string) (value []byte, ok bool, err error) {
	err = st.withDB(func(db *pebble.DB) error {
		v, c, err := db.Get(spaceKey(space, key))
		if errors.Is(err, pebble.ErrNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("get %s of %s: %w", key, space, err)
		}
		value, ok = append([]byte{}, v...), true
		return c.Close()
	})
	return value, ok, err
}

// Scan calls yield with the keys of a space that begin with prefix, in order,
// until it returns false. The value is valid only during the call. yield must not
// read the state.
func (st *State) Scan(space, prefix string, yield func(key string, value []byte) bool) error {
	from := spaceKey(space, prefix)
	skip := len(from) - len(prefix)
	return st.scan(from, upper(from), func(k, v []byte) (bool, error) { return yield(string(k[skip:]), v), nil })
}

// scan calls f with the keys in [from, to).
func (st *State) scan(from, to []byte, f func(k, v []byte) (bool, error)) error {
	return st.withDB(func(db *pebble.DB) error { return scanDB(db, from, to, f) })
}

func scanDB(db *pebble.DB, from, to []byte, f func(k, v []byte) (bool, error)) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		more := false
		if err == nil {
			more, err = f(it.Key(), v)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("read state: %w", err), it.Close())
		}
		if !more {
			break
		}
	}
	if err := errors.Join(it.Error(), it.Close()); err != nil {
		return fmt.Errorf("read state: %w", err)
	}
	return nil
}

// upper returns the smallest key greater than all that begin with prefix.
func upper(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < math.MaxUint8 {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}

// NextEpoch returns the broker epoch of this start: greater than every earlier
// one and than atLeast, and not before the clock. It is durable on return.
func (st *State) NextEpoch(atLeast uint64) (uint64, error) {
	var epoch uint64
	err := st.sync(func(g *gathering) error {
		epoch = max(st.epoch, atLeast) + 1
		if now := st.o.Now().UnixMilli(); now > 0 {
			epoch = max(epoch, uint64(now))
		}
		st.epoch = epoch
		return g.batch.Set([]byte{keyEpoch}, binary.AppendUvarint(nil, epoch), nil)
	})
	if err != nil {
		return 0, fmt.Errorf("store broker epoch: %w", err)
	}
	return epoch, nil
}
