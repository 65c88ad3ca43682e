package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

func handle(f func(m *message.Message) error) Handler {
	return Each(func(_ context.Context, m *message.Message) error { return f(m) })
}

// The committed offset that cannot be read is not taken for none: the queue waits, and nothing below is read or stored.
func TestF_OFF_01_CommittedOffsetThatCannotBeReadIsNotNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		for id := range int32(4) {
			q := queue("a", id)
			f.fill(q, 110)
			f.store(q, 100)
		}
		begun := time.Now()
		f.setFailing(func(what string, _ allocate.Queue) error {
			if what == "committed" && time.Since(begun) < 10*time.Second {
				return errors.New("broker does not answer")
			}
			return nil
		})
		var lowest atomic.Int64
		lowest.Store(1 << 60)
		var n atomic.Int64
		// Without leases, so that the offsets must be asked for.
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			n.Add(1)
			lowest.Store(min(lowest.Load(), m.Offset))
			return nil
		}), WithMode(Immediate), WithConcurrency(1), WithCommitInterval(time.Second))
		time.Sleep(9 * time.Second)
		if n.Load() > 0 {
			t.Errorf("%d messages handed out while the committed offset was not known", n.Load())
		}
		time.Sleep(6 * time.Second)
		m.stop()
		if n.Load() != 40 || lowest.Load() != 100 {
			t.Errorf("%d messages from offset %d on, want 40 from 100 on", n.Load(), lowest.Load())
		}
		for _, c := range f.commits {
			if c.Offset < 100 {
				t.Errorf("offset %d was committed, below 100", c.Offset)
			}
		}
	})
}

// A message whose sending back fails stays in flight: progress never passes it, and it comes again after the member's death.
func TestF_OFF_06_FailedMessageThatCannotBeSentBackIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 20)
		f.setFailing(func(what string, _ allocate.Queue) error {
			if what == "sendback" {
				return errors.New("no way back")
			}
			return nil
		})
		var tries atomic.Int64
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			if m.Offset == 7 {
				tries.Add(1)
				return errors.New("poison")
			}
			return nil
		}), WithCommitInterval(time.Second))
		time.Sleep(12 * time.Second)
		if tries.Load() < 2 {
			t.Errorf("handed out %d times, want again and again", tries.Load())
		}
		if o := f.stored(q); o != 7 {
			t.Errorf("stored offset is %d, want 7", o)
		}
		f.kill()
		var again atomic.Bool
		other := runPush(t, f, "c2", handle(func(m *message.Message) error {
			if m.Offset == 7 {
				again.Store(true)
			}
			return nil
		}))
		time.Sleep(2 * time.Second)
		if !again.Load() {
			t.Error("the message did not come again")
		}
		m.stop()
		other.stop()
	})
}

// A queue that is dropped and taken again within a moment has one pull at a time, and messages are handed out once.
func TestF_HND_01_QueueDroppedAndTakenAgainHasOnePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		var s seen
		h := handle(func(m *message.Message) error {
			s.add(m)
			return nil
		})
		one := runPush(t, f, "c1", h)
		sent := 0
		for range 20 {
			two := runPush(t, f, "c2", h)
			for id := range int32(4) {
				f.fill(queue("a", id), 3)
				sent += 3
			}
			time.Sleep(300 * time.Millisecond)
			two.stop()
			time.Sleep(300 * time.Millisecond)
		}
		one.stop()
		for k, n := range f.most {
			if n > 1 {
				t.Errorf("%d pulls at once for %v", n, k)
			}
		}
		got := s.list()
		if len(got) != sent {
			t.Errorf("%d messages handed out, want %d", len(got), sent)
		}
		slices.Sort(got)
		if n := len(got) - len(slices.Compact(got)); n > 0 {
			t.Errorf("%d handed out twice", n)
		}
	})
}

