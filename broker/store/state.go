package store

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

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
	acked  *acked
	slow   diskClock
	bounds func(Queue) (end int64, ok bool)

	mu       sync.Mutex
	offsets  map[string]map[Queue]*offset
	leases   map[string]map[Queue]Lease
	graves   map[Queue]address // where in the log queues were deleted
	burials  map[Queue]uint64  // deletions since the start, by number
	burial   atomic.Uint64     // number of the last one
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

// gather adds changes to the next group, unless check (which may be nil) refuses
// them. Both run with st.mu held; an error of f is one of Pebble's encoding, after
// which the group is not to be trusted.
func (st *State) gather(check func() error, f func(g *gathering) error, done func(error)) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return ErrClosed
	}
	if err := st.fatal.err(); err != nil {
		return err
	}
	if check != nil {
		if err := check(); err != nil {
			return err
		}
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
	if err := st.gather(nil, f, func(err error) { done <- err }); err != nil {
		return err
	}
	return <-done
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
		st.slow.begin()
		err = g.batch.Commit(pebble.Sync)
		st.slow.end()
	}
	if err == nil {
		err = st.fatal.err() // Commit itself does not say
	}
	if err != nil {
		st.fatal.set(err)
		return fmt.Errorf("write state: %w", err)
	}
	st.acked.note(seq)
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
