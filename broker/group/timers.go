package group

import "time"

// timer is a place in the heap of a registry's timers. Its owner acts when its
// time has come; it may have moved its deadline since, and then only sets the
// timer anew.
type timer struct {
	at    time.Time
	order uint64 // ties are broken by age, so that equal histories act alike
	pos   int    // in the heap, plus 1; 0: not set
	owner interface {
		due(r *Registry, now time.Time)
	}
}

// timers is a binary heap, earliest first.
type timers struct {
	heap []*timer
	made uint64
}

func (ts *timers) less(a, b *timer) bool {
	if c := a.at.Compare(b.at); c != 0 {
		return c < 0
	}
	return a.order < b.order
}

// set makes t go off at the given time and not at any earlier set.
func (ts *timers) set(t *timer, at time.Time) {
	if t.pos == 0 {
		if t.order == 0 {
			ts.made++
			t.order = ts.made
		}
		t.at = at
		ts.heap = append(ts.heap, t)
		t.pos = len(ts.heap)
		ts.up(t.pos - 1)
		return
	}
	if t.at.Equal(at) {
		return
	}
	t.at = at
	ts.down(ts.up(t.pos - 1))
}

func (ts *timers) stop(t *timer) {
	if t.pos == 0 {
		return
	}
	i, last := t.pos-1, len(ts.heap)-1
	t.pos = 0
	moved := ts.heap[last]
	ts.heap[last] = nil
	ts.heap = ts.heap[:last]
	if i < last {
		ts.heap[i] = moved
		moved.pos = i + 1
		ts.down(ts.up(i))
	}
}

// pop takes the earliest timer if its time has come.
func (ts *timers) pop(now time.Time) *timer {
	if len(ts.heap) == 0 || ts.heap[0].at.After(now) {
		return nil
	}
	t := ts.heap[0]
	ts.stop(t)
	return t
}

func (ts *timers) up(i int) int {
	for i > 0 {
		parent := (i - 1) / 2
		if !ts.less(ts.heap[i], ts.heap[parent]) {
			break
		}
		ts.swap(i, parent)
		i = parent
	}
	return i
}

func (ts *timers) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(ts.heap); c++ {
			if ts.less(ts.heap[c], ts.heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		ts.swap(i, least)
		i = least
	}
}

func (ts *timers) swap(i, j int) {
	h := ts.heap
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}