// Messages cached before a queue moved are not handed out after it, and the successor begins at the committed offset.
func TestF_HND_02_CachedMessagesOfAMovedQueueAreNotHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		for id := range int32(4) {
			f.fill(queue("a", id), 125)
		}
		var mu sync.Mutex
		begun := map[string]map[string]time.Time{"c1": {}, "c2": {}}
		slow := func(who string) Handler {
			return handle(func(m *message.Message) error {
				mu.Lock()
				begun[who][string(m.Body)] = time.Now()
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
				return nil
			})
		}
		revoked := make(map[int32]time.Time)
		one := runPush(t, f, "c1", slow("c1"), WithConcurrency(4), WithListener(ListenerFuncs{
			Revoked: func(_ context.Context, qs []allocate.Queue) {
				mu.Lock()
				defer mu.Unlock()
				for _, q := range qs {
					revoked[q.ID] = time.Now()
				}
			},
		}))
		time.Sleep(200 * time.Millisecond)
		two := runPush(t, f, "c2", slow("c2"), WithConcurrency(4))
		time.Sleep(10 * time.Second)
		mu.Lock()
		moved := len(revoked)
		mu.Unlock()
		two.stop()
		one.stop()
		if len(begun["c2"]) == 0 || len(begun["c1"])+len(begun["c2"]) != 500 {
			t.Errorf("handled %d and %d messages, want 500 together", len(begun["c1"]), len(begun["c2"]))
		}
		if moved != 2 {
			t.Errorf("%d queues moved, want 2", moved)
		}
		for body, at := range begun["c1"] {
			var id int32
			var offset int64
			if _, err := fmt.Sscanf(body, "a/%d/%d", &id, &offset); err != nil {
				t.Fatal(err)
			}
			if end, gone := revoked[id]; gone && at.After(end) {
				t.Errorf("%s was handed out after its queue was revoked", body)
			}
		}
		for body := range begun["c2"] {
			if _, twice := begun["c1"][body]; twice {
				t.Errorf("%s was handed out by both", body)
			}
		}
	})
}

// A queue that is gained begins at its own committed offset, not at that of another queue.
func TestF_HND_08_EachQueueHasItsOwnPosition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		q0, q1 := queue("a", 0), queue("a", 1)
		f.fill(q0, 100)
		f.fill(q1, 100)
		f.store(q0, 90)
		f.store(q1, 10)
		first := make(map[int32]int64)
		var mu sync.Mutex
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if _, ok := first[m.Queue.ID]; !ok {
				first[m.Queue.ID] = m.Offset
			}
			return nil
		}), WithConcurrency(1))
		time.Sleep(time.Second)
		m.stop()
		if first[0] != 90 || first[1] != 10 {
			t.Errorf("began at %v, want 90 and 10", first)
		}
	})
}

// An orderly queue moves when its running handler has ended: handlers of a queue never overlap, and its sequence never goes back.
func TestF_ORD_02_OrderlyQueueWaitsForItsHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		for id := range int32(2) {
			f.fill(queue("a", id), 8)
		}
		type run struct {
			offset     int64
			begun, end time.Time
		}
		var mu sync.Mutex
		runs := make(map[int32][]run)
		h := Orderly(func(_ context.Context, m *message.Message) error {
			r := run{offset: m.Offset, begun: time.Now()}
			time.Sleep(3 * time.Second)
			r.end = time.Now()
			mu.Lock()
			runs[m.Queue.ID] = append(runs[m.Queue.ID], r)
			mu.Unlock()
			return nil
		})
		one := runPush(t, f, "c1", h)
		time.Sleep(4500 * time.Millisecond) // in the middle of the second handler
		two := runPush(t, f, "c2", h)
		time.Sleep(30 * time.Second)
		if h := f.holders(); h["c1"] != 2 { // the other queue is that of the retry topic, if any
			t.Logf("holders: %v", h)
		}
		one.stop()
		two.stop()
		for id, rs := range runs {
			slices.SortFunc(rs, func(a, b run) int { return a.begun.Compare(b.begun) })
			if len(rs) != 8 {
				t.Errorf("queue %d: %d handlers, want 8", id, len(rs))
			}
			for i := 1; i < len(rs); i++ {
				if rs[i].begun.Before(rs[i-1].end) {
					t.Errorf("queue %d: handlers of %d and %d overlap", id, rs[i-1].offset, rs[i].offset)
				}
				if rs[i].offset <= rs[i-1].offset {
					t.Errorf("queue %d: %d came after %d", id, rs[i].offset, rs[i-1].offset)
				}
			}
		}
	})
}

// What a dead member had not confirmed comes again to its successor in the order of offsets.
func TestF_ORD_07_RedeliveryIsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 10)
		hang := make(chan struct{})
		one := runPush(t, f, "c1", Orderly(func(ctx context.Context, _ *message.Message) error {
			select {
			case <-hang:
			case <-ctx.Done():
			}
			return errors.New("dead")
		}))
		time.Sleep(2 * time.Second)
		f.kill()
		time.Sleep(15 * time.Second)
		var got []int64
		two := runPush(t, f, "c2", Orderly(func(_ context.Context, m *message.Message) error {
			got = append(got, m.Offset)
			return nil
		}))
		time.Sleep(2 * time.Second)
		two.stop()
		close(hang)
		one.stop()
		if !slices.Equal(got, []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
			t.Errorf("redelivered in the order %v", got)
		}
	})
}

