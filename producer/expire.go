package producer

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
)

// reroute takes the present routes and sends what waited for them.
func (p *Producer) reroute() {
	p.mu.Lock()
	names := make([]string, 0, len(p.topics))
	unwatched := false
	for n, t := range p.topics {
		names = append(names, n)
		unwatched = unwatched || !t.watched
		t.watched = true
	}
	p.mu.Unlock()
	if unwatched {
		p.watch.SetTopics(names)
	}
	routes := p.watch.Routes()
	var ready []*sending
	p.mu.Lock()
	for _, r := range routes {
		t := p.topics[r.Name]
		if t == nil {
			continue
		}
		t.known, t.hosted = true, len(r.Hosts) > 0
		t.queues = r.Writable()
		t.at = make([]*queueState, len(t.queues))
		for i, q := range t.queues {
			t.at[i] = t.state(q)
		}
		t.several = slices.ContainsFunc(t.queues, func(q allocate.Queue) bool { return q.Broker != t.queues[0].Broker })
		if len(t.queues) == 0 {
			continue
		}
		maps.DeleteFunc(t.lanes, func(q allocate.Queue, l *lane) bool {
			return l.count == 0 && l.inFlight == 0 && !slices.Contains(t.queues, q)
		})
		ready = append(ready, p.unpark(t)...)
		ready = append(ready, p.next(t.any)...) // there may be more queues than before
	}
	p.mu.Unlock()
	p.launch(ready)
}

// expire fails messages that have waited too long without having been sent.
func (p *Producer) expire(now time.Time) {
	passed := now.Sub(p.begun)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.topics {
		if len(t.parked) > 0 {
			limit := p.cfg.timeout
			if t.known {
				limit = min(limit, routeWait)
			}
			if n := overdue(t.parked, passed-limit); n > 0 {
				err := rpcerr.ErrTopicNotFound
				switch {
				case !t.known:
					err = p.noRoute()
				case t.hosted:
					err = rpcerr.ErrNotWritable
				}
				p.fail(slices.Clone(t.parked[:n]), fmt.Errorf("%w: never sent: %w", ErrTimeout, err), allocate.Queue{Topic: t.name})
				t.parked = t.parked[n:]
			}
		}
		p.expireLane(t.any, passed-p.cfg.timeout, allocate.Queue{Topic: t.name})
		for _, l := range t.lanes {
			p.expireLane(l, passed-p.cfg.timeout, l.queue)
		}
	}
}

// neverSent is the error of messages that waited in a lane until their time was up.
func (l *lane) neverSent() error {
	if l.trouble != nil {
		return fmt.Errorf("%w: never sent, behind others: %w", ErrTimeout, l.trouble)
	}
	return fmt.Errorf("%w: never sent", ErrTimeout)
}

func (p *Producer) expireLane(l *lane, before time.Duration, q allocate.Queue) {
	for len(l.waiting) > 0 {
		n := overdue(l.waiting[0], before)
		if n == 0 {
			return
		}
		err := l.neverSent()
		if l.tried > 0 {
			n, err = min(n, l.tried), fmt.Errorf("%w: not answered by its broker, and not yet sent to another", ErrTimeout)
		}
		p.fail(slices.Clone(l.waiting[0][:n]), err, q)
		l.drop(n)
	}
}

// overdue counts those at the head of a line that were added before a time.
func overdue(line []entry, before time.Duration) int {
	n := 0
	for n < len(line) && line[n].added < before {
		n++
	}
	return n
}

// abort fails everything at the end of Close. Answers that come later find
// nobody.
func (p *Producer) abort() {
	p.mu.Lock()
	failures := p.failures
	for s := range p.flying {
		failures = append(failures, failure{s.entries, ErrClosed, s.queue})
	}
	for _, t := range p.topics {
		none := allocate.Queue{Topic: t.name}
		failures = append(failures, failure{t.parked, ErrClosed, none}, failure{slices.Concat(t.any.waiting...), ErrClosed, none})
		for _, l := range t.lanes {
			failures = append(failures, failure{slices.Concat(l.waiting...), ErrClosed, l.queue})
		}
	}
	p.topics, p.flying, p.failures = nil, nil, nil
	p.mu.Unlock()
	for _, f := range failures {
		p.tell(f)
	}
}
