package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

func TestFailedMessagesAreSentBackAndPanicsAreFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		f.fill(queue("a", 0), 500)
		f.fill(queue("a", 1), 500)
		var n atomic.Int64
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			n.Add(1)
			switch m.Offset % 5 {
			case 0:
				panic("poison")
			case 1:
				return RetryAfter(time.Minute, errors.New("later"))
			case 2:
				return errors.New("no")
			}
			return nil
		}), WithConcurrency(4))
		time.Sleep(2 * time.Second)
		m.stop()
		if n.Load() != 1000 || len(f.sentBack) != 600 {
			t.Errorf("%d handled, %d sent back, want 1000 and 600", n.Load(), len(f.sentBack))
		}
		for _, r := range f.sentBack {
			if (r.Offset%5 == 1) != (r.Delay == time.Minute) {
				t.Errorf("offset %d is sent back with delay %v", r.Offset, r.Delay)
			}
		}
		for id := range int32(2) {
			if o := f.stored(queue("a", id)); o != 500 {
				t.Errorf("stored offset %d, want 500", o)
			}
		}
	})
}

func TestBatchesHoldMessagesOfOneQueueInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		f.fill(queue("a", 0), 100)
		f.fill(queue("a", 1), 100)
		var mu sync.Mutex
		n := 0
		m := runPush(t, f, "c1", Batch(16, func(_ context.Context, msgs []*message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			n += len(msgs)
			if len(msgs) > 16 {
				t.Errorf("batch of %d", len(msgs))
			}
			for i := 1; i < len(msgs); i++ {
				if msgs[i].Queue != msgs[0].Queue || msgs[i].Offset != msgs[i-1].Offset+1 {
					t.Errorf("%v/%d after %v/%d", msgs[i].Queue, msgs[i].Offset, msgs[i-1].Queue, msgs[i-1].Offset)
				}
			}
			return nil
		}))
		time.Sleep(time.Second)
		m.stop()
		if n != 200 {
			t.Errorf("%d messages, want 200", n)
		}
	})
}

func TestConcurrencyAndMemoryAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(8, "a")
		for id := range int32(8) {
			for range 20 {
				f.put(queue("a", id), &message.Message{Body: make([]byte, 100<<10)})
			}
		}
		var now, most atomic.Int64
		m := runPush(t, f, "c1", handle(func(*message.Message) error {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(100 * time.Millisecond)
			now.Add(-1)
			return nil
		}), WithConcurrency(3), WithTotalBytes(2<<20), WithFetch(256<<10, time.Second))
		deadline := time.Now().Add(30 * time.Second)
		for time.Now().Before(deadline) {
			if b := m.Stats().CachedBytes; b > 3<<20 {
				t.Fatalf("%d bytes are cached, limit %d", b, 2<<20)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if most.Load() != 3 {
			t.Errorf("%d handlers at once, want 3", most.Load())
		}
		s := m.Stats()
		m.stop()
		if s.CachedBytes != 0 || s.Waiting != 0 || s.Running != 0 {
			t.Errorf("at rest: %+v", s)
		}
		if o := f.stored(queue("a", 7)); o != 20 {
			t.Errorf("stored offset %d, want 20", o)
		}
	})
}

func TestSlowHandlerKeepsNoOtherMessageFromItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		f.fill(queue("a", 0), 500)
		var n atomic.Int64
		stuck := make(chan struct{})
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			if m.Offset == 300 {
				<-stuck
			}
			n.Add(1)
			return nil
		}), WithConcurrency(2))
		time.Sleep(5 * time.Second)
		if n.Load() != 499 {
			t.Errorf("%d messages handled beside the slow one, want 499", n.Load())
		}
		if o := m.Stats().Queues[0].Unfinished; o != 300 {
			t.Errorf("lowest unfinished is %d, want 300", o)
		}
		close(stuck)
		m.stop()
	})
}

