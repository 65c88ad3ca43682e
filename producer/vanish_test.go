package producer

import (
	"slices"
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
