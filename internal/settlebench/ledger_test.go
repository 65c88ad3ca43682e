package settlebench

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
)

// ledger knows who owns what, by the word of the members' listeners: from the
// moment before the first message is handed out to the moment after the last.
type ledger struct {
	mu      sync.Mutex
	total   int // queues there are
	owner   allocate.Owners
	since   map[allocate.Queue]time.Time // ownerless since
	count   map[string]int
	members map[string]bool // those that should own something
	moved   int
	last    map[allocate.Queue]string // the last owner
	unowned time.Duration             // summed over queues
	changed time.Time
	signal  chan struct{}
}

func newLedger(queues int) *ledger {
	return &ledger{
		total: queues, owner: make(allocate.Owners), since: make(map[allocate.Queue]time.Time), count: make(map[string]int),
		members: make(map[string]bool), last: make(map[allocate.Queue]string), signal: make(chan struct{}, 1),
	}
}

// listener tells the ledger of a member's queues of a topic.
func (l *ledger) listener(topic, id string) consumer.Listener {
	each := func(f func(q allocate.Queue, now time.Time)) func(context.Context, []allocate.Queue) {
		return func(_ context.Context, qs []allocate.Queue) {
			now := time.Now()
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, q := range qs {
				if q.Topic == topic {
					f(q, now)
				}
			}
			select {
			case l.signal <- struct{}{}:
			default:
			}
		}
	}
	gone := each(func(q allocate.Queue, now time.Time) { l.free(q, id, now) })
	return consumer.ListenerFuncs{
		Assigned: each(func(q allocate.Queue, now time.Time) { l.take(q, id, now) }),
		Revoked:  gone, Lost: gone,
	}
}

func (l *ledger) take(q allocate.Queue, id string, now time.Time) {
	if !l.members[id] {
		return // it is dead and does not know yet
	}
	if at, ok := l.since[q]; ok {
		l.unowned += now.Sub(at)
		delete(l.since, q)
	}
	if was := l.owner[q]; was != "" {
		l.count[was]-- // it has not said so yet
	}
	if was := l.last[q]; was != "" && was != id {
		l.moved++
	}
	l.owner[q], l.last[q] = id, id
	l.count[id]++
	l.changed = now
}

func (l *ledger) free(q allocate.Queue, id string, now time.Time) {
	if l.owner[q] != id {
		return
	}
	delete(l.owner, q)
	l.count[id]--
	l.since[q] = now
	l.changed = now
}

// enter and leave say who is to have a share from now on.
func (l *ledger) enter(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.members[id] = true
}

func (l *ledger) leave(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.members, id)
}

// die says that a member owns nothing from now on, whatever it believes.
func (l *ledger) die(id string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.members, id)
	for q, o := range l.owner {
		if o == id {
			l.free(q, id, now)
		}
	}
}

// reset begins a new measurement and returns the owners as they are.
func (l *ledger) reset() allocate.Owners {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moved, l.unowned = 0, 0
	return maps.Clone(l.owner)
}

// settled reports whether every queue has an owner and shares differ by one at
// most, and since when.
func (l *ledger) settled() (bool, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owner) != l.total {
		return false, l.changed
	}
	low, high, sum := l.total, 0, 0
	for id := range l.members {
		n := l.count[id]
		low, high, sum = min(low, n), max(high, n), sum+n
	}
	return high-low <= 1 && sum == l.total, l.changed
}

// await waits until the group has been settled for a while without a change, and
// returns when it became so.
func (l *ledger) await(ctx context.Context, quiet time.Duration) (time.Time, bool) {
	for {
		ok, at := l.settled()
		wait := quiet
		if ok {
			if wait = quiet - time.Since(at); wait <= 0 {
				return at, true
			}
		}
		select {
		case <-ctx.Done():
			return at, false
		case <-l.signal:
		case <-time.After(wait):
		}
	}
}

// result of the last measurement.
func (l *ledger) result() (moved int, unowned time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved, l.unowned
}

// queues returns those that have owners and the ids of the members.
func (l *ledger) queues() (queues []allocate.Queue, members []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q := range l.owner {
		queues = append(queues, q)
	}
	for id := range l.members {
		members = append(members, id)
	}
	return queues, members
}
