package coordinator

import (
	"container/heap"
	"time"
)

// alarm is a time at which something of a group or member is due. Moving it later,
// as every heartbeat does, costs nothing: the heap learns of it when the earlier
// time comes.
type alarm struct {
	at     time.Time // zero: off
	queued time.Time // when the heap looks at it; zero: not in the heap
	kind   alarmKind
	g      *group
	m      *member
	p      string // pending member id
}

type alarmKind uint8

const (
	alarmSession alarmKind = iota
	alarmRevoke
	alarmPending
	alarmGather
	alarmSync
	alarmTarget
	alarmWindow
	alarmIdle
)

type timer struct {
	at  time.Time
	seq uint64
	a   *alarm
}

type timers []timer

func (t timers) Len() int { return len(t) }
func (t timers) Less(i, j int) bool {
	if !t[i].at.Equal(t[j].at) {
		return t[i].at.Before(t[j].at)
	}
	return t[i].seq < t[j].seq
}
func (t timers) Swap(i, j int) { t[i], t[j] = t[j], t[i] }

// Push is for package heap.
func (t *timers) Push(x any) { *t = append(*t, x.(timer)) }

// Pop is for package heap.
func (t *timers) Pop() any {
	last := (*t)[len(*t)-1]
	(*t)[len(*t)-1] = timer{}
	*t = (*t)[:len(*t)-1]
	return last
}

// set arms a for at.
func (c *Coordinator) set(a *alarm, at time.Time) {
	a.at = at
	if a.queued.IsZero() || at.Before(a.queued) {
		c.enqueue(a)
	}
}

func (a *alarm) off() { a.at = time.Time{} }

func (c *Coordinator) enqueue(a *alarm) {
	a.queued = a.at
	c.seq++
	heap.Push(&c.timers, timer{a.at, c.seq, a})
}

// wake fires what is due.
func (c *Coordinator) wake() {
	for len(c.timers) > 0 && !c.timers[0].at.After(c.now) {
		t := heap.Pop(&c.timers).(timer)
		a := t.a
		if !t.at.Equal(a.queued) {
			continue // it was moved to an earlier time, which has come
		}
		a.queued = time.Time{}
		switch {
		case a.at.IsZero():
		case a.at.After(c.now):
			c.enqueue(a)
		default:
			a.off()
			c.fire(a)
		}
	}
}

func (c *Coordinator) fire(a *alarm) {
	if c.groups[a.g.name] != a.g || a.m != nil && a.g.members[a.m.id] != a.m {
		return // forgotten meanwhile
	}
	switch a.kind {
	case alarmSession:
		if a.g.consumer {
			c.consumerFailed(a.g, a.m, "no heartbeat for "+c.cfg.ConsumerSession.String())
		} else {
			c.classicSilent(a.m)
		}
	case alarmRevoke:
		c.consumerFailed(a.g, a.m, "queues not given up within "+a.m.rebalanceTimeout.String())
	case alarmPending:
		c.pendingExpired(a.g, a.p)
	case alarmGather:
		c.gatherDue(a.g)
	case alarmSync:
		c.syncDue(a.g)
	case alarmTarget:
		c.target(a.g)
	case alarmWindow:
		c.windowEnds(a.g)
	case alarmIdle:
		c.forget(a.g, Forgotten, "no members for "+c.cfg.KeepEmpty.String())
	}
}

// announce asks for a Wake if the last one asked for is too late.
func (c *Coordinator) announce() {
	for len(c.timers) > 0 && !c.timers[0].at.Equal(c.timers[0].a.queued) {
		heap.Pop(&c.timers)
	}
	if len(c.timers) == 0 {
		return
	}
	if at := c.timers[0].at; c.wakeAt.IsZero() || at.Before(c.wakeAt) {
		c.wakeAt = at
		c.emit(WakeAt{at})
	}
}
