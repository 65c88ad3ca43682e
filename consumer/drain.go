package consumer

import (
	"context"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/session"
)

// revoke stops queues that must go and answers Drained for each once its
// handlers have ended, at the latest at the drain limit.
func (m *member) revoke(pqs []*processQueue) {
	deadline := time.Now().Add(m.cfg.drainLimit)
	handlers := deadline
	if m.cfg.listener != nil { // leave it some of the time
		handlers = deadline.Add(-m.cfg.drainLimit / 5)
	}
	m.mu.Lock()
	for _, pq := range pqs {
		pq.phase = draining
		m.enqueue(pq)
	}
	m.schedule()
	m.mu.Unlock()
	for _, pq := range pqs { // before the next holder can begin to fetch
		m.cancelFetch(pq)
	}
	var quiet []*processQueue
	m.mu.Lock()
	for _, pq := range pqs {
		if pq.running == 0 && !pq.unsettled() {
			quiet = append(quiet, pq)
			continue
		}
		ended := make(chan struct{})
		pq.drained = ended
		m.background.Go(func() { // Run waits for it; ends at the drain limit
			if !wait(ended, handlers) {
				m.met.overrun()
				m.log.Warn("handlers run past the drain limit, their messages may be handed out again", zap.String("topic", pq.queue.Topic),
					zap.String("broker", pq.queue.Broker), zap.Int32("queue", pq.queue.ID))
			}
			m.release([]*processQueue{pq}, deadline)
		})
	}
	m.mu.Unlock()
	if len(quiet) > 0 {
		m.background.Go(func() { m.release(quiet, deadline) }) // Run waits for it; ends at the drain limit
	}
}

// release tells the listener, stores progress where no lease carries it, and
// tells the engine.
func (m *member) release(pqs []*processQueue, deadline time.Time) {
	told := make(chan struct{})
	m.notify(pqs, func(queues []allocate.Queue) {
		ctx, cancel := context.WithDeadline(m.base, deadline)
		defer cancel()
		m.cfg.listener.OnRevoked(ctx, queues)
	}, func() { close(told) })
	if !wait(told, deadline) {
		m.log.Warn("listener runs past the drain limit", zap.Int("queues", len(pqs)))
	}
	m.mu.Lock()
	keep := m.keeping[pqs[0]]
	m.mu.Unlock()
	if keep || pqs[0].epoch.IsZero() {
		m.storeBefore(pqs)
	}
	if keep {
		m.done(pqs)
		return
	}
	m.mu.Lock()
	out := make([]rebalance.Drained, 0, len(pqs))
	for _, pq := range pqs {
		if pq.phase == gone {
			continue // lost meanwhile
		}
		d := rebalance.Drained{Queue: pq.queue, Epoch: pq.epoch}
		d.Offset, d.HasOffset = pq.progress()
		m.forget(pq)
		out = append(out, d)
	}
	m.mu.Unlock()
	for _, d := range out {
		m.inbox.put(item{ev: d})
	}
	if m.engine == nil {
		m.inbox.put(item{do: m.takeWanted})
	}
	m.done(pqs)
}

// storeBefore commits queues before they go, where no release does.
func (m *member) storeBefore(pqs []*processQueue) {
	if m.cfg.mode == session.Broadcasting {
		m.keepLocal()
		return
	}
	byBroker := make(map[string][]*processQueue)
	for _, pq := range pqs {
		byBroker[pq.queue.Broker] = append(byBroker[pq.queue.Broker], pq)
	}
	var wg sync.WaitGroup
	for broker, of := range byBroker {
		wg.Go(func() {
			if err := m.commit(broker, of); err != nil {
				m.log.Warn("offsets of released queues cannot be committed", zap.String("broker", broker), zap.Error(err))
			}
		})
	}
	wg.Wait()
}

// suspend stops a member that gives nothing to others: a static one, whose leases
// stay for the one that comes after it with the same instance id, and one whose
// queues are assigned by hand. Handlers end and progress is stored. Queues that were
// on their way out already go all the way.
func (m *member) suspend() {
	m.suspending = true
	m.wanted = nil
	m.mu.Lock()
	pqs := make([]*processQueue, 0, len(m.queues))
	m.keeping = make(map[*processQueue]bool, len(m.queues))
	for _, pq := range m.queues {
		keep := pq.phase < draining
		m.keeping[pq] = keep
		if keep {
			pqs = append(pqs, pq)
		}
	}
	none := len(m.keeping) == 0
	m.mu.Unlock()
	if none {
		m.left = true
		return
	}
	m.revoke(pqs)
}

