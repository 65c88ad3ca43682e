package broker

import (
	"container/heap"
	"time"
)

// park puts a poll among those that wait for their deadline. f.mu is held.
func (f *fetchStream) park(p *poll) {
	heap.Push(&f.dues, p)
	f.srv.metrics.parked.Inc()
	if p.due == 0 {
		f.timer.Reset(time.Until(p.deadline))
	}
}

func (f *fetchStream) unpark(p *poll) {
	if p.due >= 0 {
		heap.Remove(&f.dues, p.due)
		f.srv.metrics.parked.Dec()
	}
}

// takeParked has a parked poll served, by whoever calls it. f.mu is held.
func (f *fetchStream) takeParked(p *poll) {
	p.state = pollServed
	f.unpark(p)
}

// expire puts polls whose time is up in line. It may come after the end: when the
// timer has fired, stopping it is too late.
func (f *fetchStream) expire() {
	f.mu.Lock()
	var late []*poll
	now := time.Now()
	for !f.over && len(f.dues) > 0 && !now.Before(f.dues[0].deadline) {
		p := f.dues[0]
		late = append(late, p)
		f.takeParked(p)
	}
	if len(f.dues) > 0 && !f.over {
		f.timer.Reset(time.Until(f.dues[0].deadline))
	}
	f.mu.Unlock()
	for _, p := range late {
		f.srv.store.Disarm(&p.waiter) // not once somebody may arm it again
		f.enqueue(p)
	}
}

// dues is a heap of polls by deadline.
type dues []*poll

func (d dues) Len() int           { return len(d) }
func (d dues) Less(i, j int) bool { return d[i].deadline.Before(d[j].deadline) }
func (d dues) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].due, d[j].due = i, j
}

// Push implements heap.Interface.
func (d *dues) Push(x any) {
	p := x.(*poll) //nolint:forcetypeassert // the heap holds nothing else
	p.due = len(*d)
	*d = append(*d, p)
}

// Pop implements heap.Interface.
func (d *dues) Pop() any {
	last := len(*d) - 1
	p := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	p.due = -1
	return p
}
