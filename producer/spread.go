package producer

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
)

const (
	// spreadOver is over how many queues a short burst is spread at most: over more
	// it would take too many round trips.
	spreadOver = 16
	// joinMax is up to how many messages a batch is put together from several lists.
	// Larger ones are what a list holds, so that nothing is copied.
	joinMax = 128
)

// most is how many messages of the line go into its next batch, if slots more may be
// under way. Messages that were sent at once travel at once, in as many batches as
// may be. Single ones are spread over all queues, the same number to each, for as
// long as their number is small: batches grow with what has been sent since nothing
// was under way, so that a flood soon travels in the largest.
func (l *lane) most(slots, queues int) int {
	all := (l.count + slots - 1) / slots
	if c := l.waiting[0][0].call; c != nil && len(c.results) > 1 {
		return all
	}
	if l.inFlight == 0 {
		l.share, l.sent = 0, 0
	}
	q := min(queues, spreadOver)
	l.share = max(l.share, (l.count+q-1)/q, l.sent/q)
	return min(all, l.share)
}

// cut takes the messages of one batch: of one due time, up to a number and a size.
func (p *Producer) cut(l *lane, most int) (entries []entry, size int64) {
	limit := int64(p.cfg.batchBytes)
	if l.topic.limit > 0 {
		limit = min(limit, l.topic.limit)
	}
	due := l.waiting[0][0].due
	fits := func(e *entry) bool { return size+int64(e.size) <= limit && e.due == due }
	first := l.waiting[0]
	n := 0
	for n < len(first) && (n == 0 || n < most && fits(&first[n])) {
		size += int64(first[n].size)
		n++
	}
	l.drop(n)
	entries = first[:n:n]
	if n < len(first) || n >= most || n >= joinMax || l.count == 0 || !fits(&l.waiting[0][0]) {
		return entries, size
	}
	most = min(most, joinMax)
	entries = append(make([]entry, 0, min(most, n+l.count)), entries...)
	for l.count > 0 && len(entries) < most && fits(&l.waiting[0][0]) {
		e := l.waiting[0][0]
		entries = append(entries, e)
		size += int64(e.size)
		l.drop(1)
	}
	return entries, size
}

// putBack puts the messages of a batch whose broker does not answer back at the head
// of their line, to go to the next queue of another broker that is free. Called under
// the lock.
func (p *Producer) putBack(s *sending) []*sending {
	l := s.lane
	p.release(s)
	l.waiting = slices.Insert(l.waiting, 0, s.entries)
	l.count += len(s.entries)
	l.tried += len(s.entries)
	return p.next(l)
}

// drop takes the first n messages, all of one list, out of the line.
func (l *lane) drop(n int) {
	l.count -= n
	l.tried = max(0, l.tried-n)
	if n < len(l.waiting[0]) {
		l.waiting[0] = l.waiting[0][n:]
		return
	}
	l.waiting = l.waiting[:copy(l.waiting, l.waiting[1:])]
}

// split puts the messages of a batch that its broker finds too large back at the head
// of their line, to go in smaller ones: one large message does not fail the others.
func (p *Producer) split(s *sending) {
	p.met.retried()
	p.mu.Lock()
	l := s.lane
	news := l.topic.limit == 0 || s.size/2 < l.topic.limit
	if news {
		l.topic.limit = max(1, s.size/2)
	}
	p.release(s)
	l.waiting = slices.Insert(l.waiting, 0, s.entries)
	l.count += len(s.entries)
	if l.tried > 0 {
		l.tried += len(s.entries) // those behind them may be stored, and are not told apart
	}
	ready := p.next(l)
	p.mu.Unlock()
	if news {
		p.cfg.log.Warn("batch is too large for its broker, sending smaller ones from now on", zap.String("topic", s.queue.Topic),
			zap.String("broker", s.queue.Broker), zap.Int("messages", len(s.entries)), zap.Int("bytes", len(s.bytes)))
	}
	p.launch(ready)
}

// pick chooses the next queue in turn that has no batch under way, of a broker
// other than avoid if there is one, and if possible of one that did not fail a
// moment ago. Brokers that do not answer are waited for only if there are no others;
// after a while one batch tries each again.
func (p *Producer) pick(t *topic, avoid string) (allocate.Queue, bool) {
	now := time.Now()
	second, last, others := -1, -1, false
	for i := range t.queues {
		at := (t.turn + i) % len(t.queues)
		q := t.queues[at]
		if q.Broker == avoid {
			continue
		}
		silent := len(p.silent) > 0 && now.Before(p.silent[q.Broker])
		others = others || !silent
		switch {
		case t.at[at].busy:
		case silent:
			if last < 0 {
				last = at
			}
		case !now.Before(p.failed[q.Broker]):
			t.turn = at + 1
			if _, trial := p.silent[q.Broker]; trial {
				p.passOver(q.Broker, now)
			}
			return q, true
		case second < 0:
			second = at
		}
	}
	if second < 0 && !others {
		second = last
	}
	if second < 0 {
		return allocate.Queue{}, false
	}
	t.turn = second + 1
	return t.queues[second], true
}

// passOver has a broker that does not answer passed over for a while.
func (p *Producer) passOver(broker string, now time.Time) {
	p.silent[broker] = now.Add(max(sidestep, p.cfg.failover))
}
