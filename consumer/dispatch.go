package consumer

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
)

const (
	// maxTask bounds the messages a worker takes at once, taskTime how long they
	// should keep it busy: handlers that do little are handed many messages for
	// one turn of the lock, slow ones one at a time.
	maxTask  = 32
	taskTime = 100 * time.Microsecond
	// stealAfter is when the messages behind a slow one are taken back.
	stealAfter = 500 * time.Millisecond
)

// task is a run of messages of one queue with one worker, or those that a Poll
// returned. Guarded by member.mu except where noted.
type task struct {
	pq      *processQueue
	seqs    []uint64
	msgs    []*message.Message
	started time.Time
	// claimed counts the messages begun. Atomic; whoever adds claims.
	claimed atomic.Int64
	limit   int // only this many are this task's still
	// results are those of the messages handled, in order; done of them are
	// written, settled accounted for. done is atomic and written after them.
	results []error
	done    atomic.Int64
	settled int
}

// end notes the result of the next message. Safe without the lock.
func (t *task) end(err error) {
	n := t.done.Load()
	t.results[n] = err
	t.done.Store(n + 1)
}

// claim begins the next message of the task. Safe without the lock.
func (t *task) claim() (int, bool) {
	i := int(t.claimed.Add(1)) - 1
	return i, i < len(t.msgs)
}

// enqueue puts the queue in line if it has something to hand out.
func (m *member) enqueue(pq *processQueue) {
	if !pq.queued && pq.waits() {
		pq.queued = true
		m.ready.push(pq)
	}
}

// hand fills t with up to most messages of the next queue in line.
func (m *member) hand(t *task, most int, now time.Time) bool {
	for {
		pq := m.ready.pop()
		if pq == nil {
			return false
		}
		pq.queued = false
		if !pq.waits() || !pq.open(now) {
			continue // whoever changes that puts it in line again
		}
		m.handFrom(t, pq, most, now)
		if m.cfg.handler.orderly {
			pq.busy = true
		} else {
			m.enqueue(pq)
		}
		return true
	}
}

func (m *member) handFrom(t *task, pq *processQueue, most int, now time.Time) {
	t.pq, t.started, t.seqs, t.msgs = pq, now, t.seqs[:0], t.msgs[:0]
	t.claimed.Store(0)
	t.done.Store(0)
	t.settled = 0
	add := func(seq uint64) {
		s := pq.slot(seq)
		s.state = taken
		t.seqs, t.msgs = append(t.seqs, seq), append(t.msgs, s.msg)
	}
	n := 0
	for n < len(pq.redo) && len(t.seqs) < most {
		add(pq.redo[n])
		n++
	}
	pq.redo = pq.redo[n:]
	for pq.phase == running && pq.next < len(pq.slots) && len(t.seqs) < most {
		add(pq.base + uint64(pq.next))
		pq.next++
	}
	t.limit = len(t.seqs)
	t.results = slices.Grow(t.results[:0], len(t.seqs))[:len(t.seqs)]
	m.waiting -= len(t.seqs)
	pq.running += len(t.seqs)
	if m.running == 0 {
		m.progress = now
	}
	m.running += len(t.seqs)
	m.tasks[t] = struct{}{}
}

// putBack makes messages of a task that were not begun wait again, before all
// others.
func (m *member) putBack(pq *processQueue, seqs []uint64) {
	if len(seqs) == 0 {
		return
	}
	back := make([]uint64, 0, len(seqs)+len(pq.redo))
	for _, seq := range seqs {
		if s := pq.slot(seq); s != nil && s.state == taken {
			s.state = waiting
			back = append(back, seq)
		}
	}
	m.waiting += len(back)
	pq.redo = append(back, pq.redo...)
	m.enqueue(pq)
}

// leave counts n messages as no longer with a handler.
func (m *member) leave(pq *processQueue, n int) {
	m.running -= n
	pq.ended(n)
}

// steal takes back what waits behind messages that take long, and accounts for
// what was finished before them. The caller starts the fetches it returns.
func (m *member) steal(now time.Time) (calls []*client.FetchCall) {
	for t := range m.tasks {
		if t.limit < 2 || now.Sub(t.started) < stealAfter || m.cfg.handler.orderly || m.cfg.handler.size > 1 {
			continue
		}
		if from := int(t.claimed.Swap(int64(len(t.msgs)))); from < t.limit {
			rest := t.seqs[from:t.limit]
			t.limit = from
			m.putBack(t.pq, rest)
			m.leave(t.pq, len(rest))
		}
		if m.settle(t) > 0 {
			calls = append(calls, m.pump(t.pq)...)
		}
	}
	return calls
}

// line is a queue of process queues.
type line struct {
	items []*processQueue
	head  int
}

func (l *line) push(pq *processQueue) { l.items = append(l.items, pq) }

func (l *line) empty() bool { return l.head == len(l.items) }

func (l *line) pop() *processQueue {
	if l.empty() {
		return nil
	}
	pq := l.items[l.head]
	l.items[l.head] = nil
	l.head++
	switch {
	case l.empty():
		l.items, l.head = l.items[:0], 0
	case l.head > 64 && 2*l.head > len(l.items):
		n := copy(l.items, l.items[l.head:])
		clear(l.items[n:])
		l.items, l.head = l.items[:n], 0
	}
	return pq
}
