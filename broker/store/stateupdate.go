package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

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
	opRequire
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

// Require refuses the whole update with ErrNoQueue unless q is there, and is not
// deleted before the update is stored: what is kept about a queue under keys of
// the broker's own is then never taken for something about a later one.
func (u *Update) Require(q Queue) {
	u.ops = append(u.ops, op{kind: opRequire, queue: q})
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
	checked := st.burial.Load() // before the queues are looked at
	for i := range u.ops {
		if err := st.check(&u.ops[i]); err != nil {
			return err
		}
	}
	return st.gather(func() error { return st.standing(u.ops, checked) }, func(g *gathering) error {
		for i := range u.ops {
			if err := st.do(g, &u.ops[i]); err != nil {
				return err
			}
		}
		return nil
	}, done)
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
	case opRequire:
		if _, ok := st.bounds(o.queue); !ok {
			return fmt.Errorf("%w: %s/%d", ErrNoQueue, o.queue.Topic, o.queue.ID)
		}
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
	case opRequire:
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

// CommitOffset raises one committed offset and waits until it is durable.
func (st *State) CommitOffset(ctx context.Context, group string, q Queue, offset int64) error {
	u := st.NewUpdate()
	u.CommitOffset(group, q, offset)
	return st.Apply(ctx, u)
}
