package store

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/internal/vfs"
)

// Names in the store's directory. Checkpoints are "state-" and the number of the
// last group of updates they hold, in hexadecimal.
const (
	liveState      = "state"
	damagedState   = "state.damaged"
	restoringState = "state.restoring"
	checkpointName = "state-"
	// keptCheckpoints of the state are kept.
	keptCheckpoints = 2
)

// fatalLogger takes what Pebble logs. Pebble calls Fatalf when it cannot go on,
// and expects the process to end; here the state refuses all further updates.
type fatalLogger struct {
	report func(Event)
	dir    string

	mu       sync.Mutex
	first    error
	retrying bool // said that Pebble tries again
}

func (l *fatalLogger) Infof(string, ...any)  {}
func (l *fatalLogger) Errorf(string, ...any) {}

func (l *fatalLogger) Fatalf(format string, args ...any) {
	err := fmt.Errorf("state: "+format, args...)
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = fmt.Errorf("state: "+strings.ReplaceAll(format, "%v", "%w"), args...)
			if vfs.IsFull(cause) {
				err = fmt.Errorf("%w: %w", ErrNoSpace, err)
			}
			break
		}
	}
	l.set(err)
}

// flushRetry is the time between two attempts of Pebble to write out what it has in
// memory. It does not wait by itself, at a start not even to give up.
const flushRetry = 100 * time.Millisecond

// background is told what Pebble will try again, and slows it down.
func (l *fatalLogger) background(err error) {
	l.mu.Lock()
	known := l.retrying
	l.retrying = true
	l.mu.Unlock()
	if !known {
		l.report(Event{Kind: WriteFailed, File: l.dir, Err: err, Detail: "trying again until it can be written"})
	}
	time.Sleep(flushRetry)
}

func (l *fatalLogger) set(err error) {
	l.mu.Lock()
	first := l.first == nil
	if first {
		l.first = err
	}
	l.mu.Unlock()
	if first {
		l.report(Event{Kind: WriteFailed, File: l.dir, Err: err})
	}
}

// clear forgets the error and returns it.
func (l *fatalLogger) clear() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.first
	l.first = nil
	return err
}

func (l *fatalLogger) err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// openState opens the newest copy of the state that can be read: the live one,
// unless it is damaged or has lost what a checkpoint still has. used says that
// the store is not new.
func openState(dir string, o Options, used bool) (st *State, err error) {
	fs := o.StateFS
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	// Pebble makes its own directory durable, but not where it is.
	_ = syncPebbleDir(fs, fs.PathDir(dir)) // best effort: it may not be ours to open
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list store directory: %w", err)
	}
	if slices.Contains(names, restoringState) {
		if err := fs.RemoveAll(fs.PathJoin(dir, restoringState)); err != nil {
			return nil, fmt.Errorf("remove a half restored state: %w", err)
		}
	}
	op := opening{dir: dir, o: o, used: used, live: slices.Contains(names, liveState), liveName: fs.PathJoin(dir, liveState)}
	op.logger = &fatalLogger{report: o.Report, dir: op.liveName}
	if op.copies, err = checkpoints(fs, dir, names); err != nil {
		return nil, err
	}
	if op.acked, op.want, err = openAcked(dir, o, slices.Contains(names, ackedName)); err != nil {
		return nil, err
	}
	if st, err = op.newest(); err != nil {
		return nil, errors.Join(err, op.acked.close())
	}
	if op.want == 0 { // not known until now
		if err := op.acked.reset(st.seq); err != nil {
			return nil, errors.Join(err, st.release(), op.acked.close())
		}
	}
	st.acked = op.acked
	st.start()
	if err := syncPebbleDir(fs, dir); err != nil {
		return nil, errors.Join(err, st.close())
	}
	return st, nil
}

// opening looks for the state to go on with.
type opening struct {
	dir      string
	o        Options
	used     bool
	live     bool // there is one
	liveName string
	copies   []uint64 // newest first
	acked    *acked
	want     uint64 // number of the last group known to be acknowledged
	logger   *fatalLogger
	tried    []error
}

// failed notes what did not open, and why.
func (op *opening) failed(name string, err error) {
	op.tried = append(op.tried, err)
	op.o.Report(Event{Kind: StateTried, File: name, Err: err})
}

