package producer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

func newTest(t *testing.T, f *fake, opts ...Option) *Producer {
	t.Helper()
	p, err := New(nil, append([]Option{WithClient(f)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return p
}

func numbered(n int) []*message.Message {
	out := make([]*message.Message, n)
	for i := range out {
		out[i] = &message.Message{Topic: "T", Keys: []string{fmt.Sprint(i % 50)}, Body: fmt.Appendf(nil, "%06d", i)}
	}
	return out
}

func check(t *testing.T, f *fake, n int) {
	t.Helper()
	got := f.all()
	if len(got) != n {
		t.Errorf("%d messages stored, want %d", len(got), n)
	}
	if k := len(slices.Compact(got)); k != n {
		t.Errorf("%d different messages stored, want %d", k, n)
	}
}

func TestMessagesAreStoredOnceAndResultsSayWhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(4, "a", "b")
		p := newTest(t, f)
		msgs := numbered(1000)
		res, err := p.Send(t.Context(), msgs...)
		if err != nil {
			t.Fatal(err)
		}
		check(t, f, 1000)
		for i, r := range res {
			if got := f.stored[r.Queue][r.Offset]; got != string(msgs[i].Body) {
				t.Fatalf("message %d: %q is stored at %v/%d", i, got, r.Queue, r.Offset)
			}
		}
	})
}

func TestManySendersShareBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(4, "a")
		p := newTest(t, f)
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: fmt.Append(nil, i)}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		check(t, f, 1000)
		if n := len(f.sent); n > 20 {
			t.Errorf("%d batches for 1000 messages sent at once", n)
		}
	})
}

func TestRetryAfterALostAnswerIsStoredOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, sel := range []Selector{nil, ByKey()} {
			f := newFake(t)
			f.setRoute(4, "a", "b")
			known := make(map[string]bool)
			f.answer = func(h batch.Header, broker string, _ int) (error, bool) {
				key := fmt.Sprint(broker, h.Queue, h.BaseSequence)
				if !known[key] {
					known[key] = true
					return rpcerr.ErrUnreachable, true // stored, and the answer lost
				}
				return nil, true
			}
			p := newTest(t, f, WithSelector(sel))
			for range 20 {
				res, err := p.Send(t.Context(), numbered(10)...)
				if err != nil {
					t.Fatal(err)
				}
				if !res[0].Duplicate {
					t.Error("the repeat is not known as one")
				}
			}
			if n := len(f.all()); n != 200 {
				t.Errorf("%d messages stored, want 200", n)
			}
		}
	})
}

func TestRetriesAvoidTheBrokerThatRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a", "b")
		f.answer = func(_ batch.Header, broker string, _ int) (error, bool) {
			if broker == "a" {
				return rpcerr.ErrDiskFull, false
			}
			return nil, true
		}
		p := newTest(t, f)
		for i := range 200 {
			if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: fmt.Append(nil, i)}); err != nil {
				t.Fatal(err)
			}
		}
		check(t, f, 200)
		for i := 1; i < len(f.sent); i++ {
			if f.sent[i] == "a" && f.sent[i-1] == "a" {
				t.Error("a retry went to the broker that had just refused")
			}
		}
	})
}

func TestDeadBrokerFailsKeyedMessagesInTimeAndOnlyThose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(1, "a", "b")
		f.answer = func(_ batch.Header, broker string, _ int) (error, bool) {
			if broker == "a" {
				return rpcerr.ErrUnreachable, false
			}
			return nil, true
		}
		p := newTest(t, f, WithSelector(ByKey()), WithTimeout(5*time.Second))
		begun := time.Now()
		res, err := p.Send(t.Context(), numbered(100)...)
		if !errors.Is(err, ErrTimeout) || !errors.Is(err, ErrUnreachable) {
			t.Errorf("error is %v", err)
		}
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("took %v", took)
		}
		for _, r := range res {
			if (r.Queue.Broker == "a") != (r.Err != nil) {
				t.Errorf("queue %v: %v", r.Queue, r.Err)
			}
		}
	})
}

// The ctx whose end was the reason to stop is the one at hand.
func TestCloseWaitsForWhatIsUnderWayAlsoWithAnEndedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a")
		f.delay = time.Second
		p := newTest(t, f)
		var stored atomic.Int32
		for range 100 {
			p.SendAsync(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}, func(r Result) {
				if r.Err == nil {
					stored.Add(1)
				}
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Close(ctx); err != nil || stored.Load() != 100 {
			t.Errorf("Close: %v with %d of 100 messages stored", err, stored.Load())
		}
	})
}

func TestCallbacksComeExactlyOnceAlsoWhenClosedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a")
		f.delay = time.Second
		p := newTest(t, f)
		var calls [300]atomic.Int32
		for i := range calls {
			p.SendAsync(t.Context(), &message.Message{Topic: "T", Body: make([]byte, 10_000)}, func(Result) { calls[i].Add(1) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := p.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v", err)
		}
		p.SendAsync(t.Context(), &message.Message{Topic: "T"}, func(r Result) {
			if !errors.Is(r.Err, ErrClosed) {
				t.Errorf("after Close: %v", r.Err)
			}
		})
		time.Sleep(5 * time.Second)
		for i := range calls {
			if n := calls[i].Load(); n != 1 {
				t.Fatalf("callback %d came %d times", i, n)
			}
		}
	})
}

func TestBufferIsBoundedAndSendersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(1, "a")
		f.delay = 10 * time.Second
		p := newTest(t, f, WithMaxBodyBytes(1<<20), WithBufferBytes(2<<20), WithTimeout(time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		sent, refused := 0, 0
		for range 5 {
			p.SendAsync(ctx, &message.Message{Topic: "T", Body: make([]byte, 700<<10)}, func(r Result) {
				if errors.Is(r.Err, context.DeadlineExceeded) {
					refused++
				} else {
					sent++
				}
			})
		}
		if refused != 3 {
			t.Errorf("%d of 5 messages found no room, want 3", refused)
		}
	})
}

func TestMessagesWithDifferentDueTimesTravelApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(1, "a")
		var due []int64
		f.answer = func(h batch.Header, _ string, _ int) (error, bool) {
			due = append(due, h.DueTime)
			return nil, true
		}
		p := newTest(t, f)
		at := time.Now().Add(time.Minute)
		if _, err := p.Send(t.Context(),
			&message.Message{Topic: "T"}, &message.Message{Topic: "T", DeliverAt: at}, &message.Message{Topic: "T", DeliverAt: at}, &message.Message{Topic: "T"}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(due)
		if !slices.Contains(due, at.UnixMilli()) || !slices.Contains(due, 0) {
			t.Errorf("batches are due at %v", due)
		}
	})
}

// The messages of a key go to one queue, whatever the order in which name servers tell of the brokers.
func TestF_ORD_05_KeyStaysOnItsQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(4, "a", "b", "c")
		one, two := newTest(t, f, WithSelector(ByKey())), newTest(t, f, WithSelector(ByKey()))
		queues := make(map[string]allocate.Queue)
		for range 20 {
			f.setRoute(4, "c", "a", "b")
			for _, p := range []*Producer{one, two} {
				msgs := numbered(50)
				res, err := p.Send(t.Context(), msgs...)
				if err != nil {
					t.Fatal(err)
				}
				for i, r := range res {
					if q, ok := queues[msgs[i].Key()]; ok && q != r.Queue {
						t.Fatalf("key %s went to %v and to %v", msgs[i].Key(), q, r.Queue)
					}
					queues[msgs[i].Key()] = r.Queue
				}
			}
		}
	})
}

// A topic without brokers, or none at all, costs an error within the timeout, and works once it exists.
func TestF_RBS_01_MissingTopicIsAnErrorInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		p := newTest(t, f, WithTimeout(3*time.Second))
		for _, known := range []bool{false, true} {
			if known {
				f.setRoute(0)
			}
			begun := time.Now()
			_, err := p.Send(t.Context(), &message.Message{Topic: "T"})
			if err == nil || time.Since(begun) > 4*time.Second {
				t.Errorf("sent to a topic without brokers: %v after %v", err, time.Since(begun))
			}
			called := make(chan Result, 1)
			p.SendAsync(t.Context(), &message.Message{Topic: "T"}, func(r Result) { called <- r })
			if r := <-called; r.Err == nil {
				t.Error("sent asynchronously to a topic without brokers")
			}
		}
		f.setRoute(1, "a")
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T"}); err != nil {
			t.Errorf("the topic exists: %v", err)
		}
	})
}

// A topic with no writable queue, or one that vanishes between look-up and send, gives every selector errors and no panic.
func TestF_RBS_02_NoWritableQueueIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wild := SelectorFunc(func(m *message.Message, queues []allocate.Queue) int { return len(m.Body) % len(queues) })
		for _, sel := range []Selector{nil, ByKey(), wild} {
			f := newFake(t)
			f.setRoute(0, "a")
			p := newTest(t, f, WithSelector(sel), WithTimeout(time.Second))
			var wg sync.WaitGroup
			var failed atomic.Int64
			for range 100 {
				wg.Go(func() {
					for range 100 {
						p.SendAsync(t.Context(), &message.Message{Topic: "T", Body: []byte{1}}, func(r Result) {
							if r.Err != nil {
								failed.Add(1)
							}
						})
					}
				})
			}
			wg.Wait()
			time.Sleep(3 * time.Second)
			if n := failed.Load(); n != 10_000 {
				t.Errorf("%d of 10000 sends gave an error", n)
			}
			// The route comes, goes and comes while messages are on their way.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			for i := range 10 {
				f.setRoute(int32(i%2), "a")
				wg.Go(func() { _, _ = p.Send(ctx, numbered(100)...) })
				time.Sleep(time.Millisecond)
			}
			wg.Wait()
			cancel()
		}
	})
}

func TestSelectorThatMisbehavesCostsOnlyItsMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a")
		p := newTest(t, f, WithSelector(SelectorFunc(func(m *message.Message, queues []allocate.Queue) int {
			switch string(m.Body) {
			case "panic":
				panic("no")
			case "below":
				return math.MinInt
			case "above":
				return len(queues)
			}
			return 1
		})))
		for _, body := range []string{"panic", "below", "above"} {
			if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte(body)}); err == nil {
				t.Errorf("%s: sent", body)
			}
		}
		if res, err := p.Send(t.Context(), &message.Message{Topic: "T"}); err != nil || res[0].Queue.ID != 1 {
			t.Errorf("after that: %v, %v", res, err)
		}
	})
}

// Every hash value selects a queue that exists, and always the same.
func TestF_RBS_03_EveryHashSelectsAQueue(t *testing.T) {
	minimum := int64(math.MinInt64)
	for _, h := range []uint64{0, 1, math.MaxUint64, uint64(minimum), math.MaxInt64, 1 << 31, 1<<31 - 1, 1<<32 - 1} {
		for n := 1; n <= 64; n++ {
			i := index(h, n)
			if i < 0 || i >= n || i != index(h, n) {
				t.Errorf("hash %#x over %d queues selects %d", h, n, i)
			}
		}
	}
}
