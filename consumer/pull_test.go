package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

func newPull(t *testing.T, f *fake, id string, opts ...Option) *LitePullConsumer {
	t.Helper()
	opts = append([]Option{WithClient(f), WithStart(First()), WithClientID(id)}, opts...)
	c, err := NewLitePull(nil, "G", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func shut(t *testing.T, c *LitePullConsumer) {
	t.Helper()
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// poll polls until n messages have come.
func poll(t *testing.T, c *LitePullConsumer, n int) (out []*message.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(out) < n {
		msgs, err := c.Poll(ctx)
		if err != nil {
			t.Fatalf("after %d of %d messages: %v", len(out), n, err)
		}
		out = append(out, msgs...)
	}
	return out
}

func TestPollReturnsEveryMessageOnceAndCloseStoresProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a", "b")
		for id := range int32(4) {
			f.fill(queue("a", id), 300)
			f.fill(queue("b", id), 300)
		}
		c := newPull(t, f, "c1", WithTopic("T", "*"))
		got := make(map[string]bool)
		for _, m := range poll(t, c, 2400) {
			got[string(m.Body)] = true
		}
		if len(got) != 2400 {
			t.Errorf("%d different messages, want 2400", len(got))
		}
		shut(t, c)
		shut(t, c)
		if _, err := c.Poll(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Poll after Close: %v", err)
		}
		for id := range int32(4) {
			if o := f.stored(queue("a", id)); o != 300 {
				t.Errorf("stored offset of queue %d is %d, want 300", id, o)
			}
		}
	})
}

// The ctx whose end was the reason to stop is the one at hand.
func TestCloseStoresProgressAlsoWithAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		f.fill(queue("a", 0), 30)
		c := newPull(t, f, "c1", WithTopic("T", "*"))
		poll(t, c, 30)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
		if o := f.stored(queue("a", 0)); o != 30 {
			t.Errorf("stored offset is %d when Close returns, want 30", o)
		}
	})
}

func TestAssignedQueuesAreReadWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		for id := range int32(4) {
			f.fill(queue("a", id), 10)
		}
		c := newPull(t, f, "c1")
		defer shut(t, c)
		if err := c.Assign(queue("a", 1), queue("a", 2)); err != nil {
			t.Fatal(err)
		}
		for _, m := range poll(t, c, 20) {
			if m.Queue.ID != 1 && m.Queue.ID != 2 {
				t.Errorf("message of queue %d", m.Queue.ID)
			}
		}
		if err := c.Subscribe("T", "*"); err == nil {
			t.Error("Subscribe beside Assign is accepted")
		}
		if len(f.leases) > 0 {
			t.Errorf("leases were taken: %v", f.leases)
		}
		if err := c.Assign(queue("a", 3)); err != nil {
			t.Fatal(err)
		}
		for _, m := range poll(t, c, 10) {
			if m.Queue.ID != 3 {
				t.Errorf("message of queue %d", m.Queue.ID)
			}
		}
	})
}

func TestCloseAndReassignmentStoreTheProgressOfAssignedQueues(t *testing.T) {
	for _, end := range []string{"close", "assign"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t)
			f.topic(2, "a")
			q := queue("a", 0)
			f.fill(q, 10)
			c := newPull(t, f, "c1", WithCommitInterval(time.Hour))
			if err := c.Assign(q); err != nil {
				t.Fatal(err)
			}
			poll(t, c, 10)
			if end == "assign" {
				if err := c.Assign(queue("a", 1)); err != nil {
					t.Fatal(err)
				}
				f.fill(queue("a", 1), 1)
				poll(t, c, 1) // confirms
				time.Sleep(time.Second)
				if o := f.stored(q); o != 10 {
					t.Errorf("stored offset after the next Assign is %d, want 10", o)
				}
			}
			shut(t, c)
			if o := f.stored(q); o != 10 {
				t.Errorf("stored offset after Close is %d, want 10", o)
			}
		})
	}
}

func TestQueueAssignedAgainWhileItIsLetGoIsReadOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		q0, q1 := queue("a", 0), queue("a", 1)
		f.fill(q0, 1)
		c := newPull(t, f, "c1")
		defer shut(t, c)
		for i, queues := range [][]allocate.Queue{{q0}, {q1}, {q0, q1}, {q1}, {q0, q1}} {
			if err := c.Assign(queues...); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				poll(t, c, 1)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if msgs, err := c.Poll(ctx); err == nil {
			t.Errorf("%d messages came again", len(msgs))
		}
		if got := c.Assignment(); len(got) != 2 {
			t.Fatalf("assigned are %v", got)
		}
		f.fill(q0, 1)
		if m := poll(t, c, 1)[0]; m.Offset != 1 {
			t.Errorf("offset %d came, want 1", m.Offset)
		}
	})
}

func TestManualCommitStoresWhatWasReturnedAndNothingElseDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 20)
		c := newPull(t, f, "c1", WithTopic("T", "*"), WithAutoCommit(false), WithPollMessages(5))
		poll(t, c, 10)
		time.Sleep(20 * time.Second)
		if o := f.stored(q); o > 0 { // 0 is where it began
			t.Errorf("offset %d was stored without a commit", o)
		}
		if err := c.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if o := f.stored(q); o != 10 {
			t.Errorf("stored offset is %d, want 10", o)
		}
		poll(t, c, 5)
		shut(t, c)
		if o := f.stored(q); o != 10 {
			t.Errorf("stored offset after Close is %d, want 10", o)
		}
	})
}

