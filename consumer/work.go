package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

const (
	// suspend is how long an orderly queue waits before a failed message is tried
	// again.
	suspend = time.Second
	// localRetry is the same for a broadcasting member, which has no retry topic,
	// and for a message whose way back to the broker failed.
	localRetry = 5 * time.Second
	maxSuspend = 5 * time.Minute
	// maxRetryDelay is the longest delay that brokers take.
	maxRetryDelay = 365 * 24 * time.Hour
	// deadLetterLevel is the delay level that makes a message a dead letter at once.
	deadLetterLevel = -1
	// maxCause bounds the text of an error that is kept with a retried message.
	maxCause = 256
)

// spawn starts workers for what waits; they end when nothing does. Called under
// the lock.
func (m *member) spawn() {
	for m.workers < m.cfg.concurrency && m.hatching < m.waiting && !m.ready.empty() {
		m.workers++
		m.hatching++
		m.handlers.Go(m.work) // Run waits for it, up to the drain limit
	}
}

// work hands out messages for as long as some wait.
func (m *member) work() {
	t := new(task)
	most := m.cfg.handler.size
	m.mu.Lock()
	m.hatching--
	for m.hand(t, most, time.Now()) {
		m.mu.Unlock()
		begun := t.started
		n := m.handle(t)
		took := time.Since(begun)
		m.mu.Lock()
		calls := m.finished(t)
		if m.cfg.handler.size == 1 && n > 0 {
			most = int(min(maxTask, max(1, taskTime/max(1, took/time.Duration(n)))))
			if most > 1 { // leave something for the others
				most = min(most, max(1, m.waiting/m.cfg.concurrency))
			}
		}
		if len(calls) > 0 {
			m.mu.Unlock()
			m.start(calls)
			m.mu.Lock()
		}
	}
	m.workers--
	m.mu.Unlock()
}

// handle runs the handler over a task and returns how many messages it was
// called for. Before every call it looks at the clock of the lease: a process
// that was paused stops before it does anything else. A queue that must go does
// not stop it: what a task holds is begun, since later messages may be finished.
func (m *member) handle(t *task) int {
	h := &m.cfg.handler
	if h.size > 1 {
		if !t.pq.open(time.Now()) {
			return 0
		}
		t.claimed.Store(int64(len(t.msgs)))
		err := m.guard(t.pq.ctx, t.msgs)
		for range t.msgs {
			t.end(err)
		}
		return len(t.msgs)
	}
	for t.pq.open(time.Now()) {
		i, ok := t.claim()
		if !ok {
			break
		}
		err := m.guard(t.pq.ctx, t.msgs[i:i+1:i+1])
		t.end(err)
		if err != nil && h.orderly {
			break // nothing passes it
		}
	}
	return int(t.done.Load())
}

// guard calls the handler; a panic is a failure.
func (m *member) guard(ctx context.Context, msgs []*message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("handler panicked: %v", p)
			m.met.panicked()
			m.log.Error("handler panicked", zap.String("topic", msgs[0].Topic), zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return m.cfg.handler.handle(ctx, msgs)
}

// finished accounts for a task that is over. Called under the lock; the caller
// starts the fetches it returns.
func (m *member) finished(t *task) []*client.FetchCall {
	pq := t.pq
	delete(m.tasks, t)
	m.settle(t)
	n := int(t.done.Load())
	if n < t.limit {
		if n == 0 { // the lease stopped before its handler was called: nothing else will say that it has ended
			pq.busy = false
		}
		if pq.phase != gone {
			m.putBack(pq, t.seqs[n:t.limit])
		}
		m.leave(pq, t.limit-n)
	}
	clear(t.msgs)
	clear(t.results)
	m.enqueue(pq)
	m.schedule()
	return m.pump(pq)
}

// settle accounts for the messages of a task that were handled since it was
// called last, and returns how many they were. Called under the lock.
func (m *member) settle(t *task) int {
	pq := t.pq
	from, to := t.settled, int(t.done.Load())
	if from == to {
		return 0
	}
	t.settled = to
	m.progress = time.Now()
	m.recovered()
	if pq.phase == gone {
		m.met.late(to - from)
		m.leave(pq, to-from)
		return to - from
	}
	away := 0 // messages that are still in flight, on their way to the broker
	hold := false
	for i := from; i < to; i++ {
		if err := t.results[i]; err == nil {
			m.cached -= pq.finish(t.seqs[i])
			m.met.consumed()
		} else {
			m.met.failed()
			if m.failed(pq, t.seqs[i], err) {
				away++
			} else {
				hold = true
			}
		}
	}
	if m.cfg.handler.orderly && !hold && away == 0 {
		pq.busy = false
	}
	m.leave(pq, to-from-away)
	return to - from
}

// failed decides what becomes of a message whose handler failed. It reports true
// if the message is on its way back to the broker and counts as taken until that
// has ended.
func (m *member) failed(pq *processQueue, seq uint64, cause error) bool {
	s := pq.slot(seq)
	if s == nil {
		return false
	}
	delay := time.Duration(0)
	if r, ok := errors.AsType[*retryAfter](cause); ok {
		delay = min(r.delay, maxRetryDelay)
	}
	switch {
	case m.cfg.handler.orderly:
		if int(s.msg.ReconsumeTimes) < m.cfg.maxReconsume {
			m.warnFailed(s.msg, orElse(min(delay, maxSuspend), suspend), cause)
			s.msg.ReconsumeTimes++
			m.retryHere(pq, seq, orElse(min(delay, maxSuspend), suspend))
			return false
		}
		m.sendBack(pq, seq, 0, true, cause)
		return true
	case m.cfg.mode == session.Broadcasting:
		if int(s.msg.ReconsumeTimes) < m.cfg.maxReconsume {
			m.warnFailed(s.msg, orElse(delay, localRetry), cause)
			s.msg.ReconsumeTimes++
			m.retryHere(pq, seq, orElse(delay, localRetry))
		} else {
			m.log.Warn("message given up after its last attempt", append(where(s.msg), zap.NamedError("reason", reason(cause)))...)
			m.met.givenUp()
			m.cached -= pq.finish(seq)
		}
		return false
	}
	m.sendBack(pq, seq, delay, false, cause)
	return true
}

// orElse is d if it is a delay.
func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// retryHere hands a message out again after a delay.
func (m *member) retryHere(pq *processQueue, seq uint64, delay time.Duration) {
	pq.slot(seq).state = delayed
	m.after(delay, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		s := pq.slot(seq)
		if s == nil || s.state != delayed || pq.phase == gone {
			return
		}
		s.state = waiting
		pq.busy = false
		m.waiting++
		if m.cfg.handler.orderly {
			pq.redo = append([]uint64{seq}, pq.redo...) // before all that came after it
		} else {
			pq.redo = append(pq.redo, seq)
		}
		m.enqueue(pq)
		m.schedule()
	})
}