// newest opens the newest state that can be read, but not one that silently lost
// acknowledged updates, unless that is accepted.
func (op *opening) newest() (*State, error) {
	switch {
	case op.live:
		if st, err := op.openLive(); st != nil || err != nil {
			return st, err
		}
	case op.used || len(op.copies) > 0:
		op.failed(op.liveName, errors.New("state is missing"))
	}
	if !op.used && len(op.copies) == 0 { // new, or not even made completely
		if op.live {
			if err := op.o.StateFS.RemoveAll(op.liveName); err != nil {
				return nil, fmt.Errorf("remove a half made state: %w", err)
			}
		}
		return op.create()
	}
	for _, seq := range op.copies {
		_ = op.logger.clear()
		name := op.o.StateFS.PathJoin(op.dir, checkpointDir(seq))
		st, err := op.restore(seq)
		if err != nil {
			op.failed(name, err)
			continue
		}
		op.o.Report(Event{Kind: StateRestored, File: name, Err: errors.New(brief(op.tried[0])), Detail: op.lost(seq)})
		return st, nil
	}
	if !op.o.AcceptStateLoss {
		return nil, &lostError{fmt.Sprintf("%s: restore it from a backup, or start once with --accept-state-loss, and groups start over", op.unopened()), op.tried}
	}
	if err := putAside(op.o.StateFS, op.dir); err != nil {
		return nil, err
	}
	op.o.Report(Event{Kind: StateEmpty, File: op.liveName, Err: errors.New(brief(op.tried[0]))})
	return op.create()
}

// unopened says what there is of the state.
func (op *opening) unopened() string {
	var what string
	if op.live {
		what = fmt.Sprintf("%s cannot be read (%s)", op.liveName, brief(op.tried[0]))
	} else {
		what = op.liveName + " is missing, though there are messages"
	}
	switch n := len(op.copies); n {
	case 0:
		return what + ", and there is no copy of it"
	case 1:
		return what + ", nor can its copy be read"
	default:
		return fmt.Sprintf("%s, nor can its %d copies be read", what, n)
	}
}

// openLive opens the live state. It returns none, and no error, if a copy has to
// take its place.
func (op *opening) openLive() (*State, error) {
	newestCopy := uint64(0)
	if len(op.copies) > 0 {
		newestCopy = op.copies[0]
	}
	st, err := loadState(op.dir, op.o, false, op.logger)
	switch {
	case vfs.IsFull(err), errors.Is(err, os.ErrPermission):
		return nil, err // nothing is wrong with the state itself
	case err != nil:
		op.failed(op.liveName, err)
		return nil, nil //nolint:nilnil // as documented
	case st.seq >= max(newestCopy, op.want):
		return st, nil
	}
	have := max(st.seq, newestCopy)
	op.failed(op.liveName, fmt.Errorf("it ends at update %d, a copy at %d, and %d was acknowledged", st.seq, newestCopy, op.want))
	if have < op.want && !op.o.AcceptStateLoss {
		return nil, errors.Join(&lostError{fmt.Sprintf(
			"%s lacks updates %d to %d, which were acknowledged (damaged, or replaced by an older one): restore it from a backup, or start once with --accept-state-loss, and offsets and leases are older than they were",
			op.liveName, have+1, op.want), op.tried}, st.release())
	}
	if st.seq < newestCopy {
		if err := st.release(); err != nil {
			return nil, fmt.Errorf("close state: %w", err)
		}
		return nil, nil //nolint:nilnil // as documented
	}
	if err := op.acked.reset(st.seq); err != nil {
		return nil, errors.Join(err, st.release())
	}
	op.o.Report(Event{Kind: StateLost, File: op.liveName, Err: ErrStateLost, Detail: op.lost(st.seq)})
	return st, nil
}

// lost says what a state that ends at seq lacks.
func (op *opening) lost(seq uint64) string {
	switch {
	case op.want == 0:
		return "opened from a copy: offsets committed since it was made are lost"
	case seq >= op.want:
		return "opened from a copy: nothing that was acknowledged is known to be lost"
	}
	return fmt.Sprintf("updates %d to %d, which were acknowledged, are lost: offsets and leases are older than they were", seq+1, op.want)
}

// create makes a new state.
func (op *opening) create() (*State, error) {
	op.want = 0
	_ = op.logger.clear()
	return loadState(op.dir, op.o, true, op.logger)
}

func checkpointDir(seq uint64) string { return fmt.Sprintf("%s%016x", checkpointName, seq) }

