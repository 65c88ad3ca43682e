package store

import (
	"container/list"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
)

// maxSpares is the number of dropped segment files kept to be written again. With
// more, retention would give back less of the disk than it promises.
const maxSpares = 1

// canRecycle: Windows does not rename files that are open.
const canRecycle = runtime.GOOS != "windows"

// kick wakes the keeper.
func (s *Store) kick() {
	select {
	case s.keeper <- struct{}{}:
	default:
	}
}

// keepLoop indexes segments, drops old ones and, if so asked, syncs the log.
func (s *Store) keepLoop() {
	retain := time.NewTicker(s.o.RetainInterval)
	defer retain.Stop()
	every := s.o.SyncInterval
	if s.o.Durability != Interval {
		every = time.Hour
	}
	sync := time.NewTicker(every)
	defer sync.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-sync.C:
			s.syncActive()
			continue
		case <-retain.C:
		case <-s.keeper:
		}
		s.keep()
	}
}

// keep is one round of the keeper.
func (s *Store) keep() {
	s.keepMu.Lock()
	defer s.keepMu.Unlock()
	s.indexSegments()
	s.retain()
}

// syncActive syncs the segment being written; those left are synced when they
// are indexed.
func (s *Store) syncActive() {
	s.segMu.RLock()
	g := s.segs[len(s.segs)-1]
	s.segMu.RUnlock()
	end := s.activeEnd.Load()
	if s.o.Durability != Interval || end == g.synced {
		return
	}
	if err := g.file.Sync(); err != nil {
		s.o.Report(Event{Kind: WriteFailed, File: g.name, Position: end, Err: err})
		// What the system dropped will be found and reported when it is read;
		// nothing more is to be written behind it.
		_ = s.onCommitter(func() { s.w.abandon = s.w.abandon || s.w.seg == g }) // refused only when closing
		return
	}
	g.synced = end
}

// retain drops the oldest segments that are too old or too many.
func (s *Store) retain() {
	if s.o.RetainAge == 0 && s.o.RetainBytes == 0 {
		return
	}
	now := s.o.Now().UnixMilli()
	tooOld := func(last int64) bool {
		return s.o.RetainAge > 0 && now-last > s.o.RetainAge.Milliseconds()
	}
	if s.activeEnd.Load() > 0 && tooOld(s.activeLast.Load()) {
		err := s.onCommitter(func() {
			if s.w.pos > 0 && tooOld(s.w.lastTime) {
				if err := s.roll(); err != nil {
					s.o.Report(Event{Kind: WriteFailed, File: s.w.seg.name, Err: err})
				}
			}
		})
		if err != nil {
			return // closing
		}
		s.indexSegments()
	}
	s.segMu.RLock()
	left := slices.Clone(s.segs[:len(s.segs)-1])
	s.segMu.RUnlock()
	total := s.activeEnd.Load()
	for _, g := range left {
		total += g.end
	}
	for _, g := range left {
		if g.index.Load() == nil || !tooOld(g.last) && (s.o.RetainBytes == 0 || total <= s.o.RetainBytes) {
			return
		}
		total -= g.end
		if err := s.drop(g); err != nil {
			s.o.Report(Event{Kind: WriteFailed, File: g.name, Err: err})
			return
		}
		s.o.Report(Event{Kind: SegmentDropped, File: g.name, Bytes: g.end})
	}
}

// drop removes the oldest segment. Its file is kept to be written again, if none
// is. Its index is kept until the next segment is dropped: it says where idle
// queues go on, and the next segment's index may be missing or damaged.
func (s *Store) drop(g *segment) error {
	// Out of the way first: should that fail, nothing has changed.
	aside := fmt.Sprintf("%s/spare-%010d", s.logDir, g.id)
	size, err := g.file.Size()
	if err == nil {
		err = s.fs.Rename(g.name, aside)
	}
	if err != nil {
		return fmt.Errorf("put %s aside: %w", g.name, err)
	}
	s.qmu.RLock()
	for _, q := range s.queues {
		q.mu.Lock()
		if len(q.spans) > 0 && q.spans[0].seg == g {
			q.spans = slices.Delete(q.spans, 0, 1)
		}
		q.mu.Unlock()
	}
	s.qmu.RUnlock()
	s.segMu.Lock()
	s.segs = slices.Clone(s.segs[1:])
	ghost := s.ghost
	s.ghost = g.id
	recycle := canRecycle && len(s.spares) < maxSpares
	if recycle {
		s.spares = append(s.spares, spare{name: aside, file: g.file, size: size})
	}
	s.segMu.Unlock()

	errs := []error{g.index.Load().file.Close()}
	if !recycle {
		errs = append(errs, g.file.Close(), s.fs.Remove(aside))
	}
	if ghost != 0 {
		errs = append(errs, s.fs.Remove(indexName(s.logDir, ghost)))
	}
	if err := s.fs.SyncDir(s.logDir); err != nil { // the file may come back: its graves stay
		return errors.Join(append(errs, fmt.Errorf("drop %s: %w", g.name, err))...)
	}
	return errors.Join(append(errs, s.state.dropGraves(g.id))...) // its index still tells of those in it
}

