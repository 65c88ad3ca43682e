package store

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tacitmq/tacit/internal/vfs"
)

// segment is one file of the log.
type segment struct {
	id   uint32
	name string // of the file, with directory
	file vfs.File
	end  int64 // of the data, once the segment is left
	last int64 // newest store time, once the segment is left
	// synced is how far the keeper synced it while it was written.
	synced int64

	index atomic.Pointer[index] // nil until it is written

	mu     sync.Mutex
	seal   *sealing       // what the index will be made of, until it is written
	broken map[int64]bool // positions that were reported as damaged
	// suspect is what is known of failed reads.
	suspect suspicion
}

func segmentName(dir string, id uint32) string { return fmt.Sprintf("%s/%010d.log", dir, id) }
func indexName(dir string, id uint32) string   { return fmt.Sprintf("%s/%010d.index", dir, id) }

// parseName returns the id of a log or index file.
func parseName(name string) (id uint32, ext string, ok bool) {
	base, ext, found := strings.Cut(name, ".")
	if !found || len(base) != 10 {
		return 0, "", false
	}
	for _, c := range base {
		if c < '0' || c > '9' || id > (1<<32-1)/10-1 {
			return 0, "", false
		}
		id = id*10 + uint32(c-'0')
	}
	return id, ext, true
}

// reportDamage reports a position once.
func (g *segment) reportDamage(report func(Event), pos int64, bytes int64, err error) {
	g.mu.Lock()
	known := g.broken[pos]
	if g.broken == nil {
		g.broken = map[int64]bool{}
	}
	g.broken[pos] = true
	g.mu.Unlock()
	if !known {
		report(Event{Kind: Damaged, File: g.name, Position: pos, Bytes: bytes, Err: err})
	}
}

// spare is a dropped segment's file, to be written again.
type spare struct {
	name string
	file vfs.File
	size int64
}

// begin opens the file of the next segment: a spare one if there is any.
func (s *Store) begin(id uint32) (g *segment, size int64, err error) {
	g = &segment{id: id, name: segmentName(s.logDir, id)}
	s.segMu.Lock()
	var sp spare
	if n := len(s.spares); n > 0 {
		sp = s.spares[n-1]
		s.spares = s.spares[:n-1]
	}
	s.segMu.Unlock()
	if sp.file != nil {
		if sp.name != g.name { // it was begun before, and not used
			err = s.fs.Rename(sp.name, g.name)
		}
		if err != nil {
			s.segMu.Lock()
			s.spares = append(s.spares, sp)
			s.segMu.Unlock()
			return nil, 0, fmt.Errorf("recycle %s: %w", sp.name, err)
		}
		g.file, size = sp.file, sp.size
	} else if g.file, err = s.fs.Create(g.name); err != nil {
		return nil, 0, fmt.Errorf("create segment: %w", err)
	}
	if err := s.fs.SyncDir(s.logDir); err != nil {
		return nil, 0, errors.Join(fmt.Errorf("create segment %s: %w", g.name, err), g.file.Close())
	}
	return g, size, nil
}

// roll leaves the active segment for a new one. The keeper will index it.
func (s *Store) roll() error { return s.rollTo(s.w.seg.id + 1) }

func (s *Store) rollTo(id uint32) error {
	g, size, err := s.begin(id)
	if err != nil {
		return err
	}
	s.detach()
	s.attach(g, size)
	s.kick()
	return nil
}

// leave abandons a segment whose end is in doubt: nothing may be written to the
// next one before an index says where this one ends.
func (s *Store) leave() error {
	old := s.w.seg
	_ = old.file.Truncate(s.w.pos) // the index is what counts
	g, size, err := s.begin(old.id + 1)
	if err != nil {
		return err
	}
	x := s.snapshot()
	x.keys = slices.Clone(x.keys) // encode sorts them
	x.left = true
	b := x.encode(nil, old.id)
	if err := s.writeIndex(old, b); err != nil {
		s.segMu.Lock()
		s.spares = append(s.spares, spare{name: g.name, file: g.file, size: size})
		s.segMu.Unlock()
		return err
	}
	s.detach()
	s.attach(g, size)
	s.w.abandon = false
	s.kick()
	return nil
}

func (s *Store) attach(g *segment, size int64) {
	s.activeEnd.Store(0) // first, lest retention take the bytes of the one before for those of g
	s.segMu.Lock()
	s.segs = append(s.segs, g)
	s.segMu.Unlock()
	w := &s.w
	w.seg, w.pos, w.size, w.checkAt, w.graves = g, 0, size, 0, map[Queue]address{}
}

