package broker

import (
	"runtime"
	"sync"
	"time"
)

const (
	// paceBurst writers may start within paceTime without ado.
	paceBurst = 64
	paceTime  = time.Millisecond
)

// pace starts the goroutines that write to members. A notice wakes up one for each
// member of its group. If all were ready to run at once, so would be what writes to
// their connections, each with a write buffer in its hand; so many are started a few
// at a time, and those get to the end before the next few.
type pace struct {
	crew *crew

	mu      sync.Mutex
	since   time.Time // of the present burst
	started int       // in it
	later   []func()
	pacing  bool
}

func newPace() *pace { return &pace{crew: newCrew(paceBurst)} }

// start runs f in a goroutine, soon. It does not block.
func (p *pace) start(f func()) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.since) > paceTime {
		p.since, p.started = now, 0
	}
	if p.started++; p.started <= paceBurst && !p.pacing {
		p.crew.run(f)
		return
	}
	p.later = append(p.later, f)
	if !p.pacing {
		p.pacing = true
		p.crew.run(p.run) // ends when nothing is left
	}
}

func (p *pace) run() {
	for {
		p.mu.Lock()
		few := p.later[:min(paceBurst, len(p.later))]
		p.later = p.later[len(few):]
		if len(few) == 0 {
			p.later, p.pacing = nil, false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		for i, f := range few {
			p.crew.run(f)
			few[i] = nil
		}
		runtime.Gosched()
	}
}

// wait returns when all have ended.
func (p *pace) wait() { p.crew.close() }
