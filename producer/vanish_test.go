package producer

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

// A queue that leaves the routes takes no message with it: the batch under way goes to another, and so does what waits
// behind it, in order.
func TestMessagesOfAVanishedQueueGoToAnotherInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(1, "a", "b")
		f.answer = func(_ batch.Header, broker string, _ int) (error, bool) {
			if broker == "b" {
				return rpcerr.ErrUnreachable, false
			}
			return nil, false
		}
		p := newTest(t, f, WithSelector(SelectorFunc(func(_ *message.Message, qs []allocate.Queue) int { return len(qs) - 1 })))
		for i, m := range numbered(30) {
			p.SendAsync(t.Context(), m, func(r Result) {
				if r.Err != nil {
					t.Errorf("message %d: %v", i, r.Err)
				}
			})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(500 * time.Millisecond)
		f.setRoute(1, "a") // b leaves
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, m := range numbered(30) {
			want = append(want, string(m.Body))
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if got := f.stored[allocate.Queue{Topic: "T", Broker: "a"}]; !slices.Equal(got, want) {
			t.Errorf("stored are %q", got)
		}
	})
}

func TestFlushWaitsForWhatWasSentBeforeItAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(4, "a")
		f.delay = 10 * time.Millisecond
		p := newTest(t, f)
		stop := make(chan struct{})
		go func() { // ends with stop
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					p.SendAsync(t.Context(), &message.Message{Topic: "T"}, func(Result) {})
				}
			}
		}()
		time.Sleep(100 * time.Millisecond)
		var n atomic.Int64
		for _, m := range numbered(100) {
			p.SendAsync(t.Context(), m, func(Result) { n.Add(1) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := p.Flush(ctx); err != nil || n.Load() != 100 {
			t.Errorf("after Flush %d of 100 have ended: %v", n.Load(), err)
		}
		close(stop)
		synctest.Wait()
	})
}