// done takes note of queues that are done with, when the member is being suspended;
// the last one ends it.
func (m *member) done(pqs []*processQueue) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.keeping) == 0 {
		return
	}
	for _, pq := range pqs {
		delete(m.keeping, pq)
	}
	if len(m.keeping) == 0 {
		m.inbox.put(item{do: func() { m.left = true }})
	}
}

// lose drops queues that are not ours any more.
func (m *member) lose(pqs []*processQueue) {
	m.mu.Lock()
	for _, pq := range pqs {
		pq.stop.Store(true)
		m.forget(pq)
	}
	calls := m.pump(nil)
	m.mu.Unlock()
	m.start(calls)
	for _, pq := range pqs {
		m.cancelFetch(pq)
	}
	m.notify(pqs, func(queues []allocate.Queue) { m.cfg.listener.OnLost(m.base, queues) }, nil)
}

// forget ends a process queue's life: what its handlers still return does not
// count. Called under the lock.
func (m *member) forget(pq *processQueue) {
	if pq.phase == gone {
		return
	}
	if pq.phase != draining || pq.drained == nil {
		pq.phase = gone
	} else { // somebody still waits for its handlers: no use now
		pq.phase = gone
		close(pq.drained)
		pq.drained = nil
	}
	if m.queues[pq.queue] == pq {
		delete(m.queues, pq.queue)
		m.met.owned(-1)
	}
	if pq.running > 0 {
		m.lingering[pq.queue] = pq
		pq.idleFn = append(pq.idleFn, func() {
			if m.lingering[pq.queue] == pq {
				delete(m.lingering, pq.queue)
			}
		})
	}
	pq.drop()
	pq.cancel()
}

// cancelFetch takes the fetch under way back. One that is about to be started cannot
// be: it is tried again, or its long poll would be waited for.
func (m *member) cancelFetch(pq *processQueue) {
	if !m.cluster.CancelFetch(&pq.call) {
		m.mu.Lock()
		again := pq.unwanted()
		m.mu.Unlock()
		if again {
			m.after(retryBase, func() {
				m.mu.Lock()
				again := pq.unwanted()
				m.mu.Unlock()
				if again {
					m.cancelFetch(pq)
				}
			})
		}
		return
	}
	m.mu.Lock()
	m.reserved -= pq.reserved
	pq.reserved, pq.fetching, pq.discard = 0, false, false
	calls := m.pump(pq)
	m.mu.Unlock()
	m.start(calls)
}

// unwanted tells whether a fetch is under way whose answer is good for nothing. Called
// under the lock.
func (pq *processQueue) unwanted() bool {
	return pq.fetching && (pq.discard || pq.phase >= draining) && !pq.m.ended
}

// wait waits for c to be closed, until the deadline.
func wait(c <-chan struct{}, deadline time.Time) bool {
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-c:
		return true
	case <-t.C:
	}
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// notify queues a call of the listener for those of the queues that it was told
// of and not yet of their end; then is called after it, or at once if there is
// nobody to tell.
func (m *member) notify(pqs []*processQueue, f func([]allocate.Queue), then func()) {
	var queues []allocate.Queue
	if m.cfg.listener != nil {
		m.mu.Lock()
		for _, pq := range pqs {
			if pq.told {
				pq.told = false
				queues = append(queues, pq.queue)
			}
		}
		m.mu.Unlock()
	}
	if len(queues) == 0 {
		if then != nil {
			then()
		}
		return
	}
	m.tell(func() {
		if then != nil {
			defer then()
		}
		f(queues)
	})
}

// tell calls f on the listener's goroutine, after what was queued before.
func (m *member) tell(f func()) {
	m.telling.mu.Lock()
	defer m.telling.mu.Unlock()
	m.telling.calls = append(m.telling.calls, func() {
		defer func() {
			if p := recover(); p != nil {
				m.met.panicked()
				m.log.Error("listener panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			}
		}()
		f()
	})
	if !m.telling.running {
		m.telling.running = true
		m.handlers.Go(m.telling.run) // like handlers, a listener that hangs must not hang Run
	}
}

// tellings are calls of the listener, made in order on one goroutine.
type tellings struct {
	mu      sync.Mutex
	calls   []func()
	running bool
}

func (t *tellings) run() {
	for {
		t.mu.Lock()
		if len(t.calls) == 0 {
			t.running = false
			t.mu.Unlock()
			return
		}
		f := t.calls[0]
		t.calls = t.calls[1:]
		t.mu.Unlock()
		f()
	}
}
