package rocketmq

import (
	"slices"

	"github.com/tacitmq/tacit/allocate"
)

// rebalance is the loop of the rebalance thread: it begins a pass if it is time; it reports
// whether it did anything.
func (c *Client) rebalance() bool {
	if c.rebalancing || !c.notified && c.now.Before(c.due) {
		return false
	}
	c.notified = false
	if earliest := c.passEnded.Add(MinRebalance); c.now.Before(earliest) {
		c.due = earliest // put off, not lost
		return false
	}
	c.rebalancing = true
	balanced := true
	each(c.topics, func(topic string, next func()) {
		c.pass(topic, func(ok bool) {
			balanced = balanced && ok
			next()
		})
	}, func() {
		c.rebalancing, c.passEnded = false, c.now
		wait := MinRebalance
		if balanced {
			wait = c.cfg.Timers.Rebalance
		}
		c.due = c.now.Add(wait)
	})
	return true
}

// pass is one pass over one topic. What is missing leaves all as it is, and counts as
// balanced.
func (c *Client) pass(topic string, verdict func(balanced bool)) {
	route, known := c.routes[topic] // before the list, which may fetch another one
	list := func() {
		c.list(topic, func(ids []string) {
			switch {
			case ids == nil || !known:
				verdict(true)
			case len(route.Queues) == 0:
				verdict(false) // the strategy fails; what is held is kept
			default:
				c.apply(topic, c.share(route.Queues, ids), verdict)
			}
		})
	}
	if !known && !isRetry(topic) {
		c.heartbeatAll(func(bool) { list() }) // the change callback, of two empty sets
		return
	}
	list()
}

// list asks a random broker of the topic for the ids of the group, sorted; nil if there is
// no answer with ids.
func (c *Client) list(topic string, then func(ids []string)) {
	ask := func() {
		brokers := c.routes[topic].Brokers
		if len(brokers) == 0 {
			then(nil)
			return
		}
		c.call(brokers[c.cfg.Choose(len(brokers))], ConsumerList{c.cfg.Group}, func(a Answer) {
			l, _ := a.(IDs)
			ids := l.IDs
			if !slices.IsSortedFunc(ids, allocate.CompareStrings) {
				ids = slices.Clone(ids)
				slices.SortFunc(ids, allocate.CompareStrings)
			}
			then(ids)
		})
	}
	if len(c.routes[topic].Brokers) == 0 {
		c.readRoute(topic, ask)
		return
	}
	ask()
}

// share is this client's part by [allocate.Averagely]: none if its own id is missing, and
// by the first place if the id is there twice.
func (c *Client) share(queues []allocate.Queue, ids []string) []allocate.Queue {
	i, ok := slices.BinarySearchFunc(ids, c.cfg.ClientID, allocate.CompareStrings)
	if !ok {
		return nil
	}
	from, to := allocate.AveragelyRange(len(queues), len(ids), i)
	return queues[from:to]
}

// apply changes what is held of a topic to mine.
func (c *Client) apply(topic string, mine []allocate.Queue, verdict func(balanced bool)) {
	changed := false
	for _, q := range c.Held() {
		stale := !c.cfg.Idle && c.now.Sub(c.table[q]) > PullMaxIdle
		if q.Topic == topic && (stale || !contains(mine, q)) {
			changed = true
			c.emit(Save{q})
			c.drop(q)
		}
	}
	var taken []Take
	each(mine, func(q allocate.Queue, next func()) {
		if _, held := c.table[q]; held {
			next()
			return
		}
		c.call(q.Broker, QueryOffset{c.cfg.Group, q}, func(a Answer) {
			if a, ok := a.(Offset); ok {
				c.table[q] = c.now
				taken = append(taken, Take{Queue: q, Offset: a.Offset})
			}
			next() // else it is skipped until the next pass
		})
	}, func() {
		for _, t := range taken {
			t.At = c.now.Add(FirstPull)
			c.emit(t)
		}
		if !changed && len(taken) == 0 {
			verdict(c.holds(topic, mine))
			return
		}
		// The change callback: after the change, never before.
		c.heartbeatAll(func(bool) { verdict(c.holds(topic, mine)) })
	})
}

func (c *Client) drop(q allocate.Queue) {
	delete(c.table, q)
	c.emit(Drop{q})
}

// holds reports whether exactly mine is held of the topic.
func (c *Client) holds(topic string, mine []allocate.Queue) bool {
	n := 0
	for q := range c.table {
		if q.Topic == topic {
			n++
		}
	}
	return n == len(mine) && !slices.ContainsFunc(mine, func(q allocate.Queue) bool {
		_, held := c.table[q]
		return !held
	})
}

func contains(sorted []allocate.Queue, q allocate.Queue) bool {
	_, ok := slices.BinarySearchFunc(sorted, q, allocate.Queue.Compare)
	return ok
}