// Close finishes what waits, syncs and closes. Results must be released before.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	close(s.stop)
	s.in.close()
	s.wg.Wait()

	var wake []*Waiter
	s.qmu.RLock()
	for _, q := range s.queues {
		q.mu.Lock()
		q.closed = true
		wake = q.takeWaiters(wake)
		q.mu.Unlock()
	}
	s.qmu.RUnlock()
	for _, w := range wake {
		w.Wake(false)
	}
	s.indexSegments()
	err := s.checkpoint()
	if err == nil {
		err = s.ended()
	}
	return errors.Join(err, s.abort())
}

// checkpoint leaves an index of the active segment, so that the next start need
// not read it.
func (s *Store) checkpoint() error {
	w := &s.w
	if w.abandon { // what was answered with an error shall not be found
		return s.leave()
	}
	if w.pos == 0 {
		return nil
	}
	if err := w.seg.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", w.seg.name, err)
	}
	return s.writeIndex(w.seg, s.snapshot().encode(nil, w.seg.id))
}

// entryCacheBytes bounds the entries of sealed segments in memory.
const entryCacheBytes = 16 << 20

// entryCache keeps the entries of sealed segments that were used last.
type entryCache struct {
	limit int

	mu    sync.Mutex
	bytes int
	order list.List // of *cachedEntries, last used first
	items map[entryKey]*list.Element
}

type entryKey struct {
	seg   uint32
	queue *queue
}

type cachedEntries struct {
	key     entryKey
	entries []entry
}

func (c *entryCache) get(k entryKey) []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.items[k]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*cachedEntries).entries
}

func (c *entryCache) put(k entryKey, entries []entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.items[k] != nil {
		return
	}
	if c.items == nil {
		c.items = map[entryKey]*list.Element{}
	}
	c.items[k] = c.order.PushFront(&cachedEntries{k, entries})
	c.bytes += entryBytes * len(entries)
	for c.bytes > c.limit && c.order.Len() > 1 {
		old := c.order.Remove(c.order.Back()).(*cachedEntries)
		delete(c.items, old.key)
		c.bytes -= entryBytes * len(old.entries)
	}
}

// entries returns the entries of a span, from its index. If that is damaged they
// are gathered from the segment.
func (s *Store) entries(q *queue, sp *span) ([]entry, error) {
	key := entryKey{sp.seg.id, q}
	if e := s.index.get(key); e != nil {
		return e, nil
	}
	x := sp.seg.index.Load()
	if x == nil {
		return nil, fmt.Errorf("%w: segment %s has no index", ErrDamaged, sp.seg.name)
	}
	entries, err := x.load(sp)
	if err != nil {
		if !s.holds(q, &planned{seg: sp.seg, base: sp.base}) {
			return nil, fmt.Errorf("%w: %d of %s/%d was dropped just now", ErrOffsetRange, sp.base, q.id.Topic, q.id.ID)
		}
		cause := err
		if entries, err = s.gather(q, sp); err != nil {
			return nil, err
		}
		s.o.Report(Event{Kind: IndexRebuilt, File: indexName(s.logDir, sp.seg.id), Err: cause})
	}
	s.index.put(key, entries)
	return entries, nil
}

// gather makes the entries of a span from the batches themselves.
func (s *Store) gather(q *queue, sp *span) ([]entry, error) {
	entries := []entry{}
	c := scanner{file: sp.seg.file, name: sp.seg.name, id: sp.seg.id, size: sp.seg.end, left: true, report: s.o.Report}
	c.bad = func(again func() error) bool { return s.unreadable(sp.seg, again) }
	_, _, err := c.scan(0, func(pos int64, h *batch.Header) {
		if o := h.Stamp.BaseOffset; h.IsFor(q.id.Topic, q.id.ID) && o >= sp.base && o < sp.next {
			entries = append(entries, entry{delta: uint32(o - sp.base), pos: uint32(pos), size: uint32(h.Length), tags: tagBits(h)})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("gather %s/%d from %s: %w", q.id.Topic, q.id.ID, sp.seg.name, err)
	}
	return entries, nil
}
