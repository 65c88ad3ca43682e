package store

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// mendInterval is the time between two attempts to open the state again after it
// could not be written.
const mendInterval = time.Second

// errReopened: the state was opened again while an update waited, which may or
// may not be part of it.
var errReopened = errors.New("state was opened again")

// withDB calls f with the database, which stays open meanwhile.
func (st *State) withDB(f func(db *pebble.DB) error) error {
	st.dbMu.RLock()
	defer st.dbMu.RUnlock()
	if st.db == nil {
		return fmt.Errorf("read state: %w", st.fatal.err())
	}
	return f(st.db)
}

// mend opens the state again after Pebble gave up, say because others had filled
// the disk: no restart of the broker is needed when there is space again. Updates
// that had failed may be found to be part of it; their callers were told an error,
// which says nothing.
func (st *State) mend() {
	st.dbMu.Lock()
	if st.db != nil {
		st.shut()
		st.db = nil
	}
	cause := st.fatal.clear()
	fresh, err := loadState(st.dir, st.o, false, st.fatal)
	st.mu.Lock()
	durable := st.durable
	st.mu.Unlock()
	if err == nil && fresh.seq < durable {
		cause = &lostError{fmt.Sprintf("%s ends at update %d, and %d was acknowledged", st.fatal.dir, fresh.seq, durable), []error{cause}}
		err = errors.Join(cause, fresh.release())
	}
	if err != nil {
		st.fatal.keep(cause)
		st.dbMu.Unlock()
		return
	}
	st.mu.Lock()
	failed := st.next.done
	st.db, st.cache = fresh.db, fresh.cache
	st.offsets, st.leases, st.graves = fresh.offsets, fresh.leases, fresh.graves
	st.seq, st.durable, st.epoch = fresh.seq, fresh.durable, max(st.epoch, fresh.epoch)
	st.next, st.spare = gathering{batch: st.db.NewBatch()}, gathering{batch: st.db.NewBatch()}
	st.opened++
	st.mu.Unlock()
	st.dbMu.Unlock()
	for _, done := range failed {
		done(cause)
	}
	st.o.Report(Event{Kind: StateReopened, File: st.fatal.dir, Err: cause})
}

// shut closes a database that failed, whatever it says.
func (st *State) shut() {
	defer func() { _ = recover() }() // Pebble may panic on what it left half done
	defer st.cache.Unref()
	_ = st.db.Close() // it failed before
}

// keep puts an error back that was reported before.
func (l *fatalLogger) keep(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = err
}
