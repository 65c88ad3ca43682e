package broker

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/session"
)

// keptLeases are those that outlived the broker: their holders come back and go on from
// their own places, not from the committed offset. A place past the end that the queue
// had when the broker started is one in a log that is lost: the directory was put back
// from a copy, or a disk kept less than it said. What is stored there now is another
// message, which such a holder would pass over without a word. It is refused, so that it
// takes the lease anew, and goes on from what is committed.
type keptLeases struct {
	left   atomic.Int32 // len(leases)
	mu     sync.Mutex
	leases map[lease.Key]keptLease
}

type keptLease struct {
	epoch session.Epoch
	end   int64 // of the queue, when the broker started
}

// newKeptLeases takes the leases of a store that nothing was appended to yet.
func newKeptLeases(name string, st *store.Store) *keptLeases {
	k := &keptLeases{leases: make(map[lease.Key]keptLease)}
	for _, l := range st.State().Leases() {
		if _, end, err := st.Bounds(l.Queue); err == nil && l.Holder != "" {
			key := lease.Key{Group: l.Group, Queue: allocate.Queue{Topic: l.Queue.Topic, Broker: name, ID: l.Queue.ID}}
			k.leases[key] = keptLease{session.Epoch{Broker: l.EpochBroker, Counter: l.EpochCounter}, end}
		}
	}
	k.left.Store(int32(len(k.leases))) //nolint:gosec // as many as fit into memory
	return k
}

// check refuses a fetch or commit from a place that is lost. The first fetch from one that
// is not shows that the holder is where it may be.
func (k *keptLeases) check(group string, q allocate.Queue, e session.Epoch, offset int64, fetch bool) error {
	if k.left.Load() == 0 || e.IsZero() {
		return nil
	}
	key := lease.Key{Group: group, Queue: q}
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.leases[key]
	switch c := e.Compare(l.epoch); {
	case !ok || c < 0: // the core says what is wrong with an older one
		return nil
	case c == 0 && offset > l.end:
		return fmt.Errorf("%w: offset %d of topic %q queue %d is past %d, where the queue ended when the broker started: the lease is to be taken anew",
			rpcerr.ErrStaleEpoch, offset, q.Topic, q.ID, l.end)
	case c > 0 || fetch:
		delete(k.leases, key)
		k.left.Add(-1)
	}
	return nil
}