// snapshot collects what an index of the active segment would say now.
func (s *Store) snapshot() *sealing {
	w := &s.w
	x := &sealing{end: w.pos, last: w.lastTime}
	s.qmu.RLock()
	qs := make([]*queue, 0, len(s.queues))
	for _, q := range s.queues {
		qs = append(qs, q)
	}
	s.qmu.RUnlock()
	sortQueues(qs)
	x.queues = dead(w.graves)
	place := make(map[*queue]uint32, len(qs))
	for _, q := range qs {
		place[q] = uint32(len(x.queues))
		st := queueState{queue: q, id: q.id, span: span{seg: w.seg, base: q.next, next: q.next}}
		if len(q.active) > 0 {
			st.span = span{seg: w.seg, base: q.base, next: q.next, first: q.first, last: q.last, entries: q.active}
		}
		x.queues = append(x.queues, st)
	}
	x.keys = w.keys
	x.windows = w.dedup.encodeWindows(place)
	return x
}

// detach turns what queues have in the active segment into spans.
func (s *Store) detach() {
	w := &s.w
	x := s.snapshot()
	x.left = true
	g := w.seg
	g.mu.Lock()
	g.end, g.last, g.seal = w.pos, w.lastTime, x
	g.mu.Unlock()
	spare := s.takeEntries(len(x.queues))
	for _, st := range x.queues {
		q := st.queue
		if len(st.span.entries) == 0 {
			continue
		}
		q.mu.Lock()
		q.spans = append(q.spans, st.span)
		q.active = nil
		if n := len(spare); n > 0 {
			q.active = spare[n-1][:0]
			spare = spare[:n-1]
		}
		q.mu.Unlock()
	}
	s.keysMu.Lock()
	w.keys = nil
	s.keysMu.Unlock()
}

// takeEntries returns recycled arrays of entries.
func (s *Store) takeEntries(n int) [][]entry {
	s.segMu.Lock()
	defer s.segMu.Unlock()
	at := max(0, len(s.entryFree)-n)
	out := slices.Clone(s.entryFree[at:])
	clear(s.entryFree[at:])
	s.entryFree = s.entryFree[:at]
	return out
}

// writeIndex makes the index file of a segment durable.
func (s *Store) writeIndex(g *segment, b []byte) error {
	name := indexName(s.logDir, g.id)
	f, err := s.fs.Create(name + ".tmp")
	if err != nil {
		return fmt.Errorf("create index: %w", err)
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		_ = s.fs.Remove(name + ".tmp")
		return fmt.Errorf("write index %s: %w", name, err)
	}
	if err := s.fs.Rename(name+".tmp", name); err != nil {
		return fmt.Errorf("name index %s: %w", name, err)
	}
	if err := s.fs.SyncDir(s.logDir); err != nil {
		return fmt.Errorf("name index %s: %w", name, err)
	}
	return nil
}

// indexSegments writes the indexes of segments that were left. It is the
// keeper's.
func (s *Store) indexSegments() {
	s.segMu.RLock()
	segs := slices.Clone(s.segs)
	s.segMu.RUnlock()
	for _, g := range segs[:max(0, len(segs)-1)] {
		if g.index.Load() != nil || g.seal == nil {
			continue
		}
		if err := s.indexSegment(g); err != nil {
			s.o.Report(Event{Kind: WriteFailed, File: indexName(s.logDir, g.id), Err: err})
			return // the next round tries again
		}
	}
}

func (s *Store) indexSegment(g *segment) error {
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("sync segment %s: %w", g.name, err)
	}
	x := g.seal
	g.mu.Lock() // LookupKey reads the keys, which encode sorts
	s.indexBuf = x.encode(s.indexBuf[:0], g.id)
	g.mu.Unlock()
	if err := s.writeIndex(g, s.indexBuf); err != nil {
		return err
	}
	opened, err := openIndex(s.fs, indexName(s.logDir, g.id), g.id)
	if err != nil {
		return err
	}
	opened.directory, opened.wins = nil, nil // read again if needed
	g.index.Store(opened)
	g.mu.Lock()
	g.seal = nil
	g.mu.Unlock()
	var free [][]entry
	for _, st := range x.queues {
		q := st.queue
		if st.dead {
			continue
		}
		q.mu.Lock()
		if i, ok := q.spanOf(g); ok {
			free = append(free, q.spans[i].entries)
			q.spans[i].at, q.spans[i].n, q.spans[i].sum = st.span.at, st.span.n, st.span.sum
			q.spans[i].entries = nil
		}
		q.mu.Unlock()
	}
	s.segMu.Lock()
	if len(s.entryFree)+len(free) <= 4096 {
		s.entryFree = append(s.entryFree, free...)
	}
	s.segMu.Unlock()
	return nil
}

// spanOf returns the place of the span in segment g.
func (q *queue) spanOf(g *segment) (int, bool) {
	return slices.BinarySearchFunc(q.spans, g.id, func(sp span, id uint32) int { return cmp.Compare(sp.seg.id, id) })
}
