package consumer

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/session"
)

const (
	// Session streams are opened again after reconnectBase, growing to reconnectMax.
	reconnectBase = 20 * time.Millisecond
	reconnectMax  = time.Second
	// steady is how long a stream must have lived for the next one to be opened
	// without much delay.
	steady = 5 * time.Second
)

// conn keeps a session stream to a broker open until it is given up.
type conn struct {
	broker string
	cancel context.CancelFunc
	// session is the open stream, if any; owned by the loop.
	session client.Session
}

func (m *member) connect(broker string) {
	if m.conns[broker] != nil {
		return
	}
	ctx, cancel := context.WithCancel(m.base)
	c := &conn{broker: broker, cancel: cancel}
	m.conns[broker] = c
	m.background.Go(func() { c.run(ctx, m) }) // Run waits for it; ends with base or disconnect
}

// disconnect gives a connection up; what was sent on it is still written.
func (m *member) disconnect(broker string) {
	c := m.conns[broker]
	if c == nil {
		return
	}
	delete(m.conns, broker)
	s := c.session
	m.goodbyes.Go(func() { // close waits for it; ends within the flush timeout
		if s != nil {
			s.Close(true)
		}
		c.cancel()
	})
}

// run opens streams, one after another. Each attempt ends in Connected or
// Disconnected, each stream in Disconnected.
func (c *conn) run(ctx context.Context, m *member) {
	failures := 0
	for ctx.Err() == nil {
		begun := time.Now()
		s, err := m.cluster.OpenSession(ctx, c.broker, func(f session.ToMember) {
			m.inbox.put(item{conn: c, ev: rebalance.Received{Broker: c.broker, Frame: f}})
		})
		if err == nil {
			m.inbox.put(item{conn: c, do: func() {
				c.session = s
				m.step(rebalance.Connected{Broker: c.broker})
			}})
			m.open.Add(1)
			err = s.Wait()
			m.open.Add(-1)
		}
		m.inbox.put(item{conn: c, do: func() {
			c.session = nil
			m.step(rebalance.Disconnected{Broker: c.broker})
		}})
		if time.Since(begun) >= steady {
			failures = 0
		}
		failures++
		if ctx.Err() == nil {
			if failures == 1 {
				m.log.Info("session ended, connecting again", zap.String("broker", c.broker), zap.Error(err))
			} else {
				m.log.Debug("session cannot be opened, trying again", zap.String("broker", c.broker), zap.Error(err))
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(backoff(failures, reconnectBase, reconnectMax)):
		}
	}
}

// backs sends messages back: few at a time for each broker, so that one that
// does not answer keeps nobody from the others, and no handler waits.
type backs struct {
	wg *sync.WaitGroup

	mu     sync.Mutex
	queues map[string]*backQueue
	closed bool
}

type backQueue struct {
	jobs    []func()
	workers int
}

// maxBackWorkers send messages back to one broker at the same time.
const maxBackWorkers = 8

func newBacks(wg *sync.WaitGroup) *backs {
	return &backs{wg: wg, queues: make(map[string]*backQueue)}
}

func (b *backs) put(broker string, job func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	q := b.queues[broker]
	if q == nil {
		q = new(backQueue)
		b.queues[broker] = q
	}
	q.jobs = append(q.jobs, job)
	if q.workers < maxBackWorkers {
		q.workers++
		b.wg.Go(func() { b.work(q) }) // whoever owns wg waits; each job ends within the call timeout
	}
}

func (b *backs) work(q *backQueue) {
	for {
		b.mu.Lock()
		if len(q.jobs) == 0 {
			q.workers--
			b.mu.Unlock()
			return
		}
		job := q.jobs[0]
		q.jobs = q.jobs[1:]
		b.mu.Unlock()
		job()
	}
}

// close drops what was not begun: its messages are still in flight and come again.
func (b *backs) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, q := range b.queues {
		q.jobs = nil
	}
}
