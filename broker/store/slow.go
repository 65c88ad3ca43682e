package store

import (
	"sync/atomic"
	"time"
)

// diskClock knows since when something waits for the disk.
type diskClock struct{ since atomic.Int64 } // Unix nanoseconds, 0 if nothing does

func (c *diskClock) begin() { c.since.Store(time.Now().UnixNano()) }

func (c *diskClock) end() { c.since.Store(0) }

func (c *diskClock) waited(now time.Time) time.Duration {
	at := c.since.Load()
	if at == 0 {
		return 0
	}
	return max(0, now.Sub(time.Unix(0, at)))
}

// DiskWait returns for how long the write that is under way, to the log or to the state,
// has taken; 0 if none is. A disk that hangs makes no error: only this grows.
func (s *Store) DiskWait() time.Duration {
	now := time.Now()
	return max(s.slow.waited(now), s.state.slow.waited(now))
}
