package store

import (
	"cmp"
	"fmt"
	"slices"
)

// Windows in which repeated batches are detected.
const (
	windowBatches = 64        // newest batches remembered for each (producer, queue)
	windowIdle    = 3_600_000 // ms without a batch after which a window is forgotten
	maxWindows    = 1 << 16
	keptOrigins   = 4096 // newest delivered scheduled messages remembered
	savedWindows  = 1 << 20
)

type windowKey struct {
	producer uint64
	queue    *queue
}

// sequence is one batch in a window.
type sequence struct {
	seq    uint64
	offset int64
	time   int64 // store time
	count  uint32
}

// window remembers the newest batches of a producer in a queue, in the order of
// their offsets.
type window struct {
	epoch uint32
	full  bool // older batches were forgotten
	seqs  []sequence
}

// dedup detects repeated batches. It is the committer's alone.
type dedup struct {
	windows map[windowKey]*window
	origins map[uint64]Appended
	order   []uint64 // of origins, oldest first
}

func newDedup() dedup {
	return dedup{windows: map[windowKey]*window{}, origins: map[uint64]Appended{}}
}

// check looks a batch up. dup reports that it was stored before, as found; err
// that it must not be stored.
func (d *dedup) check(k windowKey, epoch uint32, seq uint64, count int) (found Appended, dup bool, err error) {
	w := d.windows[k]
	if w == nil || epoch > w.epoch {
		return found, false, nil
	}
	if epoch < w.epoch {
		return found, false, fmt.Errorf("%w: producer %d has epoch %d, batch has %d", ErrFenced, k.producer, w.epoch, epoch)
	}
	lowest := seq
	for i := len(w.seqs) - 1; i >= 0; i-- {
		s := &w.seqs[i]
		if s.seq == seq && int(s.count) == count {
			return Appended{Offset: s.offset, StoreTime: s.time, Duplicate: true}, true, nil
		}
		if seq < s.seq+uint64(s.count) && s.seq < seq+uint64(count) {
			return found, false, fmt.Errorf("%w: producer %d, sequences %d to %d overlap with %d to %d stored before",
				ErrBadBatch, k.producer, seq, seq+uint64(count)-1, s.seq, s.seq+uint64(s.count)-1)
		}
		lowest = min(lowest, s.seq)
	}
	if w.full && lowest == seq {
		return found, false, fmt.Errorf("%w: producer %d, sequence %d", ErrSequenceExpired, k.producer, seq)
	}
	return found, false, nil
}

// add remembers a batch that check let through.
func (d *dedup) add(k windowKey, epoch uint32, s sequence) {
	w := d.windows[k]
	switch {
	case w == nil:
		if len(d.windows) >= maxWindows {
			d.forget(s.time)
		}
		w = &window{epoch: epoch}
		d.windows[k] = w
	case epoch > w.epoch:
		*w = window{epoch: epoch, seqs: w.seqs[:0]}
	case epoch < w.epoch:
		return // recovery of what a newer epoch has overtaken
	}
	if len(w.seqs) == windowBatches {
		w.full = true
		copy(w.seqs, w.seqs[1:])
		w.seqs = w.seqs[:windowBatches-1]
	}
	w.seqs = append(w.seqs, s)
}

// remove forgets batches of a failed group: those at or after offset.
func (d *dedup) remove(k windowKey, offset int64) {
	if w := d.windows[k]; w != nil {
		w.seqs = slices.DeleteFunc(w.seqs, func(s sequence) bool { return s.offset >= offset })
		if len(w.seqs) == 0 && !w.full {
			delete(d.windows, k)
		}
	}
}

// addOrigin remembers a delivered scheduled message.
func (d *dedup) addOrigin(id uint64, a Appended) {
	if _, ok := d.origins[id]; ok {
		return
	}
	if len(d.order) >= keptOrigins {
		delete(d.origins, d.order[0])
		copy(d.order, d.order[1:])
		d.order = d.order[:len(d.order)-1]
	}
	d.origins[id] = a
	d.order = append(d.order, id)
}

// removeOrigin forgets one of a failed group.
func (d *dedup) removeOrigin(id uint64) {
	delete(d.origins, id)
	if i := slices.Index(d.order, id); i >= 0 {
		d.order = slices.Delete(d.order, i, i+1)
	}
}

// forget drops idle windows, and the least recently used ones down to half if
// there are too many.
func (d *dedup) forget(now int64) {
	for k, w := range d.windows {
		if len(w.seqs) == 0 || now-w.seqs[len(w.seqs)-1].time > windowIdle {
			delete(d.windows, k)
		}
	}
	if len(d.windows) < maxWindows {
		return
	}
	for _, k := range d.recent()[maxWindows/2:] {
		delete(d.windows, k)
	}
}

// recent returns the keys of all windows, the last used first.
func (d *dedup) recent() []windowKey {
	keys := make([]windowKey, 0, len(d.windows))
	for k, w := range d.windows {
		if len(w.seqs) > 0 {
			keys = append(keys, k)
		}
	}
	last := func(k windowKey) int64 { s := d.windows[k].seqs; return s[len(s)-1].time }
	slices.SortFunc(keys, func(a, b windowKey) int {
		return cmp.Or(cmp.Compare(last(b), last(a)), cmp.Compare(a.producer, b.producer), compareQueues(a.queue.id, b.queue.id))
	})
	return keys
}

// dropQueue forgets everything about a deleted queue.
func (d *dedup) dropQueue(q *queue) {
	for k := range d.windows {
		if k.queue == q {
			delete(d.windows, k)
		}
	}
}
