package store

import (
	"cmp"
	"fmt"
	"slices"
)

// Windows in which repeated batches are detected.
const (
	windowBatches = 64        // batches remembered for each (producer, queue): the highest sequences
	windowIdle    = 3_600_000 // ms without a batch after which a window is forgotten
	maxWindows    = 1 << 16
	keptOrigins   = 4096 // newest delivered scheduled messages remembered
	// savedWindows bytes of windows are saved whole with each index, the last used
	// ones; of the others the newest savedBatches.
	savedWindows = 4 << 20
	savedBatches = 4
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

func (s *sequence) end() uint64 { return s.seq + uint64(s.count) }

// window remembers the batches of a producer in a queue that have the highest
// sequences.
type window struct {
	epoch uint32
	// gone is the end of the highest sequence that was forgotten, 0 if none was:
	// whether one below it is stored is not known.
	gone uint64
	seqs []sequence // by sequence
}

// insert adds a batch, after those with the same sequence.
func (w *window) insert(s sequence) {
	i := len(w.seqs)
	for i > 0 && w.seqs[i-1].seq > s.seq {
		i--
	}
	w.seqs = slices.Insert(w.seqs, i, s)
}

// dropLowest forgets the lowest sequence.
func (w *window) dropLowest() {
	w.gone = max(w.gone, w.seqs[0].end())
	copy(w.seqs, w.seqs[1:])
	w.seqs = w.seqs[:len(w.seqs)-1]
}

// undone says how to take back what adding a batch did to its window, should the
// group not be written.
type undone struct {
	w       *window
	dropped sequence // what was forgotten for it, and gone before that
	gone    uint64
	before  *window // or the window of an older epoch
}

// dedup detects repeated batches. It is the committer's alone. What a group adds
// stays only if keep is called; undo takes it back.
type dedup struct {
	windows map[windowKey]*window
	origins map[uint64]Appended
	order   []uint64 // of origins, oldest first
	undone  []undone // of the present group
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
	for i := len(w.seqs) - 1; i >= 0; i-- {
		s := &w.seqs[i]
		if s.end() <= seq {
			break // so are all before it
		}
		if s.seq == seq && int(s.count) == count {
			return Appended{Offset: s.offset, StoreTime: s.time, Duplicate: true}, true, nil
		}
		if s.seq < seq+uint64(count) {
			return found, false, fmt.Errorf("%w: producer %d, sequences %d to %d overlap with %d to %d stored before",
				ErrBadBatch, k.producer, seq, seq+uint64(count)-1, s.seq, s.end()-1)
		}
	}
	if seq < w.gone {
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
		before := *w
		d.undone = append(d.undone, undone{w: w, before: &before})
		*w = window{epoch: epoch}
	case epoch < w.epoch:
		return // recovery of what a newer epoch has overtaken
	}
	if len(w.seqs) >= windowBatches {
		d.undone = append(d.undone, undone{w: w, dropped: w.seqs[0], gone: w.gone})
		w.dropLowest()
	}
	w.insert(s)
}

// keep makes what was added since the last keep or undo stay.
func (d *dedup) keep() {
	clear(d.undone)
	d.undone = d.undone[:0]
	if n := len(d.order) - keptOrigins; n > 0 {
		for _, id := range d.order[:n] {
			delete(d.origins, id)
		}
		d.order = slices.Delete(d.order, 0, n)
	}
}

// undo gives windows back what was forgotten for the batches of a group that
// could not be written. The batches themselves are taken out by remove.
func (d *dedup) undo() {
	for _, u := range slices.Backward(d.undone) {
		if u.before != nil {
			*u.w = *u.before
			continue
		}
		u.w.gone = u.gone
		u.w.insert(u.dropped)
	}
	clear(d.undone)
	d.undone = d.undone[:0]
}

// remove forgets batches of a failed group: those at or after offset.
func (d *dedup) remove(k windowKey, offset int64) {
	if w := d.windows[k]; w != nil {
		w.seqs = slices.DeleteFunc(w.seqs, func(s sequence) bool { return s.offset >= offset })
		if len(w.seqs) == 0 && w.gone == 0 {
			delete(d.windows, k)
		}
	}
}

// addOrigin remembers a delivered scheduled message.
func (d *dedup) addOrigin(id uint64, a Appended) {
	if _, ok := d.origins[id]; ok {
		return
	}
	d.origins[id] = a
	d.order = append(d.order, id)
}

// removeOrigin forgets one of a failed group.
func (d *dedup) removeOrigin(id uint64) {
	delete(d.origins, id)
	for i, o := range slices.Backward(d.order) {
		if o == id {
			d.order = slices.Delete(d.order, i, i+1)
			return
		}
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
