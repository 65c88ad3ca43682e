package store

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tacitmq/tacit/internal/vfs"
)

// A read that fails says little: the disk may have lost one place for good, which is
// damage and skipped, or not answer at all for a while, which skips nothing, for what
// is stored is still there. So a place counts as unreadable if reading has failed for
// some time, a file can be written, synced and read on that disk, and reading the
// place fails again after that.

const (
	// probeBytes are written and read to see whether the disk works.
	probeBytes = 4096
	// probeAge is at most how long that is believed of a place that is not given up yet.
	probeAge = time.Second
	// suspicionAge is how long after the last failure one of the past counts.
	suspicionAge = time.Minute
)

// health knows whether the disk works.
type health struct {
	mu     sync.Mutex
	probed time.Time // last, 0 if never
	works  bool
	failed time.Time // when it was last found not to work
}

// diskWorks tries the disk, unless that was done less than age ago. failed is the last
// time when it did not work.
func (s *Store) diskWorks(age time.Duration) (works bool, failed time.Time) {
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.probed.IsZero() || time.Since(h.probed) > age {
		h.works = s.probe() == nil
		h.probed = time.Now()
		if !h.works {
			h.failed = h.probed
		}
	}
	return h.works, h.failed
}

// probe writes a small file and reads it from the disk.
func (s *Store) probe() (err error) {
	name := s.logDir + "/probe.tmp" // removed by the next start, if not here
	f, err := s.fs.Create(name)
	if err != nil {
		return err
	}
	b := make([]byte, probeBytes)
	for i := range b {
		b[i] = byte(i)
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		f.Forget(0, probeBytes) // so that it does not come from memory
		_, err = f.ReadAt(make([]byte, probeBytes), 0)
	}
	return errors.Join(err, f.Close(), s.fs.Remove(name))
}

// suspicion is what is known of failed reads in one segment.
type suspicion struct{ since, last time.Time }

// unreadable reports whether a place in g whose reading just failed is to be given up.
// again reads it once more.
func (s *Store) unreadable(g *segment, again func() error) bool {
	if works, _ := s.diskWorks(min(probeAge, s.o.UnreadableAfter)); !works {
		return false
	}
	now := time.Now()
	g.mu.Lock()
	sus := &g.suspect
	if sus.since.IsZero() || now.Sub(sus.last) > suspicionAge {
		sus.since = now
	}
	sus.last = now
	since := sus.since
	g.mu.Unlock()
	if now.Sub(since) < s.o.UnreadableAfter {
		return false
	}
	works, failed := s.diskWorks(0)
	if !works || !failed.Before(since) {
		g.mu.Lock()
		g.suspect = suspicion{}
		g.mu.Unlock()
		return false
	}
	return again() != nil
}

// openTries is how often a start reads what it cannot read, within UnreadableAfter.
const openTries = 4

// unreadableNow is unreadable for a start, which waits instead of being asked again,
// once for all places of a file.
func (s *Store) unreadableNow() func(again func() error) bool {
	waited := 0
	return func(again func() error) bool {
		for {
			if works, _ := s.diskWorks(0); !works || again() == nil {
				return false
			}
			if waited == openTries {
				return true
			}
			waited++
			time.Sleep(s.o.UnreadableAfter / openTries)
		}
	}
}

// readPages reads at pos what can be read, page by page, and gives up the rest if bad
// agrees. lost is called with the pages given up, which are zeros.
func readPages(f vfs.File, b []byte, pos int64, bad func(again func() error) bool, lost func(from, to int64, err error)) error {
	for at := pos; at < pos+int64(len(b)); {
		end := min((at/page+1)*page, pos+int64(len(b)))
		part := b[at-pos : end-pos]
		read := func() error {
			if _, err := f.ReadAt(part, at); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
		if err := read(); err != nil {
			if bad(read) {
				clear(part)
				lost(at, end, err)
			} else if read() != nil {
				return err
			}
		}
		at = end
	}
	return nil
}

// readAgain reads a batch whose reading failed together with others. lost says that it
// is given up.
func (s *Store) readAgain(p *planned, b []byte) (lost bool, err error) {
	read := func() error {
		if _, err := p.seg.file.ReadAt(b, int64(p.pos)); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s at %d: %w", p.seg.name, p.pos, err)
		}
		return nil
	}
	if err = read(); err == nil {
		return false, nil
	}
	return s.unreadable(p.seg, read), err
}
