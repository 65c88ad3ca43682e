package cli

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// StopLimit is how long a producer that was stopped waits for what is under way.
const StopLimit = 3 * time.Second

// ErrStopped says that something was stopped before it was done.
var ErrStopped = errors.New("stopped")

// StoppedAfter is the error of input that was not read to its end.
func StoppedAfter(messages int) error {
	return fmt.Errorf("%w after %d messages, before the end of the input", ErrStopped, messages)
}

// Close closes a producer: within limit, but no later than StopLimit after ctx has
// ended. What is not acknowledged by then may be stored all the same, which the error
// says, with ErrStopped; unacknowledged counts it.
func Close(ctx context.Context, p interface {
	Close(ctx context.Context) error
}, limit time.Duration, unacknowledged func() int,
) error {
	closing, cancel := within(ctx, limit)
	defer cancel()
	err := p.Close(closing)
	if err == nil || !errors.Is(context.Cause(closing), ErrStopped) {
		return err //nolint:wrapcheck // the producer's own
	}
	return fmt.Errorf("%w: %d messages are not acknowledged %v later: they may be stored all the same", ErrStopped, unacknowledged(), StopLimit)
}

// within returns a context that ends after limit, or StopLimit after ctx has ended.
func within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	out, end := context.WithCancelCause(limited)
	late := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(StopLimit)
		defer t.Stop()
		select {
		case <-t.C:
			end(ErrStopped)
		case <-late:
		}
	})
	return out, func() {
		stop()
		close(late)
		cancel()
	}
}
