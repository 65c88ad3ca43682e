package store

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Waiter waits for messages in one queue. Set Wake before the first Arm. Arm and
// Disarm of one waiter must not run at the same time.
type Waiter struct {
	// Wake is called once for each Arm that was not ready, when there is
	// something to read or the queue or the store is gone. It must not block and
	// must not call methods that wait for an append. If it runs on a goroutine of
	// the store others wait for that; if calm is set it runs on one that has stored
	// its batch and may as well take that to the reader.
	Wake func(calm bool)

	offset int64
	queue  atomic.Pointer[queue] // nil while not armed
}

// Arm reports whether q has messages at or after offset. If not, w.Wake will be
// called once when it has, or when q is deleted or the store closed. There is no
// gap between the check and the waiting. Arming an armed waiter moves it.
func (s *Store) Arm(w *Waiter, q Queue, offset int64) (ready bool, err error) {
	s.Disarm(w)
	qu := s.find(q)
	if qu == nil {
		return false, fmt.Errorf("%w: %s/%d", ErrNoQueue, q.Topic, q.ID)
	}
	qu.mu.Lock()
	defer qu.mu.Unlock()
	if qu.gone {
		return false, fmt.Errorf("%w: %s/%d", ErrNoQueue, q.Topic, q.ID)
	}
	if qu.closed {
		return false, ErrClosed
	}
	if qu.next > offset {
		return true, nil
	}
	w.offset = offset
	w.queue.Store(qu)
	qu.waiters = append(qu.waiters, w)
	return false, nil
}

// Disarm ends the waiting. A call of Wake may be under way when it returns.
func (s *Store) Disarm(w *Waiter) {
	q := w.queue.Load()
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiters, w); i >= 0 {
		q.waiters = slices.Delete(q.waiters, i, i+1)
	}
	w.queue.Store(nil)
}