// Auto-commit stores what earlier polls returned, never what the last one did: a kill in the middle of a batch brings all of it again.
func TestF_OFF_10_AutoCommitLeavesTheLastPollOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 100)
		c := newPull(t, f, "c1", WithTopic("T", "*"), WithPollMessages(32), WithCommitInterval(time.Second))
		defer shut(t, c)
		poll(t, c, 32)
		time.Sleep(5 * time.Second)
		if o := f.stored(q); o > 0 {
			t.Errorf("offset %d is stored in the middle of the first batch", o)
		}
		second := poll(t, c, 32)
		time.Sleep(5 * time.Second)
		if o := f.stored(q); o != 32 {
			t.Errorf("stored offset is %d in the middle of the second batch, want 32", o)
		}
		f.kill()
		other := newPull(t, f, "c2", WithTopic("T", "*"), WithPollMessages(32))
		defer shut(t, other)
		again := poll(t, other, 32)
		if again[0].Offset != second[0].Offset {
			t.Errorf("successor begins at %d, want %d", again[0].Offset, second[0].Offset)
		}
	})
}

// A seek makes the next message of the queue the target, with queues assigned by hand and with a share of a group.
func TestF_CTL_03_SeekTakesEffect(t *testing.T) {
	for _, mode := range []string{"assigned", "subscribed"} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.topic(1, "a")
				f.fill(queue("a", 0), 50)
				c := newPull(t, f, "c1", WithPollMessages(3))
				defer shut(t, c)
				var err error
				if mode == "assigned" {
					err = c.Assign(queue("a", 0))
				} else {
					err = c.Subscribe("T", "*")
				}
				if err != nil {
					t.Fatal(err)
				}
				poll(t, c, 30)
				fresh := allocate.Queue{Topic: "T", Broker: string([]byte("a")), ID: 0}
				for _, tc := range []struct {
					what string
					seek func() error
					want int64
				}{
					{"to 10", func() error { return c.Seek(fresh, 10) }, 10},
					{"to the beginning", func() error { return c.SeekToBegin(t.Context(), fresh) }, 0},
					{"to the end", func() error { return c.SeekToEnd(t.Context(), fresh) }, 50},
				} {
					if err := tc.seek(); err != nil {
						t.Fatal(err)
					}
					if tc.want == 50 {
						f.fill(fresh, 1)
					}
					if got := poll(t, c, 1)[0].Offset; got != tc.want {
						t.Errorf("after a seek %s offset %d came, want %d", tc.what, got, tc.want)
					}
				}
			})
		})
	}
}

// After a seek returns, each queue goes on at the target without a gap, whatever was fetched or under way before.
func TestF_CTL_04_SeekUnderLoadIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(8, "a")
		var queues []allocate.Queue
		for id := range int32(8) {
			queues = append(queues, queue("a", id))
			f.fill(queues[id], 400)
		}
		var slow atomic.Int64
		f.fetchHold = func(allocate.Queue) { time.Sleep(time.Duration(slow.Add(1)%7) * time.Millisecond) }
		c := newPull(t, f, "c1", WithPollMessages(20), WithFetch(4<<10, time.Second), WithQueueLimits(50, 1<<20))
		defer shut(t, c)
		if err := c.Assign(queues...); err != nil {
			t.Fatal(err)
		}
		poll(t, c, 50)
		for round := range 200 {
			target := int64(100 + round)
			for _, q := range queues {
				if err := c.Seek(q, target); err != nil {
					t.Fatal(err)
				}
			}
			next := make(map[int32]int64)
			for _, m := range poll(t, c, 60) {
				want, ok := next[m.Queue.ID]
				if !ok {
					want = target
				}
				if m.Offset != want {
					t.Fatalf("round %d: queue %d goes on at %d, want %d", round, m.Queue.ID, m.Offset, want)
				}
				next[m.Queue.ID] = m.Offset + 1
			}
		}
	})
}

func TestQueueInTheApplicationsHandsMovesWithTheNextPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		for id := range int32(2) {
			f.fill(queue("a", id), 100)
		}
		one := newPull(t, f, "c1", WithTopic("T", "*"), WithPollMessages(200))
		defer shut(t, one)
		got := make(map[string]int)
		first := poll(t, one, 200)
		for _, m := range first {
			got[string(m.Body)]++
		}
		two := newPull(t, f, "c2", WithTopic("T", "*"))
		defer shut(t, two)
		time.Sleep(2 * time.Second) // one works on what it has, and then polls again
		for id := range int32(2) {
			f.fill(queue("a", id), 10)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		done := make(chan error, 2)
		out := make(chan []*message.Message, 100)
		for _, c := range []*LitePullConsumer{one, two} {
			go func() { // ends with ctx
				for {
					msgs, err := c.Poll(ctx)
					if err != nil {
						done <- err
						return
					}
					out <- msgs
				}
			}()
		}
		for range 2 {
			<-done
		}
		close(out)
		for msgs := range out {
			for _, m := range msgs {
				got[string(m.Body)]++
			}
		}
		if len(got) != 220 {
			t.Errorf("%d messages, want 220", len(got))
		}
		for body, n := range got {
			if n > 1 {
				t.Errorf("%s was returned %d times", body, n)
			}
		}
		if n := f.holders(); n["c2"] == 0 {
			t.Errorf("nothing moved: %v", fmt.Sprint(n))
		}
	})
}
