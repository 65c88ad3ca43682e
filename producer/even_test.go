package producer

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

// counts returns how many messages are stored in each of the eight queues of broker a.
func (f *fake) counts() (out []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range int32(8) {
		out = append(out, len(f.stored[allocate.Queue{Topic: "T", Broker: "a", ID: id}]))
	}
	return out
}

// A short burst, as of a pipe of a hundred lines, reaches all queues, about evenly: before the route is known or after.
func TestBurstOfSingleMessagesIsSpreadEvenly(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprint("known=", known), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.setRoute(8, "a")
				p := newTest(t, f)
				want := 0
				if known {
					if _, err := p.Send(t.Context(), numbered(1)...); err != nil {
						t.Fatal(err)
					}
					want = 1
				}
				for _, m := range numbered(100) {
					p.SendAsync(t.Context(), m, func(r Result) {
						if r.Err != nil {
							t.Error(r.Err)
						}
					})
				}
				if err := p.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				total := 0
				for id, n := range f.counts() {
					total += n
					if n < 8 || n > 18 {
						t.Errorf("queue %d has %d of 100 messages: %v", id, n, f.counts())
					}
				}
				if total != 100+want {
					t.Errorf("%d messages are stored", total)
				}
			})
		})
	}
}

// Processes that send one message each do not all send it to the first queue.
func TestProducersBeginAtDifferentQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(8, "a")
		for range 50 {
			p := newTest(t, f)
			if _, err := p.Send(t.Context(), numbered(1)...); err != nil {
				t.Fatal(err)
			}
		}
		used := 0
		for _, n := range f.counts() {
			if n > 0 {
				used++
			}
		}
		if used < 4 { // less happens once in 10^14 runs
			t.Errorf("50 producers have sent to %v", f.counts())
		}
	})
}

// The batches of a flood grow until they are limited by their size alone.
func TestBatchesOfAFloodAreLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(8, "a")
		p := newTest(t, f)
		for _, m := range numbered(50_000) {
			p.SendAsync(t.Context(), m, func(Result) {})
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(f.sent); n > 150 {
			t.Errorf("50000 messages went in %d batches", n)
		}
	})
}

// Of a batch that is too large for its broker only a message that is so alone fails.
func TestBatchTooLargeForItsBrokerIsSplit(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		t.Run(fmt.Sprint("keyed=", keyed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.setRoute(2, "a")
				f.answer = func(h batch.Header, _ string, _ int) (error, bool) {
					if h.Length > 4000 {
						return rpcerr.ErrMessageTooLarge, false
					}
					return nil, false
				}
				var opts []Option
				if keyed {
					opts = append(opts, WithSelector(ByKey()))
				}
				p := newTest(t, f, opts...)
				msgs := numbered(200)
				for i, m := range msgs {
					if size := 100; i != 77 {
						m.Body = append(m.Body, make([]byte, size)...)
					} else {
						m.Body = append(m.Body, make([]byte, 5000)...)
					}
				}
				res, err := p.Send(t.Context(), msgs...)
				if err == nil {
					t.Error("the large message is stored")
				}
				for i, r := range res {
					if (r.Err != nil) != (i == 77) {
						t.Errorf("message %d: %v", i, r.Err)
					}
				}
				if n := len(f.all()); n != 199 {
					t.Errorf("%d messages are stored, want 199", n)
				}
				f.mu.Lock()
				defer f.mu.Unlock()
				for q, s := range f.stored {
					for i := 1; keyed && i < len(s); i++ {
						if s[i] < s[i-1] {
							t.Errorf("queue %d: %.8q after %.8q", q.ID, s[i], s[i-1])
						}
					}
				}
			})
		})
	}
}

// A selector of the user's may take its time and send messages itself: nothing of the producer waits for it.
func TestSelectorRunsWithoutTheProducersLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a")
		var p *Producer
		p = newTest(t, f, WithSelector(SelectorFunc(func(m *message.Message, _ []allocate.Queue) int {
			switch string(m.Body) {
			case "slow":
				time.Sleep(time.Minute)
			case "sends":
				if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("inner")}); err != nil {
					t.Error(err)
				}
			}
			return 0
		})))
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("first")}); err != nil {
			t.Fatal(err)
		}
		slow := make(chan error, 1)
		go func() {
			_, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("slow")})
			slow <- err
		}()
		time.Sleep(time.Second)
		begun := time.Now()
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("sends")}); err != nil || time.Since(begun) > time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		if err := <-slow; err != nil {
			t.Error(err)
		}
	})
}

// What waited for the route keeps its place before what is sent once it is known, also while a slow selector chooses.
func TestParkedMessagesKeepTheirOrderWithASelector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		p := newTest(t, f, WithSelector(SelectorFunc(func(*message.Message, []allocate.Queue) int {
			time.Sleep(time.Millisecond)
			return 0
		})))
		for i, m := range numbered(100) {
			if i == 30 {
				f.setRoute(1, "a")
			}
			if i > 30 {
				time.Sleep(time.Millisecond / 2)
			}
			p.SendAsync(t.Context(), m, func(r Result) {
				if r.Err != nil {
					t.Error(r.Err)
				}
			})
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := f.stored[allocate.Queue{Topic: "T", Broker: "a"}]
		for i := 1; i < len(got); i++ {
			if got[i] < got[i-1] {
				t.Fatalf("%q after %q", got[i], got[i-1])
			}
		}
		if len(got) != 100 {
			t.Errorf("%d messages are stored", len(got))
		}
	})
}
