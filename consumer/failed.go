package consumer

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/message"
)

const (
	// maxWarnings of failed messages are logged in a warningPeriod; how many more
	// there were is said with the next one.
	maxWarnings   = 20
	warningPeriod = time.Second
)

// warnings bounds what failing handlers write to the log. Guarded by member.mu.
type warnings struct {
	begun            time.Time // the period
	written, dropped int
}

// next tells whether one more may be written, and how many were not since the last.
func (w *warnings) next(now time.Time) (dropped int, ok bool) {
	if now.Sub(w.begun) >= warningPeriod {
		w.begun, w.written = now, 0
	}
	if w.written == maxWarnings {
		w.dropped++
		return 0, false
	}
	w.written++
	dropped, w.dropped = w.dropped, 0
	return dropped, true
}

// warnFailed says that a handler failed, why, and when the message is tried again.
// Called under the lock.
func (m *member) warnFailed(msg *message.Message, delay time.Duration, cause error) {
	dropped, ok := m.warnings.next(time.Now())
	if !ok {
		return
	}
	fields := append(where(msg), zap.Int32("reconsume_times", msg.ReconsumeTimes), zap.Duration("again_in", delay), zap.NamedError("reason", reason(cause)))
	if dropped > 0 {
		fields = append(fields, zap.Int("failures_not_logged", dropped))
	}
	m.log.Warn("handler failed, its message will be tried again", fields...)
}

// where names a message by where it was stored first.
func where(msg *message.Message) []zap.Field {
	return []zap.Field{
		zap.String("topic", msg.Topic), zap.String("broker", msg.Queue.Broker), zap.Int32("queue", msg.Queue.ID), zap.Int64("offset", msg.Offset),
	}
}

// reason is why a handler failed, without what it wants to happen next.
func reason(cause error) error {
	if r, ok := errors.AsType[*retryAfter](cause); ok && r.cause != nil && cause.Error() == r.Error() {
		return r.cause
	}
	return cause
}
