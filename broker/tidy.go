package broker

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"
)

// A burst of joins takes about twice the memory that the sessions then need: what
// gRPC wrote their first frames with, and what the burst left behind. Go keeps both for
// as long as nothing else is allocated, and an idle broker allocates next to nothing.
// Collecting once costs less than a hundredth of what the joins did.
const (
	// tidyGrowth more sessions, and a quarter more, are worth a collection,
	tidyGrowth = 500
	// once their number has not changed for tidyQuiet looks, tidyEvery apart.
	tidyQuiet = 3
	tidyEvery = time.Second
)

// tidy decides when memory is given back to the system.
type tidy struct {
	settled int // sessions at the last collection, or fewer since
	last    int // sessions at the last look
	quiet   int // looks since their number changed
}

// look reports whether it is time to collect.
func (t *tidy) look(sessions int) bool {
	if t.quiet++; sessions != t.last {
		t.last, t.quiet = sessions, 0
	}
	t.settled = min(t.settled, sessions)
	if t.quiet < tidyQuiet || sessions-t.settled < max(tidyGrowth, t.settled/4) {
		return false
	}
	t.settled = sessions
	return true
}

// keepTidy gives memory back after bursts of joins, until ctx is done.
func (s *Server) keepTidy(ctx context.Context) error {
	every := time.NewTicker(tidyEvery)
	defer every.Stop()
	var t tidy
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return nil
		}
		if t.look(int(s.sessions.Load())) {
			runtime.GC() // pools keep what they hold over one collection
			debug.FreeOSMemory()
		}
	}
}
