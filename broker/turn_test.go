package broker

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// Each goroutine's work is done in its order, one at a time, and none is left
// when all have been told so.
func TestTurnDoesAllInOrderOneAtATime(t *testing.T) {
	t.Parallel()
	const goroutines, each = 16, 2000
	tu := newTurn()
	seen := make([][]int, goroutines) // written in turn only: the race detector watches
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				if i%100 == 99 {
					tu.call(func() { seen[g] = append(seen[g], i) })
					continue
				}
				tu.do(func() { seen[g] = append(seen[g], i) })
			}
			tu.call(func() {})
		})
	}
	wg.Wait()
	for g, got := range seen {
		if len(got) != each || !slices.IsSorted(got) {
			t.Errorf("goroutine %d: %d of %d done, in order: %v", g, len(got), each, slices.IsSorted(got))
		}
	}
}

// What is wanted while the turn is somebody's is done by that one, before it
// goes: nobody waits and nothing is left behind.
func TestTurnTakesWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	tu := newTurn()
	var order []int
	tu.do(func() {
		order = append(order, 1)
		tu.do(func() { order = append(order, 3) })
		order = append(order, 2)
	})
	if !slices.Equal(order, []int{1, 2, 3}) {
		t.Errorf("done %v", order)
	}
}

func BenchmarkTurn(b *testing.B) {
	tu := newTurn()
	n := 0
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			tu.do(func() { n++ })
		}
	})
}

// Who came with one piece of work is not kept for ever by what others bring: the
// server of the turn goes on, and all is done also when it ends meanwhile.
func TestTurnIsServedOn(t *testing.T) {
	t.Parallel()
	tu := newTurn()
	ctx, stop := context.WithCancel(t.Context())
	var server sync.WaitGroup
	server.Go(func() { tu.serve(ctx) })
	for !tu.served.Load() {
		runtime.Gosched()
	}
	const most = 50 * borrowed
	var inDo atomic.Bool
	inDo.Store(true)
	kept, done := 0, 0
	var more func()
	more = func() { // work that brings more work
		if done++; inDo.Load() {
			kept++
		}
		if done < most {
			tu.do(more)
		}
	}
	tu.do(more)
	inDo.Store(false)
	stop()
	server.Wait()
	tu.call(func() {})
	if done != most {
		t.Errorf("%d of %d done", done, most)
	}
	if kept > 2*borrowed {
		t.Errorf("the first was kept for %d, borrowed for %d", kept, borrowed)
	}
}
