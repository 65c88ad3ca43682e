package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/tacitmq/tacit/message"
)

// Handler is what a [PushConsumer] does with messages; made by [Each], [Batch] or
// [Orderly].
//
// A handler that returns nil has consumed its messages. With an error, or a
// panic, they are tried again later: the broker keeps a copy in the group's retry
// topic, with a delay that grows by attempt, and after the last attempt among the
// dead letters. Return [RetryAfter] to choose the delay.
//
// The context ends when the queue was lost or the drain limit has passed, and
// what the handler returns no longer counts. A message is handed out again after
// failures of machines or networks, so that handlers must bear repeats.
type Handler struct {
	handle  func(ctx context.Context, msgs []*message.Message) error
	size    int
	orderly bool
}

// Each handles one message at a time, many concurrently.
func Each(f func(ctx context.Context, m *message.Message) error) Handler {
	return Handler{handle: first(f), size: 1}
}

// Batch handles up to size messages of one queue at a time, many batches
// concurrently. An error is that of all messages in the batch. The slice is used
// again: a handler must not keep it.
func Batch(size int, f func(ctx context.Context, msgs []*message.Message) error) Handler {
	return Handler{handle: f, size: size}
}

// Orderly handles the messages of a queue one after another, in order, also when
// the queue moves between members; queues are handled concurrently. A message
// that fails is tried again in place, after [RetryAfter] or a second, and nothing
// of its queue passes it until it becomes a dead letter after the last attempt.
// It needs the exclusive hand-over.
func Orderly(f func(ctx context.Context, m *message.Message) error) Handler {
	return Handler{handle: first(f), size: 1, orderly: true}
}

func first(f func(ctx context.Context, m *message.Message) error) func(context.Context, []*message.Message) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context, msgs []*message.Message) error { return f(ctx, msgs[0]) }
}

// RetryAfter is the error of a handler that wants its message again after a
// delay of its choice, up to 365 days, of an orderly handler up to 5 minutes. With
// 0 or less the delay is that of any other error: by the number of attempts, of an
// orderly handler a second. Cause may be nil.
func RetryAfter(delay time.Duration, cause error) error {
	return &retryAfter{delay: delay, cause: cause}
}

type retryAfter struct {
	delay time.Duration
	cause error
}

func (e *retryAfter) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("retry after %v", e.delay)
	}
	return fmt.Sprintf("retry after %v: %v", e.delay, e.cause)
}

func (e *retryAfter) Unwrap() error { return e.cause }
