package allocate

import (
	"cmp"
	"slices"
)

// Index finds queues in a sorted list without doubles. A list has few brokers
// with many queues each, mostly numbered without a gap, so that the place of a
// queue can be computed; a binary search compares names ten times instead.
type Index struct {
	queues []Queue
	runs   []int // where each topic and broker begins, and the end
	last   int   // the run of the last find: the next one is mostly there too
}

// NewIndex returns the index of queues, which are sorted by [Queue.Compare] and
// must not change while it is used. An index serves one goroutine.
func NewIndex(queues []Queue) Index {
	x := Index{queues: queues, runs: make([]int, 0, 8)}
	for i := range queues {
		if i == 0 || queues[i].Broker != queues[i-1].Broker || queues[i].Topic != queues[i-1].Topic {
			x.runs = append(x.runs, i)
		}
	}
	x.runs = append(x.runs, len(queues))
	return x
}

// Find returns the place of q in the list, or false if it is not there.
func (x *Index) Find(q Queue) (at int, ok bool) {
	run, ok := x.run(q)
	if !ok {
		return 0, false
	}
	from, to := x.runs[run], x.runs[run+1]
	if guess := int64(from) + int64(q.ID) - int64(x.queues[from].ID); guess >= int64(from) && guess < int64(to) && x.queues[guess].ID == q.ID {
		return int(guess), true
	}
	at, ok = slices.BinarySearchFunc(x.queues[from:to], q.ID, func(o Queue, id int32) int { return cmp.Compare(o.ID, id) })
	return from + at, ok
}

// few runs are looked through one by one.
const few = 8

func (x *Index) run(q Queue) (int, bool) {
	n := len(x.runs) - 1
	if n == 0 {
		return 0, false
	}
	if o := &x.queues[x.runs[x.last]]; o.Broker == q.Broker && o.Topic == q.Topic {
		return x.last, true
	}
	if n <= few {
		for i, from := range x.runs[:n] {
			if o := &x.queues[from]; o.Broker == q.Broker && o.Topic == q.Topic {
				x.last = i
				return i, true
			}
		}
		return 0, false
	}
	q.ID = 0
	i, ok := slices.BinarySearchFunc(x.runs[:n], q, func(from int, q Queue) int {
		o := x.queues[from]
		o.ID = 0
		return o.Compare(q)
	})
	if ok {
		x.last = i
	}
	return i, ok
}