// checkpoints returns the numbers of the copies, newest first, and removes half
// made ones.
func checkpoints(fs pebblefs.FS, dir string, names []string) ([]uint64, error) {
	var out []uint64
	for _, name := range names {
		hex, ok := strings.CutPrefix(name, checkpointName)
		if !ok {
			continue
		}
		if seq, err := strconv.ParseUint(hex, 16, 64); err == nil && len(hex) == 16 {
			out = append(out, seq)
		} else if err := fs.RemoveAll(fs.PathJoin(dir, name)); err != nil {
			return nil, fmt.Errorf("remove a half made copy of the state: %w", err)
		}
	}
	slices.Sort(out)
	slices.Reverse(out)
	return out, nil
}

// putAside moves a damaged state out of the way, for somebody to look at.
func putAside(fs pebblefs.FS, dir string) error {
	live, aside := fs.PathJoin(dir, liveState), fs.PathJoin(dir, damagedState)
	if _, err := fs.Stat(live); err != nil {
		return nil //nolint:nilerr // there is none
	}
	if err := fs.RemoveAll(aside); err != nil {
		return fmt.Errorf("remove %s: %w", aside, err)
	}
	if err := fs.Rename(live, aside); err != nil {
		return fmt.Errorf("put the damaged state aside: %w", err)
	}
	return nil
}

// restore makes a copy the live state and opens it.
func (op *opening) restore(seq uint64) (*State, error) {
	dir, fs := op.dir, op.o.StateFS
	from, tmp := fs.PathJoin(dir, checkpointDir(seq)), fs.PathJoin(dir, restoringState)
	if err := fs.RemoveAll(tmp); err != nil {
		return nil, fmt.Errorf("remove %s: %w", tmp, err)
	}
	if _, err := pebblefs.Clone(fs, fs, from, tmp, pebblefs.CloneSync); err != nil {
		return nil, fmt.Errorf("copy %s: %w", from, err)
	}
	if seq < op.want { // before the copy is live, lest it be refused after a crash
		if err := op.acked.reset(seq); err != nil {
			return nil, err
		}
	}
	if err := putAside(fs, dir); err != nil {
		return nil, err
	}
	if err := fs.Rename(tmp, op.liveName); err != nil {
		return nil, fmt.Errorf("restore %s: %w", from, err)
	}
	if err := syncPebbleDir(fs, dir); err != nil {
		return nil, err
	}
	st, err := loadState(dir, op.o, false, op.logger)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return st, nil
}

