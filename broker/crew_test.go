package broker

import (
	"sync"
	"testing"
)

func TestCrewRunsEverythingAndKeepsFewGoroutines(t *testing.T) {
	c := newCrew(8)
	var wg sync.WaitGroup
	hold := make(chan struct{})
	for range 100 { // all at once: none waits for another
		wg.Add(1)
		started := make(chan struct{})
		c.run(func() {
			close(started)
			<-hold
			wg.Done()
		})
		<-started
	}
	close(hold)
	wg.Wait()
	for range 1000 {
		wg.Add(1)
		c.run(wg.Done)
		wg.Wait()
	}
	c.mu.Lock()
	idle := len(c.idle)
	c.mu.Unlock()
	if idle > c.most {
		t.Errorf("%d goroutines wait for work, at most %d should", idle, c.most)
	}
	c.close()
	ran := false
	wg.Add(1)
	c.run(func() { ran = true; wg.Done() }) // late work runs, too
	wg.Wait()
	if !ran {
		t.Error("work given after the end did not run")
	}
	c.close()
}
