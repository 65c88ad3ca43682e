package store

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var errStub = errors.New("not yet")

// StateFS is Pebble's file system.
type StateFS = vfs.FS

// Store is the message log of a broker and its state. Safe for concurrent use.
type Store struct{ state *State }

// Open opens the store in dir, or makes one there. It takes the directory's lock,
// repairs what a crash left and reports what it found through o.Report.
func Open(dir string, o Options) (*Store, error) { return nil, errStub }

// Close finishes what waits, syncs and closes. Results must be released before.
func (s *Store) Close() error { return errStub }

// State returns the small mutable state.
func (s *Store) State() *State { return s.state }

// Append stores a batch and waits until it is as durable as the options say. If
// ctx ends first the batch may still be stored.
func (s *Store) Append(ctx context.Context, e Entry) (Appended, error) {
	return Appended{}, errStub
}

// AppendAsync stores a batch and calls done once, from a goroutine of the store
// or, if the batch is refused at the door, before it returns. Batches that one
// goroutine hands over for one queue are stored in that order. done must not
// block and must not call Append or Close.
//
// It blocks while more than PendingBytes wait.
func (s *Store) AppendAsync(e Entry, done func(Appended, error)) {}

// Result is what Read found. The zero value is ready; it may be used again after
// Release.
type Result struct {
	// Batches in order, stamped and whole: the first may begin before the
	// offset asked for. They must not be changed, and are valid until Release.
	Batches [][]byte
	// Next is the offset to read from next: past the last batch, and past
	// batches that the filter left out.
	Next int64
	// Min is the offset of the oldest message in the queue, Max the one that
	// the next message will get.
	Min, Max int64
}

// Release gives the memory of the batches back. It may be called more than once.
func (r *Result) Release() {}

// Read reads batches of q from offset on, up to maxBytes but at least one. If
// filter is not empty, batches that hold no tag with such a hash (see
// batch.Hash) are left out. At the end of the queue it returns no batches and no
// error. An offset outside of [Min, Max] is ErrOffsetRange, with Min and Max set.
func (s *Store) Read(res *Result, q Queue, offset int64, maxBytes int, filter []uint64) error {
	return errStub
}

// Waiter waits for messages in one queue. Set Wake before the first Arm.
type Waiter struct {
	// Wake is called once for each Arm that was not ready, when there is
	// something to read or the queue or the store is gone. It runs on a
	// goroutine of the store: it must not block and must not call the store.
	Wake func()
}

// Arm reports whether q has messages at or after offset. If not, w.Wake will be
// called once when it has, or when q is deleted or the store closed. There is no
// gap between the check and the waiting. Arming an armed waiter moves it.
func (s *Store) Arm(w *Waiter, q Queue, offset int64) (ready bool, err error) {
	return false, errStub
}

// Disarm ends the waiting. A call of Wake may be under way when it returns.
func (s *Store) Disarm(w *Waiter) {}

// Bounds returns the offset of the oldest message of q and the one that the next
// message will get.
func (s *Store) Bounds(q Queue) (minOffset, maxOffset int64, err error) { return 0, 0, errStub }

// SearchByTime returns the offset of the first batch of q that was stored at or
// after the given time in Unix milliseconds, or the end of the queue.
func (s *Store) SearchByTime(q Queue, unixMilli int64) (int64, error) { return 0, errStub }

// LookupKey returns where messages of topic with a key of the given hash (see
// batch.Hash) may be, newest first, at most limit.
func (s *Store) LookupKey(topic string, keyHash uint64, limit int) ([]Location, error) {
	return nil, errStub
}

// Snapshot describes all queues, sorted by topic and id.
func (s *Store) Snapshot() []QueueInfo { return nil }

// PutTopic creates a topic, or changes its queue count and configuration.
func (s *Store) PutTopic(t Topic) error { return errStub }

// DeleteTopic deletes a topic with its messages, offsets and leases. One created
// later under the same name starts afresh. Deleting what is not there is no error.
func (s *Store) DeleteTopic(name string) error { return errStub }