func syncPebbleDir(fs pebblefs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// loadState opens the live state and reads all of it that is small.
func loadState(dir string, o Options, create bool, logger *fatalLogger) (_ *State, err error) {
	live := o.StateFS.PathJoin(dir, liveState)
	st := &State{
		o: o, dir: dir,
		fatal:   logger,
		bounds:  func(Queue) (int64, bool) { return 0, false },
		offsets: map[string]map[Queue]*offset{}, leases: map[string]map[Queue]Lease{}, graves: map[Queue]address{}, burials: map[Queue]uint64{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
		cache: pebble.NewCache(8 << 20),
	}
	defer func() {
		if r := recover(); r != nil { // Pebble panics on some damage
			err = fmt.Errorf("open state %s: %v", live, r)
		}
		if err != nil {
			if st.db != nil {
				_ = st.release() // err says more
			} else {
				st.cache.Unref()
			}
		}
	}()
	st.db, err = pebble.Open(live, &pebble.Options{
		FS: o.StateFS, Cache: st.cache, Logger: st.fatal,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       4 << 20,
		ErrorIfNotExists:   !create,
		EventListener:      &pebble.EventListener{BackgroundError: logger.background},
	})
	if err != nil {
		return nil, fmt.Errorf("open state %s: %w", live, err)
	}
	if err := errors.Join(st.fatal.err(), st.load()); err != nil {
		return nil, fmt.Errorf("read state %s: %w", live, err)
	}
	return st, nil
}

// load reads offsets, leases and numbers, and every topic and grave once, so
// that damage shows now.
func (st *State) load() error {
	read := func(kind byte, f func(k, v []byte) error) error {
		return st.scan([]byte{kind}, []byte{kind + 1}, func(k, v []byte) (bool, error) { return true, f(k, v) })
	}
	number := func(kind byte, set func(uint64)) error {
		return read(kind, func(_, v []byte) error {
			n, err := decodeUvarint(v)
			set(n)
			return err
		})
	}
	err := errors.Join(
		number(keySeq, func(n uint64) { st.seq, st.durable = n, n }),
		number(keyEpoch, func(n uint64) { st.epoch = n }),
		number(keyScheduleID, func(n uint64) { st.schedule.Store(n) }),
		read(keyOffset, func(k, v []byte) error {
			q, group, err := parseQueueKey(k)
			if err != nil {
				return err
			}
			n, err := decodeUvarint(v)
			if st.offsets[group] == nil {
				st.offsets[group] = map[Queue]*offset{}
			}
			st.offsets[group][q] = &offset{latest: int64(n), durable: int64(n)}
			return err
		}),
		read(keyLease, func(k, v []byte) error {
			l, err := decodeLease(k, v)
			if st.leases[l.Group] == nil {
				st.leases[l.Group] = map[Queue]Lease{}
			}
			st.leases[l.Group][l.Queue] = l
			return err
		}),
		read(keyTopic, func(k, v []byte) error { _, err := decodeTopic(k, v); return err }),
		read(keyGrave, func(k, v []byte) error {
			q, _, err := parseQueueKey(k)
			if err != nil {
				return err
			}
			st.graves[q], err = decodeAddress(v)
			return err
		}),
	)
	if err != nil {
		return err
	}
	// The schedule may be large; its ends show whether it can be read at all.
	return st.scan([]byte{keySchedule}, []byte{keySchedule + 1}, func(_, _ []byte) (bool, error) { return false, nil })
}

// start begins to take updates.
func (st *State) start() {
	st.next.batch, st.spare.batch = st.db.NewBatch(), st.db.NewBatch()
	st.wg.Go(st.commitLoop)
	st.wg.Go(st.checkpointLoop)
}

func (st *State) checkpointLoop() {
	t := time.NewTicker(st.o.CheckpointInterval)
	defer t.Stop()
	mend := time.NewTicker(mendInterval)
	defer mend.Stop()
	for {
		select {
		case <-st.stop:
			return
		case <-mend.C:
			st.acked.sync()
			if st.fatal.err() != nil {
				st.mend()
			}
		case <-t.C:
			if err := st.checkpoint(); err != nil {
				st.o.Report(Event{Kind: WriteFailed, File: st.dir, Detail: "copy of the state", Err: err})
			}
		}
	}
}

// checkpoint makes a copy of the state, unless nothing has changed.
func (st *State) checkpoint() error {
	st.mu.Lock()
	seq := st.durable
	st.mu.Unlock()
	if seq == st.saved {
		return nil
	}
	if err := st.fatal.err(); err != nil {
		return nil //nolint:nilerr // reported already
	}
	fs := st.o.StateFS
	tmp := fs.PathJoin(st.dir, checkpointName+"making")
	final := fs.PathJoin(st.dir, checkpointDir(seq))
	if err := fs.RemoveAll(tmp); err != nil {
		return fmt.Errorf("remove %s: %w", tmp, err)
	}
	if err := st.withDB(func(db *pebble.DB) error { return db.Checkpoint(tmp, pebble.WithFlushedWAL()) }); err != nil {
		return fmt.Errorf("make %s: %w", tmp, err)
	}
	if err := fs.RemoveAll(final); err != nil {
		return fmt.Errorf("remove %s: %w", final, err)
	}
	if err := fs.Rename(tmp, final); err != nil {
		return fmt.Errorf("name %s: %w", final, err)
	}
	if err := syncPebbleDir(fs, st.dir); err != nil {
		return err
	}
	st.saved = seq
	names, err := fs.List(st.dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", st.dir, err)
	}
	all, err := checkpoints(fs, st.dir, names)
	if err != nil {
		return err
	}
	for _, old := range all[min(len(all), keptCheckpoints):] {
		if err := fs.RemoveAll(fs.PathJoin(st.dir, checkpointDir(old))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove an old copy: %w", err)
		}
	}
	return nil
}

// close writes what waits, makes a copy and closes.
func (st *State) close() error {
	close(st.stop)
	st.mu.Lock()
	st.closed = true
	if st.idle {
		st.idle = false
		st.wake <- struct{}{}
	}
	st.mu.Unlock()
	st.wg.Wait()
	err := st.checkpoint()
	return errors.Join(err, st.next.batch.Close(), st.spare.batch.Close(), st.release(), st.acked.close())
}

func (st *State) release() error {
	if st.db == nil { // it could not be opened again
		return nil
	}
	defer st.cache.Unref()
	return st.db.Close()
}
