package consumer

import (
	"container/heap"
	"sync"
	"time"

	"github.com/tacitmq/tacit/consumer/rebalance"
)

// item is something for the member's loop: an event for the engine, or a
// function to call. conn is the connection that it came from, if any: news of a
// connection that was given up is dropped.
type item struct {
	conn *conn
	ev   rebalance.Event
	do   func()
}

// inbox collects items for the loop. Putting never blocks, so that nobody who
// has news for the loop waits for somebody the loop waits for.
type inbox struct {
	mu    sync.Mutex
	items []item
	wake  chan struct{} // capacity 1
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(it item) {
	b.mu.Lock()
	b.items = append(b.items, it)
	b.mu.Unlock()
	b.kick()
}

func (b *inbox) kick() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take returns what there is; spare is used again.
func (b *inbox) take(spare []item) []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.items
	b.items = spare[:0]
	return out
}

// timers are functions to be called by the loop at their time.
type timers struct {
	mu   sync.Mutex
	heap timerHeap
}

type timer struct {
	at time.Time
	do func()
}

func (t *timers) add(at time.Time, do func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	heap.Push(&t.heap, timer{at, do})
}

// due takes the functions whose time has come and tells when the next one's does.
func (t *timers) due(now time.Time) (fns []func(), next time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.heap) > 0 {
		if t.heap[0].at.After(now) {
			return fns, t.heap[0].at
		}
		fns = append(fns, heap.Pop(&t.heap).(timer).do) //nolint:forcetypeassert // the heap holds nothing else
	}
	return fns, time.Time{}
}

type timerHeap []timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h timerHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)        { *h = append(*h, x.(timer)) } //nolint:forcetypeassert // see due

func (h *timerHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = timer{}
	*h = old[:len(old)-1]
	return x
}
