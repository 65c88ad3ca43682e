package consumer

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/message"
)

func TestPollThatWaitsForAnotherEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		c := newPull(t, f, "c1", WithTopic("T", "*"))
		first := make(chan error, 1)
		go func() {
			_, err := c.Poll(t.Context())
			first <- err
		}()
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := c.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		shut(t, c)
		if err := <-first; !errors.Is(err, ErrClosed) {
			t.Errorf("the Poll under way returned %v", err)
		}
	})
}

func TestNothingWaitsForAConsumerThatNeverJoinedAndIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		c := newPull(t, f, "c1")
		ended := make(chan error, 3)
		go func() {
			_, err := c.Poll(t.Context())
			ended <- err
		}()
		go func() { ended <- c.SeekToEnd(t.Context(), queue("a", 0)) }() // of a topic without a route
		time.Sleep(time.Second)
		shut(t, c)
		_, _, err := c.Committed(t.Context(), queue("a", 0))
		ended <- err
		for range 3 {
			if err := <-ended; !errors.Is(err, ErrClosed) {
				t.Errorf("ended with %v, want %v", err, ErrClosed)
			}
		}
		if err := c.Assign(queue("a", 0)); !errors.Is(err, ErrClosed) {
			t.Errorf("Assign: %v", err)
		}
	})
}

// With commits by hand nil means stored.
func TestCommitSaysWhatIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 10)
		c := newPull(t, f, "c1", WithTopic("T", "*"), WithAutoCommit(false))
		poll(t, c, 10)
		if err := c.Commit(t.Context()); err != nil || f.stored(q) != 10 {
			t.Errorf("stored is %d, Commit says %v", f.stored(q), err)
		}
		f.fill(q, 10)
		poll(t, c, 10)
		c.Unsubscribe("T") // as a rebalance does, takes the queue away
		time.Sleep(time.Minute)
		if err := c.Commit(t.Context()); !errors.Is(err, ErrNotAssigned) {
			t.Errorf("stored is %d, Commit says %v", f.stored(q), err)
		}
		if err := c.Commit(t.Context()); err != nil {
			t.Errorf("said twice: %v", err)
		}
		shut(t, c)
		if err := c.Commit(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestCommitReturnsTheErrorOfTheOffsetFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		f.put(queue("a", 0), &message.Message{})
		c := newPull(t, f, "c1", WithTopic("T", "*"), WithMode(Broadcasting), WithOffsetFile(filepath.Join(t.TempDir(), "missing", "offsets")), WithAutoCommit(false))
		defer shut(t, c)
		poll(t, c, 1)
		if err := c.Commit(t.Context()); err == nil {
			t.Error("nil, though the file cannot be written")
		}
	})
}
