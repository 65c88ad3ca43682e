package broker

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestPacedWritersAllRunAndNoneWaitsForAnother(t *testing.T) {
	p := newPace()
	const n = 10 * paceBurst
	var ran atomic.Int32
	var all sync.WaitGroup
	all.Add(n)
	for range n {
		p.start(func() {
			all.Done()
			all.Wait() // as one whose member does not read
			ran.Add(1)
		})
	}
	p.wait()
	if got := ran.Load(); got != n {
		t.Errorf("%d of %d ran", got, n)
	}
	p.start(func() { ran.Add(1) })
	p.wait()
	if got := ran.Load(); got != n+1 {
		t.Error("none starts after a burst")
	}
}
