package producer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/message"
)

// hang makes brokers silent until the test ends, or what it returns is called.
func (f *fake) hang(brokers ...string) (thaw func()) {
	f.hung = make(map[string]chan struct{})
	for _, b := range brokers {
		f.hung[b] = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		for _, c := range f.hung {
			close(c)
		}
	})
}

// A message whose queue is free to choose does not spend its time at a broker that does not answer: it goes to another
// one after a part of it, and what comes next passes the silent one over at once.
func TestSilentBrokerCostsAPartOfTheTimeoutAndNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a", "b")
		defer f.hang("b")()
		p := newTest(t, f, WithTimeout(9*time.Second))
		began := time.Now()
		if _, err := p.Send(t.Context(), numbered(40)...); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 3*time.Second || took > 4*time.Second {
			t.Errorf("took %v, want a third of the timeout", took)
		}
		began = time.Now()
		if _, err := p.Send(t.Context(), numbered(40)...); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("took %v once the broker is known to be silent", took)
		}
	})
}

// A flood finds its way, too, though it keeps the queues of the other broker busy: what was at the silent one goes first.
func TestFloodLosesNothingToASilentBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(1, "a", "b")
		f.delay = 20 * time.Millisecond
		defer f.hang("b")()
		p := newTest(t, f, WithTimeout(6*time.Second))
		for i := range 3000 {
			p.SendAsync(t.Context(), &message.Message{Topic: "T", Body: []byte{byte(i)}}, func(r Result) {
				if r.Err != nil || r.Queue.Broker != "a" {
					t.Errorf("message %d: %+v", i, r)
				}
			})
			time.Sleep(5 * time.Millisecond)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := f.toHung; n < 3 || n > 10 { // one each 2 s, and none that waits
			t.Errorf("%d batches went to the silent broker in 15 s", n)
		}
	})
}

// Messages with a key stay where the others of that key are, and so does everything if it is so set.
func TestMessagesThatBelongToASilentBrokerWaitForIt(t *testing.T) {
	for name, opt := range map[string]Option{"key": WithSelector(ByKey()), "failover off": WithFailover(0)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.setRoute(1, "a", "b")
				thaw := f.hang("b")
				p := newTest(t, f, WithTimeout(9*time.Second), opt)
				began := time.Now()
				failed := 0
				results, err := p.Send(t.Context(), numbered(40)...)
				for _, r := range results {
					if r.Err != nil {
						failed++
					}
				}
				if took := time.Since(began); !errors.Is(err, ErrTimeout) || took < 9*time.Second || took > 10*time.Second {
					t.Errorf("after %v: %v", took, err)
				}
				thaw()
				synctest.Wait()
				if all := f.all(); failed == 0 || failed == 40 || len(all) != 40 {
					t.Errorf("%d failed, %d stored: want each at one broker once", failed, len(all))
				}
			})
		})
	}
}

// Where no broker answers, batches stay where repeats of them are noticed.
func TestMessagesAreStoredOnceWhenAllBrokersWereSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(2, "a", "b")
		thaw := f.hang("a", "b")
		time.AfterFunc(5*time.Second, thaw)
		p := newTest(t, f, WithTimeout(9*time.Second))
		if _, err := p.Send(t.Context(), numbered(40)...); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if all := f.all(); len(all) != 40 || len(slices.Compact(all)) != 40 {
			t.Errorf("%d stored: %s", len(all), strings.Join(all, " "))
		}
	})
}

// A message that may be stored is not said to be never sent.
func TestMessageOfASilentBrokerIsNotSaidToBeNeverSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(1, "a", "b")
		f.delay = 5 * time.Second
		thaw := f.hang("b")
		defer thaw()
		p := newTest(t, f, WithTimeout(2*time.Second), WithFailover(time.Second), WithMaxInFlight(2))
		_, err := p.Send(t.Context(), numbered(2)...)
		if !errors.Is(err, ErrTimeout) && !errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "never sent") {
			t.Errorf("%v", err)
		}
	})
}

func TestFailoverIsNotNegative(t *testing.T) {
	if _, err := New(nil, WithFailover(-1)); err == nil || !strings.Contains(err.Error(), "failover") {
		t.Errorf("%v", err)
	}
}