// Topics returns all topics, sorted by name.
func (s *Store) Topics() []Topic { return nil }

// State is the small mutable state of a broker. All changes go through an Update;
// updates that wait together share one sync. Safe for concurrent use.
type State struct{}

// Lease is the last lease of a queue for a group, as it must survive a restart.
type Lease struct {
	Group        string
	Queue        Queue
	EpochBroker  uint64 // broker epoch under which it was granted
	EpochCounter uint64
	Holder       string // client id; "" if released
	Incarnation  [2]uint64
	Timeout      time.Duration // session timeout of the holder
}

// Scheduled is a batch that waits for its due time.
type Scheduled struct {
	ID    uint64 // also the Origin of the Entry that delivers it
	Due   int64  // Unix milliseconds
	Batch []byte
}

// Update gathers changes that become durable together, in order. Not for
// concurrent use; it may be used again after Apply, which empties it.
type Update struct{}

// NewUpdate returns an empty update.
func (st *State) NewUpdate() *Update { return &Update{} }

// CommitOffset raises the committed offset of group for q. A lower one than
// stored changes nothing.
func (u *Update) CommitOffset(group string, q Queue, offset int64) {}

// ResetOffset sets the committed offset of group for q, also backwards.
func (u *Update) ResetOffset(group string, q Queue, offset int64) {}

// DeleteGroup removes all offsets and leases of a group.
func (u *Update) DeleteGroup(group string) {}

// PutLease stores the last lease of (group, queue).
func (u *Update) PutLease(l Lease) {}

// Schedule stores a batch until due and returns its id.
func (u *Update) Schedule(due int64, batch []byte) (id uint64) { return 0 }

// Unschedule removes a scheduled batch.
func (u *Update) Unschedule(id uint64, due int64) {}

// Put sets, and Delete removes, a key of the named space. Spaces are the
// broker's own: group state of the coordinated model, send-backs already done.
func (u *Update) Put(space, key string, value []byte) {}

// Delete removes a key of a space.
func (u *Update) Delete(space, key string) {}

// DeleteRange removes the keys from <= key < to of a space.
func (u *Update) DeleteRange(space, from, to string) {}

// Apply makes u durable. Offsets that no queue can have are refused with
// ErrOffsetRange and nothing of u is stored.
func (st *State) Apply(ctx context.Context, u *Update) error { return errStub }

// ApplyAsync does the same and calls done once, from a goroutine of the store or
// before it returns. u must not be touched until then.
func (st *State) ApplyAsync(u *Update, done func(error)) {}

// Offset returns the committed offset of group for q; ok is false if there is none.
func (st *State) Offset(group string, q Queue) (offset int64, ok bool) { return 0, false }

// Offsets calls yield with every committed offset of group until it returns false.
func (st *State) Offsets(group string, yield func(q Queue, offset int64) bool) {}

// Groups returns the names of the groups that have committed offsets, sorted.
func (st *State) Groups() []string { return nil }

// Leases returns all stored leases.
func (st *State) Leases() []Lease { return nil }

// Due returns at most limit batches that are due at now (Unix milliseconds), in
// order of time, and the time at which the next one will be (0 if there is none).
func (st *State) Due(now int64, limit int) (batches []Scheduled, next int64, err error) {
	return nil, 0, errStub
}

// Get returns the value of a key of a space.
func (st *State) Get(space, key string) (value []byte, ok bool, err error) { return nil, false, errStub }

// Scan calls yield with the keys of a space that begin with prefix, in order,
// until it returns false. The value is valid only during the call.
func (st *State) Scan(space, prefix string, yield func(key string, value []byte) bool) error {
	return errStub
}

// NextEpoch returns the broker epoch of this start: greater than every earlier
// one and than atLeast, and not before the clock. It is durable on return.
func (st *State) NextEpoch(atLeast uint64) (uint64, error) { return 0, errStub }
