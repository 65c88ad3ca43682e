package rebalance

import (
	"time"

	"github.com/tacitmq/tacit/session"
)

// firstPatience is how long a request may wait before the view is looked at
// again; it doubles up to a tick.
func (e *Engine) firstPatience(t *topic) time.Duration {
	members := 0
	if t.last != nil {
		members = len(t.last.members)
	}
	return min(session.PatienceWindows*session.Window(members), e.cfg.Tick)
}

// watch begins to be patient.
func (e *Engine) watch(t *topic) {
	if t.patienceAt.IsZero() && !e.cfg.Broken.NoHealing {
		t.patience = e.firstPatience(t)
		t.patienceAt = e.now.Add(t.patience)
	}
}

// checkPatience looks at the view again when a request was not answered, or a
// queue of ours is wanted by others, for longer than our patience.
func (e *Engine) checkPatience(t *topic) {
	due := !t.patienceAt.IsZero() && !e.now.Before(t.patienceAt)
	if !t.recount && !due {
		return
	}
	t.recount = false
	var oldest time.Time
	for _, h := range t.holds {
		if (h.state == asked || h.state == owned && h.wanted) && (oldest.IsZero() || h.since.Before(oldest)) {
			oldest = h.since
		}
	}
	switch {
	case oldest.IsZero():
		t.patienceAt = time.Time{}
	case !due:
	case e.now.Before(oldest.Add(t.patience)):
		t.patienceAt = oldest.Add(t.patience)
	default:
		e.fetch(t, "patience")
		if e.cfg.Broken.TwoRequests {
			e.askTwice(t)
		}
		if t.patience == e.cfg.Tick {
			for _, h := range t.holds {
				h.wanted = false // from here on ticks look after it
			}
		}
		t.patience = min(2*t.patience, e.cfg.Tick)
		t.patienceAt = e.now.Add(t.patience)
	}
}

// askTwice gets in line anew without waiting for the answer to the withdrawal.
func (e *Engine) askTwice(t *topic) {
	for _, h := range t.holds {
		if h.state == asked && !e.now.Before(h.since.Add(t.patience)) {
			e.withdrawals = append(e.withdrawals, h.queue)
			e.asks = append(e.asks, h.queue)
			h.since = e.now
		}
	}
}
