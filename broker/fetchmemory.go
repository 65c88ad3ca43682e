package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/tacitmq/tacit/internal/rpcerr"
)

// fetchStall is how long a client may leave unread what it fetched while others
// wait for the memory.
const fetchStall = 10 * time.Second

// fetchMemory bounds the bytes that answers of fetches hold until the connections
// of their clients have taken them, of all clients together. When there is none
// left, requests wait in line; meanwhile streams whose client reads nothing are
// ended, so that slow clients cannot keep the others waiting.
type fetchMemory struct {
	size  int64
	sem   *semaphore.Weighted
	stall time.Duration

	mu      sync.Mutex
	streams map[*fetchStream]struct{} // that hold some
	waiting int                       // in take
	watched bool                      // watch runs
}

func newFetchMemory(size int64) *fetchMemory {
	return &fetchMemory{size: size, sem: semaphore.NewWeighted(size), stall: fetchStall, streams: make(map[*fetchStream]struct{})}
}

// take waits for n bytes for a stream, or for all there are if n is more. It
// returns how many it took; none if the stream has ended.
func (m *fetchMemory) take(ctx context.Context, f *fetchStream, n int64) (int64, error) {
	n = min(n, m.size)
	if !m.sem.TryAcquire(n) {
		m.mu.Lock()
		if m.waiting++; m.waiting == 1 && !m.watched {
			m.watched = true
			f.srv.streams.Go(func() { m.watch(f.srv.stopping) }) // ends when nobody waits
		}
		m.mu.Unlock()
		err := m.sem.Acquire(ctx, n)
		m.mu.Lock()
		m.waiting--
		m.mu.Unlock()
		if err != nil {
			return 0, err //nolint:wrapcheck // the stream has ended
		}
	}
	return m.hold(f, n)
}

// errMemoryTaken is what tryTake returns when take would wait.
var errMemoryTaken = errors.New("all memory for fetches is in use")

// tryTake is take without waiting.
func (m *fetchMemory) tryTake(f *fetchStream, n int64) (int64, error) {
	n = min(n, m.size)
	if !m.sem.TryAcquire(n) {
		return 0, errMemoryTaken
	}
	return m.hold(f, n)
}

func (m *fetchMemory) hold(f *fetchStream, n int64) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.gone {
		m.sem.Release(n)
		return 0, rpcerr.ErrShuttingDown
	}
	if f.holds == 0 {
		m.streams[f] = struct{}{}
		f.moved = time.Now()
	}
	f.holds += n
	f.srv.metrics.fetchMemory.Add(float64(n))
	return n, nil
}

// give gives back what a stream took.
func (m *fetchMemory) give(f *fetchStream, n int64) {
	if n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !f.gone {
		m.giveLocked(f, n)
	}
}

func (m *fetchMemory) giveLocked(f *fetchStream, n int64) {
	f.holds -= n
	f.moved = time.Now()
	if f.holds == 0 {
		delete(m.streams, f)
	}
	f.srv.metrics.fetchMemory.Sub(float64(n))
	m.sem.Release(n)
}

// forget gives back all that a stream holds: it has ended. What gRPC never lets
// go of, as of a broken connection, the garbage collector takes.
func (m *fetchMemory) forget(f *fetchStream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f.gone = true
	if f.holds > 0 {
		m.giveLocked(f, f.holds)
	}
}

// watch ends stalled streams while somebody waits.
func (m *fetchMemory) watch(stopping <-chan struct{}) {
	tick := time.NewTicker(m.stall / 10)
	defer tick.Stop()
	for {
		m.mu.Lock()
		if m.waiting == 0 {
			m.watched = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		m.endStalled()
		select {
		case <-tick.C:
		case <-stopping:
			return
		}
	}
}

// endStalled ends streams that hold memory and have not given any back for long.
func (m *fetchMemory) endStalled() {
	m.mu.Lock()
	var stalled []*fetchStream
	for f := range m.streams {
		if time.Since(f.moved) > m.stall {
			stalled = append(stalled, f)
		}
	}
	m.mu.Unlock()
	for _, f := range stalled {
		if f.fail(fmt.Errorf("%w: the client has read nothing for %v, and memory for fetches is short", rpcerr.ErrOverloaded, m.stall)) {
			f.srv.metrics.slowFetchers.Inc()
		}
	}
}
