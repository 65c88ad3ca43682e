package consumer

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/rpcerr"
)

// badBatch is a batch that this client cannot decode: damaged on its way or in its
// store, or of a newer form. It is fetched again and again: stepping over it would
// lose its messages.
type badBatch struct {
	offset int64
	cause  error
}

func (e *badBatch) Error() string { return fmt.Sprintf("batch at offset %d: %v", e.offset, e.cause) }
func (e *badBatch) Unwrap() error { return e.cause }

// warnStuck says, once until the queue is read again, that fetches fail for a reason
// that does not pass by itself. Called under the lock.
func (pq *processQueue) warnStuck(err error) {
	m := pq.m
	bad, ok := errors.AsType[*badBatch](err)
	kind := ""
	switch {
	case ok:
		kind = fmt.Sprintf("batch %d", bad.offset)
	case errors.Is(err, rpcerr.ErrNotReadable):
		kind = "not readable"
	case errors.Is(err, rpcerr.ErrInvalidArgument):
		kind = "refused"
	default:
		return
	}
	if kind == pq.stuck {
		return
	}
	pq.stuck = kind
	if ok {
		m.met.undecodable.Inc()
		m.log.Error("batch cannot be decoded, its queue stands still until it can or an operator moves the group's offset past it", append(pq.fields(), zap.Error(err))...)
		return
	}
	dropped, ok := m.stuck.next(time.Now())
	if !ok {
		return
	}
	fields := append(pq.fields(), zap.Error(err))
	if dropped > 0 {
		fields = append(fields, zap.Int("queues_not_logged", dropped))
	}
	m.log.Warn("queue cannot be read, trying again", fields...)
}

// fields names the queue and its next offset to fetch.
func (pq *processQueue) fields() []zap.Field {
	return []zap.Field{
		zap.String("topic", pq.queue.Topic), zap.String("broker", pq.queue.Broker), zap.Int32("queue", pq.queue.ID), zap.Int64("offset", pq.offset),
	}
}
