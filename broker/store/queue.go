package store

import (
	"cmp"
	"slices"
	"sort"
	"sync"
)

// entry locates one batch of a queue in a segment.
type entry struct {
	delta uint32 // base offset, less that of the range
	pos   uint32
	size  uint32
	tags  uint32 // one bit for each tag hash; all set if the batch does not list its tags
}

// span is what a segment that is no longer written holds of a queue.
type span struct {
	seg        *segment
	base, next int64
	first      int64 // store times, Unix milliseconds
	last       int64
	// Where the entries are in the segment's index file, and their checksum.
	at, n, sum uint32
	// entries are set until the index is written.
	entries []entry
}

// queue is one message queue. Its mutex guards what readers see; the committer
// alone changes that, and alone uses the fields below.
type queue struct {
	id Queue

	mu      sync.Mutex
	spans   []span   // oldest first
	active  []entry  // in the active segment
	seg     *segment // that segment, if there are any
	base    int64    // offset of active[0]
	next    int64    // end of what may be read
	first   int64    // store times in active
	last    int64
	waiters []*Waiter
	gone    bool // deleted
	closed  bool // the store is
	ahead   [4]ahead

	// The committer's.
	assign     int64    // next offset to give out
	head, tail *pending // chain of this queue's batches in the group
	fresh      []entry
	freshTimes [2]int64
}

func newQueue(id Queue) *queue { return &queue{id: id} }

// minLocked returns the oldest offset.
func (q *queue) minLocked() int64 {
	switch {
	case len(q.spans) > 0:
		return q.spans[0].base
	case len(q.active) > 0:
		return q.base
	}
	return q.next
}

// bounds returns the offsets of the oldest message and of the next one.
func (q *queue) bounds() (minOffset, maxOffset int64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.minLocked(), q.next, !q.gone
}

// info describes the queue.
func (q *queue) info() QueueInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := QueueInfo{Queue: q.id, Min: q.minLocked(), Max: q.next}
	if len(q.spans) > 0 {
		i.FirstTime, i.LastTime = q.spans[0].first, q.spans[len(q.spans)-1].last
	}
	if len(q.active) > 0 {
		if i.FirstTime == 0 {
			i.FirstTime = q.first
		}
		i.LastTime = q.last
	}
	return i
}

// publish makes the fresh entries readable and takes the waiters to wake.
func (q *queue) publish(g *segment, wake []*Waiter) []*Waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.active) == 0 {
		q.seg, q.base, q.first = g, q.next, q.freshTimes[0]
	}
	q.active = append(q.active, q.fresh...)
	q.last = q.freshTimes[1]
	q.next = q.assign
	q.fresh = q.fresh[:0]
	return q.takeWaiters(wake)
}

// takeWaiters moves the waiters whose offset has come to wake.
func (q *queue) takeWaiters(wake []*Waiter) []*Waiter {
	kept := q.waiters[:0]
	for _, w := range q.waiters {
		if q.next > w.offset || q.gone || q.closed {
			w.queue.Store(nil)
			wake = append(wake, w)
		} else {
			kept = append(kept, w)
		}
	}
	clear(q.waiters[len(kept):])
	q.waiters = kept
	return wake
}

// find returns the index of the last entry of sorted entries whose batch begins
// at or before delta, or 0.
func find(entries []entry, delta int64) int {
	i := sort.Search(len(entries), func(i int) bool { return int64(entries[i].delta) > delta })
	return max(0, i-1)
}

func compareQueues(a, b Queue) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
}

func sortQueues(qs []*queue) {
	slices.SortFunc(qs, func(a, b *queue) int { return compareQueues(a.id, b.id) })
}

// tagBit is the bit of an entry that stands for a tag hash.
func tagBit(hash uint64) uint32 { return 1 << (hash >> 59) }

const allTags = ^uint32(0)
