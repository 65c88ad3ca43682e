package broker

import "sync/atomic"

// turn lets many goroutines use one thing, one after the other, without waiting
// for each other: who finds it in use leaves what it wants done to the one that
// uses it. A mutex would do under little load. Under much, with thousands of
// goroutines ready to run, a mutex that somebody has waited for is handed to the
// waiter, who runs when it is its turn among all the others; then every use
// takes as long as a round of the scheduler.
//
// What is done runs in the order of the calls of do of one goroutine. It must not
// block and must not use call of the same turn.
type turn struct {
	todo atomic.Pointer[work] // the last first
	busy atomic.Bool
	next *work // what the busy one has yet to do, in order
}

type work struct {
	f     func()
	below *work
}

// do has f run, perhaps after it returns and by another goroutine.
func (t *turn) do(f func()) {
	w := &work{f: f}
	for {
		w.below = t.todo.Load()
		if t.todo.CompareAndSwap(w.below, w) {
			break
		}
	}
	// Who is busy looks again after it has ceased to be, so that work is never
	// left that was put before somebody found it busy.
	for t.todo.Load() != nil && t.busy.CompareAndSwap(false, true) {
		t.run()
	}
}

func (t *turn) run() {
	defer t.busy.Store(false) // also if f panics; the rest is then for the next
	var first *work
	for w := t.todo.Swap(nil); w != nil; {
		w, w.below, first = w.below, first, w
	}
	last := &t.next
	for *last != nil {
		last = &(*last).below
	}
	*last = first
	for t.next != nil {
		f := t.next.f
		t.next = t.next.below
		f()
	}
}

// call has f run and returns when it has.
func (t *turn) call(f func()) {
	done := make(chan struct{})
	t.do(func() {
		defer close(done)
		f()
	})
	<-done
}