func TestTagsAreFilteredExactlyAndProgressPassesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		for i := range 60 {
			f.put(q, &message.Message{Tag: []string{"x", "y", "z"}[i%3], Body: fmt.Append(nil, i)}, &message.Message{Body: []byte("none")})
		}
		var s seen
		c, err := New(nil, "G", handle(func(m *message.Message) error { s.add(m); return nil }), WithClient(f), WithTopic("T", " z || x"), WithStart(First()))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			t.Fatal(err)
		}
		if got := s.list(); len(got) != 40 || slices.Contains(got, "none") || slices.Contains(got, "1") {
			t.Errorf("handled %v", got)
		}
		if o := f.stored(q); o != 120 {
			t.Errorf("stored offset %d, want 120", o)
		}
	})
}

func TestSubscriptionsChangeAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		f.fill(queue("a", 0), 10)
		var n atomic.Int64
		m := runPush(t, f, "c1", handle(func(*message.Message) error { n.Add(1); return nil }))
		time.Sleep(time.Second)
		m.Unsubscribe("T")
		time.Sleep(time.Second)
		if h := f.holders(); h["c1"] != 0 || len(m.Stats().Queues) != 0 {
			t.Errorf("after Unsubscribe: %v, %+v", h, m.Stats().Queues)
		}
		f.fill(queue("a", 1), 10)
		time.Sleep(time.Second)
		if n.Load() != 10 {
			t.Errorf("%d messages, want 10", n.Load())
		}
		if err := m.Subscribe("T", "*"); err != nil {
			t.Fatal(err)
		}
		if m.Subscribe("T", "a||") == nil || m.Subscribe("no topic", "*") == nil {
			t.Error("bad subscriptions are accepted")
		}
		time.Sleep(time.Second)
		m.stop()
		if n.Load() != 20 {
			t.Errorf("%d messages, want 20", n.Load())
		}
	})
}

func TestPausedConsumerStartsNothingAndResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		var byQueue [2]atomic.Int64
		m := runPush(t, f, "c1", handle(func(m *message.Message) error { byQueue[m.Queue.ID].Add(1); return nil }))
		time.Sleep(time.Second)
		m.Pause()
		f.fill(queue("a", 0), 10)
		f.fill(queue("a", 1), 10)
		time.Sleep(30 * time.Second)
		if n := byQueue[0].Load() + byQueue[1].Load(); n > 0 {
			t.Errorf("%d messages handed out while paused", n)
		}
		m.Pause(queue("a", 1))
		m.Resume(queue("a", 0))
		m.m.pause(false, nil)
		m.Pause(queue("a", 1))
		time.Sleep(time.Second)
		if byQueue[0].Load() != 10 {
			t.Errorf("%d messages of the queue that goes on, want 10", byQueue[0].Load())
		}
		m.Resume()
		f.fill(queue("a", 1), 5)
		time.Sleep(time.Second)
		m.stop()
		if byQueue[1].Load() != 15 {
			t.Errorf("%d messages of the queue that was paused, want 15", byQueue[1].Load())
		}
	})
}

func TestListenerIsToldBeforeTheFirstMessageAndAfterTheLastHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		for id := range int32(4) {
			f.fill(queue("a", id), 100)
		}
		var mu sync.Mutex
		mine := make(map[allocate.Queue]bool)
		running := 0
		check := func(ok bool, what string) {
			t.Helper()
			if !ok {
				t.Error(what)
			}
		}
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			mu.Lock()
			check(mine[m.Queue], "message of a queue that the listener was not told of")
			running++
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		}), WithListener(ListenerFuncs{
			Assigned: func(_ context.Context, qs []allocate.Queue) {
				time.Sleep(100 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				for _, q := range qs {
					check(!mine[q], "assigned twice")
					mine[q] = true
				}
			},
			Revoked: func(ctx context.Context, qs []allocate.Queue) {
				_, bounded := ctx.Deadline()
				check(bounded, "no deadline")
				mu.Lock()
				defer mu.Unlock()
				for _, q := range qs {
					check(mine[q], "revoked without having been assigned")
					delete(mine, q)
				}
			},
		}))
		time.Sleep(time.Second)
		m.stop()
		check(running == 0, "handlers run after the stop")
		check(len(mine) == 0, "queues were not revoked at the stop")
	})
}

func TestRefusedMemberEndsWithTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		f.refuse = true
		c, err := New(nil, "G", handle(func(*message.Message) error { return nil }), WithClient(f), WithTopic("T", "*"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Run(t.Context()); !errors.Is(err, ErrModeMismatch) {
			t.Errorf("Run: %v", err)
		}
		if err := c.Run(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("second Run: %v", err)
		}
	})
}

func TestBroadcastingMembersEachGetEverythingAndKeepProgressInAFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		f.fill(queue("a", 0), 10)
		f.fill(queue("a", 1), 10)
		var n [2]atomic.Int64
		run := func(i int) *testMember {
			return runPush(t, f, fmt.Sprint("c", i), handle(func(*message.Message) error { n[i].Add(1); return nil }),
				WithMode(Broadcasting), WithOffsetFile(filepath.Join(dir, fmt.Sprint(i))))
		}
		zero, one := run(0), run(1)
		time.Sleep(2 * time.Second)
		zero.stop()
		one.stop()
		if n[0].Load() != 20 || n[1].Load() != 20 {
			t.Errorf("%d and %d messages, want 20 each", n[0].Load(), n[1].Load())
		}
		f.fill(queue("a", 0), 5)
		again := run(0)
		time.Sleep(2 * time.Second)
		again.stop()
		if n[0].Load() != 25 {
			t.Errorf("%d messages after a restart, want 25", n[0].Load())
		}
	})
}

// A local offset file that is damaged costs a warning; the backup, or the start policy, counts instead.
func TestF_STO_02_DamagedOffsetFileIsNoObstacle(t *testing.T) {
	q := queue("a", 0)
	for name, damage := range map[string]func(path string) error{
		"empty": func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"zeros": func(p string) error { return os.WriteFile(p, make([]byte, 300), 0o600) },
		"half":  func(p string) error { return os.Truncate(p, 60) },
		"foreign": func(p string) error {
			return os.WriteFile(p, []byte(`{"group":"other","offsets":[],"crc32c":0}`), 0o600)
		},
		"gone": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "offsets")
			l := openLocalOffsets(path, "G", zap.NewNop())
			for _, o := range []int64{5, 9} {
				if err := l.save(map[allocate.Queue]int64{q: o}); err != nil {
					t.Fatal(err)
				}
			}
			if o, ok := openLocalOffsets(path, "G", zap.NewNop()).get(q); o != 9 || !ok {
				t.Errorf("read back %d, %v", o, ok)
			}
			if err := damage(path); err != nil {
				t.Fatal(err)
			}
			if o, ok := openLocalOffsets(path, "G", zap.NewNop()).get(q); o != 5 || !ok {
				t.Errorf("with a damaged file: %d, %v, want the backup's 5", o, ok)
			}
			if err := damage(path + ".bak"); err != nil {
				t.Fatal(err)
			}
			if _, ok := openLocalOffsets(path, "G", zap.NewNop()).get(q); ok {
				t.Error("offsets come from nowhere")
			}
			if err := l.save(map[allocate.Queue]int64{q: 11}); err != nil {
				t.Errorf("saving after that: %v", err)
			}
		})
	}
}

func TestImmediateMembersReadCommittedOffsetsAndCommitBeforeTheyGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		f.fill(queue("a", 0), 10)
		var n atomic.Int64
		h := handle(func(*message.Message) error { n.Add(1); return nil })
		m := runPush(t, f, "c1", h, WithMode(Immediate))
		time.Sleep(time.Second)
		m.stop()
		if o := f.stored(queue("a", 0)); o != 10 {
			t.Errorf("stored offset %d, want 10", o)
		}
		f.fill(queue("a", 0), 5)
		m = runPush(t, f, "c2", h, WithMode(Immediate))
		time.Sleep(time.Second)
		m.stop()
		if n.Load() != 15 {
			t.Errorf("%d messages, want 15", n.Load())
		}
	})
}

func TestMembersOfOneGroupShareMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a")
		reg := prometheus.NewRegistry()
		release := make(chan struct{})
		h := handle(func(*message.Message) error { <-release; return nil })
		one, two := runPush(t, f, "c1", h, WithRegisterer(reg)), runPush(t, f, "c2", h, WithRegisterer(reg))
		time.Sleep(time.Second)
		value := func(name string) (sum float64) {
			all, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, fam := range all {
				for _, m := range fam.GetMetric() {
					if fam.GetName() == name {
						sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
					}
				}
			}
			return sum
		}
		if v := value("tacit_consumer_queues_owned"); v != 4 {
			t.Errorf("queues owned %v, want 4", v)
		}
		for id := range int32(4) {
			f.fill(queue("a", id), 5)
		}
		time.Sleep(3 * time.Second)
		if v := value("tacit_consumer_lag_messages"); v != 20 {
			t.Errorf("lag %v, want 20", v)
		}
		close(release)
		time.Sleep(time.Second)
		one.stop()
		two.stop()
		if v := value("tacit_consumer_lag_messages"); v != 0 {
			t.Errorf("lag at the end %v, want 0", v)
		}
		if v := value("tacit_consumer_queues_owned"); v != 0 {
			t.Errorf("queues owned at the end %v, want 0", v)
		}
	})
}

func TestBadSettingsAreAllNamed(t *testing.T) {
	f := newFake(t)
	h := handle(func(*message.Message) error { return nil })
	for name, opts := range map[string][]Option{
		"filter":      {WithTopic("T", "a||")},
		"topic":       {WithTopic("no topic", "*")},
		"concurrency": {WithConcurrency(0)},
		"drain":       {WithDrainLimit(0)},
		"offset file": {WithMode(Broadcasting)},
		"client id":   {WithClientID("two words")},
		"fetch":       {WithFetch(1, 0)},
		"heartbeat":   {WithTiming(0, 20*time.Second, 10*time.Second)},
		"mode":        {WithMode(9)},
	} {
		if _, err := New(nil, "G", h, append(opts, WithClient(f))...); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(nil, "G", Handler{}, WithClient(f)); err == nil {
		t.Error("no handler: accepted")
	}
	if _, err := New(nil, "G", Orderly(func(context.Context, *message.Message) error { return nil }), WithClient(f), WithMode(Immediate)); err == nil {
		t.Error("orderly without leases: accepted")
	}
	if _, err := New(nil, "", h, WithClient(f)); err == nil {
		t.Error("no group: accepted")
	}
	if _, err := New(nil, "G", h); err == nil {
		t.Error("no name server: accepted")
	}
}

func TestFetchThatAsksOutOfRangeGoesOnAtTheOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 50)
		f.queues[q].min = 20 // retention
		f.store(q, 5)
		var s seen
		m := runPush(t, f, "c1", handle(func(m *message.Message) error { s.add(m); return nil }))
		time.Sleep(time.Second)
		// The topic is deleted and made again: offsets begin anew.
		f.mu.Lock()
		*f.queues[q] = fakeQueue{}
		f.mu.Unlock()
		f.cond.Broadcast()
		f.fill(q, 7)
		time.Sleep(40 * time.Second)
		m.stop()
		if n := len(s.list()); n != 37 {
			t.Errorf("%d messages, want 30 and 7", n)
		}
	})
}

func TestUnreachableErrorsOfOtherBrokersAreNoObstacle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a", "b")
		f.setFailing(func(_ string, q allocate.Queue) error {
			if q.Broker == "b" {
				return rpcerr.ErrUnreachable
			}
			return nil
		})
		f.fill(queue("a", 0), 100)
		var n atomic.Int64
		m := runPush(t, f, "c1", handle(func(*message.Message) error { n.Add(1); return nil }))
		time.Sleep(40 * time.Second)
		if n.Load() != 100 {
			t.Errorf("%d messages, want 100", n.Load())
		}
		m.stop()
	})
}
