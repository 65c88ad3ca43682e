package consumer

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
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

// Where a new group began is stored soon after, however long the commit interval: a member that dies before its first
// regular commit must not make the next one begin after messages nobody handled.
func TestBeginningOfANewGroupIsStoredBeforeTheFirstCommitTick(t *testing.T) {
	for _, before := range []int{0, 10} { // the queue may be empty, and a long poll under way
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.topic(1, "a")
			q := queue("a", 0)
			f.fill(q, before)
			var mu sync.Mutex
			got := make(map[int64]bool)
			handler := func(d time.Duration) Handler {
				return handle(func(m *message.Message) error {
					mu.Lock()
					got[m.Offset] = true
					mu.Unlock()
					time.Sleep(d)
					return nil
				})
			}
			one := runPush(t, f, "c1", handler(time.Second), WithStart(Last()), WithConcurrency(1), WithCommitInterval(time.Hour))
			time.Sleep(2500 * time.Millisecond)
			f.kill()
			f.fill(q, 10)
			two := runPush(t, f, "c2", handler(0), WithStart(Last()))
			time.Sleep(10 * time.Second)
			one.stop()
			two.stop()
			if len(got) != 10 {
				t.Errorf("%d of 10 messages came", len(got))
			}
		})
	}
}

func TestBeginningIsStoredAlthoughTheFirstTriesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a", "b")
		begun := time.Now()
		f.setFailing(failUntil("commit", begun.Add(5*time.Second)))
		m := runPush(t, f, "c1", handle(func(*message.Message) error { return nil }), WithStart(Last()), WithCommitInterval(time.Hour))
		time.Sleep(20 * time.Second)
		if o := f.stored(queue("b", 1)); o != 0 {
			t.Errorf("stored offset is %d, want 0", o)
		}
		m.stop()
	})
}

// failUntil makes one kind of call fail until a time.
func failUntil(kind string, until time.Time) func(string, allocate.Queue) error {
	return func(what string, _ allocate.Queue) error {
		if what == kind && time.Now().Before(until) {
			return rpcerr.ErrUnreachable
		}
		return nil
	}
}

// A static member keeps its leases for its successor when it stops, but queues that a rebalance was taking away at that
// moment still go to their next owner, with their progress.
func TestStaticMemberThatStopsReleasesQueuesOnTheirWayOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 5)
		m := runPush(t, f, "s1", handle(func(m *message.Message) error {
			if m.Offset == 4 {
				time.Sleep(2 * time.Second)
			}
			return nil
		}), WithInstanceID("s1"))
		time.Sleep(500 * time.Millisecond)
		m.Unsubscribe("T") // as a rebalance does, takes the queue away
		time.Sleep(100 * time.Millisecond)
		m.stop()
		if o := f.stored(q); o != 5 {
			t.Errorf("stored offset is %d, want 5", o)
		}
		if n := f.holders(); n["s1"] > 0 {
			t.Errorf("leases held after the stop: %v", n)
		}
	})
}