// sendBack gives a message back to its broker. If that fails the message stays
// in flight and is tried again here: it is never lost. Only where it would fail for
// ever its attempts are counted here, and it is given up after the last one.
func (m *member) sendBack(pq *processQueue, seq uint64, delay time.Duration, dead bool, cause error) {
	s := pq.slot(seq)
	req := client.SendBackRequest{
		Group: m.cfg.group, Queue: pq.queue, Epoch: pq.epoch, Offset: s.offset,
		Delay: delay, MaxReconsumeTimes: int32(m.cfg.maxReconsume), ReconsumeTimes: s.msg.ReconsumeTimes, Cause: causeText(cause),
	}
	if dead {
		req.Level = deadLetterLevel
	}
	m.backs.put(pq.queue.Broker, func() {
		res, err := m.cluster.SendBack(m.base, req)
		m.sentBack(pq, seq, res, cause, err)
	})
}

// hopeless tells whether sending a message back fails again however often it is
// tried: it has left the broker's log, or the broker will not take it.
func hopeless(err error) bool {
	return slices.ContainsFunc([]error{
		rpcerr.ErrOffsetOutOfRange, rpcerr.ErrMessageNotFound, rpcerr.ErrDamaged,
		rpcerr.ErrInvalidArgument, rpcerr.ErrMessageTooLarge, rpcerr.ErrBadBatch, rpcerr.ErrLimitReached,
	}, func(known error) bool { return errors.Is(err, known) })
}

// causeText is the text that is kept with a retried message. The wire takes UTF-8
// only, and an error may say anything or be cut inside a character.
func causeText(cause error) string {
	text := reason(cause).Error()
	return strings.ToValidUTF8(text[:min(len(text), maxCause)], "")
}

func (m *member) sentBack(pq *processQueue, seq uint64, res client.SendBackResult, cause, err error) {
	m.mu.Lock()
	m.met.sentBack(res.DeadLetter, err)
	if pq.phase != gone {
		s := pq.slot(seq)
		switch {
		case s == nil: // sought away
		case err == nil:
			if res.DeadLetter {
				m.log.Warn("message failed for the last time, it is a dead letter now", append(where(s.msg), zap.NamedError("reason", reason(cause)))...)
			} else {
				m.warnFailed(s.msg, res.Delay, cause)
			}
			m.cached -= pq.finish(seq)
			pq.busy = false
		case hopeless(err) && int(s.msg.ReconsumeTimes) >= m.cfg.maxReconsume:
			m.log.Error("message given up after its last attempt, since it cannot be sent back",
				append(where(s.msg), zap.NamedError("reason", reason(cause)), zap.Error(err))...)
			m.met.givenUp()
			m.cached -= pq.finish(seq)
			pq.busy = false
		default:
			if hopeless(err) { // then attempts here are all that it gets
				s.msg.ReconsumeTimes++
			}
			m.log.Warn("message cannot be sent back, it is tried again here", append(where(s.msg), zap.NamedError("reason", reason(cause)), zap.Error(err))...)
			m.retryHere(pq, seq, localRetry)
		}
	}
	m.leave(pq, 1)
	m.enqueue(pq)
	calls := m.pump(pq)
	m.schedule()
	m.mu.Unlock()
	m.start(calls)
}
