package broker

import (
	"context"
	"sync/atomic"
)

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
	todo   atomic.Pointer[work] // the last first
	busy   atomic.Bool
	next   *work       // what the busy one has yet to do, in order
	left   atomic.Bool // next was left to somebody else
	served atomic.Bool // serve takes over
	more   chan struct{}
}

type work struct {
	f     func()
	below *work
}

// borrowed is how much a goroutine does for others before serve goes on with it:
// who came with one frame has a stream to read.
const borrowed = 256

func newTurn() *turn { return &turn{more: make(chan struct{}, 1)} }

// do has f run, perhaps after it returns and by another goroutine.
func (t *turn) do(f func()) {
	w := &work{f: f}
	for {
		w.below = t.todo.Load()
		if t.todo.CompareAndSwap(w.below, w) {
			break
		}
	}
	t.drain(borrowed)
}

// drain does what is to do. Who is busy looks again after it has ceased to be, so
// that work is never left that was put before somebody found it busy.
func (t *turn) drain(most int) {
	for (t.todo.Load() != nil || t.left.Load()) && t.busy.CompareAndSwap(false, true) {
		if most -= t.run(most); most > 0 {
			continue
		}
		if t.served.Load() {
			select {
			case t.more <- struct{}{}:
			default:
			}
			if t.served.Load() {
				return // or it looks once more when it ends
			}
		}
		most = borrowed // there is nobody else
	}
}

// run does so many pieces of work and returns how many it did.
func (t *turn) run(most int) (n int) {
	defer func() {
		t.left.Store(t.next != nil)
		t.busy.Store(false)
	}()
	defer shared()     // what others wait for would be done to what a panic left
	if t.next == nil { // otherwise what was left comes first
		for w := t.todo.Swap(nil); w != nil; {
			w, w.below, t.next = w.below, t.next, w
		}
	}
	for ; t.next != nil && n < most; n++ {
		f := t.next.f
		t.next = t.next.below
		f()
	}
	return n
}

// call has f run and returns when it has.
func (t *turn) call(f func()) {
	done := make(chan struct{})
	t.do(func() {
		f()
		close(done) // not after a panic: who waits must not go on
	})
	<-done
}

// serve takes over from goroutines that have done enough for others, until ctx is
// done.
func (t *turn) serve(ctx context.Context) {
	t.served.Store(true)
	for {
		select {
		case <-t.more:
			t.drain(borrowed)
		case <-ctx.Done():
			t.served.Store(false)
			t.drain(borrowed)
			return
		}
	}
}
