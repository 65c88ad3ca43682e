package consumer

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
)

// settling measures how long the member takes to have what a change of the
// assignment gives it, and to release what that takes. Owned by the loop.
type settling struct {
	since time.Time // zero: nothing is going on
	gain  map[allocate.Queue]bool
	give  map[allocate.Queue]bool
}

func newSettling() settling {
	return settling{gain: make(map[allocate.Queue]bool), give: make(map[allocate.Queue]bool)}
}

// passed takes note of a pass: what an earlier one gave and this one does not is
// no longer waited for.
func (s *settling) passed(p rebalance.Pass, now time.Time) {
	for q := range s.gain {
		if q.Topic == p.Topic && !slices.Contains(p.Mine, q) {
			delete(s.gain, q)
		}
	}
	for _, q := range p.Gained {
		s.gain[q] = true
	}
	for _, q := range p.Given {
		s.give[q] = true
	}
	if s.since.IsZero() && len(s.gain)+len(s.give) > 0 {
		s.since = now
	}
}

func (s *settling) assigned(q allocate.Queue) { delete(s.gain, q) }

func (s *settling) released(q allocate.Queue) { delete(s.give, q) }

// done tells, once, how long it took when nothing is waited for any more.
func (s *settling) done(now time.Time) (took time.Duration, ok bool) {
	if s.since.IsZero() || len(s.gain)+len(s.give) > 0 {
		return 0, false
	}
	took = now.Sub(s.since)
	s.since = time.Time{}
	return took, true
}