// A member whose handlers hang gives its queues up, though its heartbeats go on, and takes part again when it recovers.
func TestF_MEM_03_MemberWithoutProgressGivesItsQueuesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		for id := range int32(4) {
			f.fill(queue("a", id), 5)
		}
		release := make(chan struct{})
		one := runPush(t, f, "c1", handle(func(*message.Message) error {
			<-release
			return nil
		}), WithConcurrency(2), WithStallTimeout(10*time.Second))
		time.Sleep(time.Second)
		var n atomic.Int64
		two := runPush(t, f, "c2", handle(func(*message.Message) error {
			n.Add(1)
			return nil
		}))
		time.Sleep(30 * time.Second)
		if !one.Stats().Stalled {
			t.Error("the member does not say that it is stalled")
		}
		if n.Load() != 20 {
			t.Errorf("the other member consumed %d of 20 messages", n.Load())
		}
		close(release)
		time.Sleep(30 * time.Second)
		if one.Stats().Stalled || len(one.Stats().Queues) == 0 {
			t.Errorf("the member has not recovered: %+v", one.Stats())
		}
		one.stop()
		two.stop()
	})
}

// A stop starts nothing new, waits for running handlers, stores progress after that, and the successor repeats nothing.
func TestF_LIF_01_StopStoresProgressAfterTheHandlers(t *testing.T) {
	for _, tc := range []struct {
		name    string
		handler time.Duration
		stopped time.Duration
		repeats int
	}{
		{"handlers end in time", time.Second, time.Second, 0},
		{"handlers take too long", 10 * time.Second, 5 * time.Second, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.topic(4, "a")
				for id := range int32(4) {
					f.fill(queue("a", id), 50)
				}
				var mu sync.Mutex
				n := make(map[string]int)
				var late, ended bool
				one := runPush(t, f, "c1", handle(func(m *message.Message) error {
					mu.Lock()
					n[string(m.Body)]++
					late = late || ended
					mu.Unlock()
					time.Sleep(tc.handler)
					return nil
				}))
				time.Sleep(1500 * time.Millisecond)
				mu.Lock()
				ended = true
				mu.Unlock()
				begun := time.Now()
				one.stop()
				if took := time.Since(begun); took > tc.stopped+100*time.Millisecond {
					t.Errorf("stop took %v, want at most %v", took, tc.stopped)
				}
				mu.Lock()
				if late {
					t.Error("a message was handed out after the stop")
				}
				ended = false
				mu.Unlock()
				two := runPush(t, f, "c2", handle(func(m *message.Message) error {
					mu.Lock()
					defer mu.Unlock()
					n[string(m.Body)]++
					return nil
				}))
				time.Sleep(10 * time.Second)
				two.stop()
				repeats := 0
				for _, k := range n {
					repeats += k - 1
				}
				if len(n) != 200 || repeats != tc.repeats {
					t.Errorf("%d messages with %d repeats, want 200 with %d", len(n), repeats, tc.repeats)
				}
			})
		})
	}
}

// A handler that a stop interrupts has not failed in a way that counts twice: one of sending back and coming again happens, not both.
func TestF_LIF_02_InterruptedHandlerIsNotSentBackAndRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 1)
		attempts := 0
		for range 8 {
			m := runPush(t, f, "c1", Each(func(ctx context.Context, _ *message.Message) error {
				attempts++
				<-ctx.Done()
				return ctx.Err()
			}))
			time.Sleep(time.Second)
			m.stop()
			time.Sleep(time.Second)
		}
		if attempts > 8 || len(f.sentBack) > 1 {
			t.Errorf("%d attempts and %d copies after 8 restarts", attempts, len(f.sentBack))
		}
		if f.stored(q) > 0 && len(f.sentBack) == 0 {
			t.Error("progress passed a message that is neither consumed nor sent back")
		}
	})
}

// A fetch that fails for whatever reason is repeated for as long as the queue is owned.
func TestF_LIF_12_PullLoopGoesOnAfterAnyError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		n := 0
		f.setFailing(func(what string, q allocate.Queue) error {
			if what != "fetch" || q.ID != 1 {
				return nil
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			if n++; n < 6 {
				return fmt.Errorf("fatal %d", n)
			}
			return nil
		})
		var got atomic.Int64
		m := runPush(t, f, "c1", handle(func(*message.Message) error {
			got.Add(1)
			return nil
		}))
		time.Sleep(100 * time.Millisecond)
		f.fill(queue("a", 0), 5)
		f.fill(queue("a", 1), 5)
		time.Sleep(5 * time.Second)
		if got.Load() != 10 {
			t.Errorf("%d of 10 messages consumed", got.Load())
		}
		m.stop()
	})
}
