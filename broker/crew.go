package broker

import "sync"

// crew runs work that comes often and takes little on goroutines that it keeps: one
// made for each piece grows its stack anew each time, which takes longer than what
// there is to do for a fetch of one message.
type crew struct {
	most  int // goroutines that wait for work
	group sync.WaitGroup

	mu     sync.Mutex
	idle   []chan func() // the last one that became idle is the first to be used
	closed bool
}

// newCrew makes one that keeps at most so many goroutines.
func newCrew(most int) *crew { return &crew{most: most} }

// run runs f soon. It does not block.
func (c *crew) run(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		c.idle[n-1] <- f // capacity 1, and empty
		c.idle = c.idle[:n-1]
		return
	}
	c.group.Go(func() { c.work(f) }) // close waits for it
}

func (c *crew) work(f func()) {
	next := make(chan func(), 1)
	for f != nil {
		f()
		c.mu.Lock()
		if c.closed || len(c.idle) >= c.most {
			c.mu.Unlock()
			return
		}
		c.idle = append(c.idle, next)
		c.mu.Unlock()
		f = <-next // nil when it is closed
	}
}

// close ends the crew once nobody needs it any more; what runs is waited for.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	for _, next := range c.idle {
		close(next)
	}
	c.idle = nil
	c.mu.Unlock()
	c.group.Wait()
}
