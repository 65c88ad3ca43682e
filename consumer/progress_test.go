package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A new group that commits by hand passes on where it began when a queue moves before the first commit.
func TestHandOverBeforeTheFirstManualCommitSkipsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		opts := []Option{WithTopic("T", "*"), WithStart(Last()), WithAutoCommit(false), WithPollMessages(5)}
		one := newPull(t, f, "c1", opts...)
		defer shut(t, one)
		time.Sleep(3 * time.Second)
		f.fill(queue("a", 0), 50)
		f.fill(queue("a", 1), 50)
		got := make(map[string]bool)
		poll := func(c *LitePullConsumer, d time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			defer cancel()
			msgs, _ := c.Poll(ctx)
			for _, m := range msgs {
				got[string(m.Body)] = true
			}
		}
		time.Sleep(time.Second)
		poll(one, time.Second)
		two := newPull(t, f, "c2", opts...)
		defer shut(t, two)
		for range 200 {
			poll(one, 100*time.Millisecond)
			poll(two, 100*time.Millisecond)
		}
		if len(got) != 100 {
			t.Errorf("%d of 100 messages came", len(got))
		}
	})
}

func TestSeekWithoutCommitDoesNotStoreItsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 50)
		c := newPull(t, f, "c1", WithTopic("T", "*"), WithAutoCommit(false))
		poll(t, c, 10)
		if err := c.Seek(q, 40); err != nil {
			t.Fatal(err)
		}
		poll(t, c, 10)
		time.Sleep(10 * time.Second)
		shut(t, c)
		if o := f.stored(q); o > 0 {
			t.Errorf("stored offset is %d without a commit", o)
		}
	})
}
