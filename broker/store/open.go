package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// Store is the message log of a broker and its state. Safe for concurrent use.
type Store struct {
	slow        diskClock
	dir, logDir string
	o           Options
	fs          vfs.FS
	lock        io.Closer
	state       *State
	groupBytes  int

	in    intake
	calls sync.Pool // of *call
	nodes sync.Pool // of *pending
	w     writer
	cache cache
	bufs  buffers
	index entryCache

	health health

	qmu    sync.RWMutex
	queues map[Queue]*queue
	topics map[string]Topic

	topicMu sync.Mutex // one change of topics at a time

	segMu     sync.RWMutex
	segs      []*segment // oldest first; the last one is active
	marks     []string   // of runs without syncs; the opener's and closer's
	ghost     uint32     // dropped segment whose index is kept, 0 = none
	spares    []spare
	entryFree [][]entry

	activeEnd  atomic.Int64 // bytes in the active segment
	activeLast atomic.Int64 // newest store time

	keysMu   sync.Mutex // guards w.keys
	indexBuf []byte     // the keeper's

	keeper    chan struct{} // wakes it
	keepMu    sync.Mutex    // one round at a time
	stop      chan struct{}
	wg        sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

func (o *Options) setDefaults() error {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.SegmentBytes, 64<<20)
	def(&o.MinFreeBytes, 32<<20)
	o.MaxBatchBytes = cmp.Or(o.MaxBatchBytes, 5<<20)
	o.PendingBytes = cmp.Or(o.PendingBytes, 64<<20)
	o.CacheBytes = cmp.Or(o.CacheBytes, 32<<20)
	o.SyncInterval = cmp.Or(o.SyncInterval, 200*time.Millisecond)
	o.CheckpointInterval = cmp.Or(o.CheckpointInterval, 30*time.Second)
	o.UnreadableAfter = cmp.Or(o.UnreadableAfter, 10*time.Second)
	o.RetainInterval = cmp.Or(o.RetainInterval, 30*time.Second)
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	if o.StateFS == nil {
		o.StateFS = pebblefs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Boot = cmp.Or(o.Boot, bootID())
	if o.Report == nil {
		o.Report = func(Event) {}
	}
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(o.Durability > None, "durability %d: unknown", o.Durability)
	refuse(o.SegmentBytes < 4096 || o.SegmentBytes > 2<<30, "segment size %d: must be 4 KiB to 2 GiB", o.SegmentBytes)
	refuse(o.MaxBatchBytes < batch.HeaderSize || int64(o.MaxBatchBytes) > o.SegmentBytes,
		"max batch size %d: must be at least %d and fit into a segment of %d", o.MaxBatchBytes, batch.HeaderSize, o.SegmentBytes)
	refuse(o.PendingBytes < 0 || o.CacheBytes < 0 || o.MinFreeBytes < 0 || o.RetainBytes < 0 || o.RetainAge < 0, "sizes and ages must not be negative")
	refuse(o.SyncInterval < 0 || o.RetainInterval < 0 || o.UnreadableAfter < 0, "intervals must not be negative")
	refuse(o.CheckpointInterval < 0 || o.CheckpointInterval > time.Minute, "checkpoint interval %v: must be at most a minute", o.CheckpointInterval)
	refuse(strings.ContainsAny(o.Boot, "/\\.") || len(o.Boot) > 200, "boot %q: must be at most 200 bytes without slashes and dots", o.Boot)
	return errors.Join(errs...)
}

// maxGroup is the most that is written and synced at once.
const maxGroup = 2 << 20

// Open opens the store in dir, or makes one there. It takes the directory's lock,
// repairs what a crash left and reports what it found through o.Report.
func Open(dir string, o Options) (_ *Store, err error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("store options: %w", err)
	}
	s := &Store{
		dir: dir, logDir: dir + "/log", o: o, fs: o.FS,
		queues: map[Queue]*queue{}, topics: map[string]Topic{},
		keeper: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	s.groupBytes = int(min(maxGroup, max(o.SegmentBytes/4, 64<<10)))
	s.cache = cache{chunkBytes: s.groupBytes + padding, limit: max(o.CacheBytes, 2*(s.groupBytes+padding))}
	s.index.limit = entryCacheBytes
	s.in.limit = int64(o.PendingBytes)
	s.in.wake = make(chan struct{}, 1)
	s.in.room.L = &s.in.mu
	s.w.dedup = newDedup()

	if err := s.fs.MkdirAll(s.logDir); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	if s.lock, err = s.fs.Lock(dir + "/LOCK"); err != nil {
		if errors.Is(err, vfs.ErrLocked) {
			return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
		}
		return nil, fmt.Errorf("store directory %s: %w", dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.abort())
		}
	}()
	_ = s.fs.SyncDir(filepath.Dir(dir)) // best effort: it may not be ours to open
	if err := s.fs.SyncDir(dir); err != nil {
		return nil, fmt.Errorf("make store directory: %w", err)
	}
	names, err := s.fs.List(s.logDir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	if s.state, err = openState(dir, o, len(names) > 0); err != nil {
		return nil, err
	}
	s.state.bounds = s.endOf
	if err := s.recover(names); err != nil {
		return nil, err
	}
	if err := s.begun(); err != nil {
		return nil, err
	}
	s.wg.Go(s.commitLoop)
	s.wg.Go(s.keepLoop)
	return s, nil
}

// abort closes what Open had opened.
func (s *Store) abort() error {
	var errs []error
	if s.state != nil {
		errs = append(errs, s.state.close())
	}
	for _, g := range s.segs {
		if g.file != nil {
			errs = append(errs, g.file.Close())
		}
		if x := g.index.Load(); x != nil {
			errs = append(errs, x.file.Close())
		}
	}
	for _, sp := range s.spares {
		errs = append(errs, sp.file.Close())
	}
	return errors.Join(append(errs, s.lock.Close())...)
}
