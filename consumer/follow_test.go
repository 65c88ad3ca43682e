package consumer

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
)

// endsOften is a cluster whose streams end while answers are handed over, every third time.
type endsOften struct {
	*fake
	mu    sync.Mutex
	n     int
	ended [2]int // by whether the fetch was to go on
	owed  map[*client.FetchCall]bool
}

func (e *endsOften) Fetch(c *client.FetchCall) {
	e.mu.Lock()
	if e.owed[c] {
		e.t.Error("a call is made again before it is told that it failed")
	}
	e.mu.Unlock()
	e.fake.Fetch(c)
}

func (e *endsOften) Follow(c *client.FetchCall, on bool) bool {
	e.mu.Lock()
	e.n++
	fails := e.n%3 == 0
	if fails {
		e.ended[map[bool]int{true: 1}[on]]++
		e.owed[c] = true
	}
	e.mu.Unlock()
	if !fails {
		return e.fake.Follow(c, on)
	}
	e.fake.Follow(c, false)
	e.wg.Go(func() {
		time.Sleep(3 * time.Millisecond)
		e.mu.Lock()
		delete(e.owed, c)
		e.mu.Unlock()
		c.Done(client.FetchResult{}, errors.New("stream ended"))
	})
	return false
}

// A stream that ends while an answer is handed over costs nothing but a new fetch, whatever the queue was about to do.
func TestStreamThatEndsWhileAnAnswerIsHandedOverLosesNothing(t *testing.T) {
	const rounds = 200
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(2, "a")
		e := &endsOften{fake: f, owed: make(map[*client.FetchCall]bool)}
		var mu sync.Mutex
		came := make(map[string]int)
		m := runPush(t, f, "c1", handle(func(m *message.Message) error {
			mu.Lock()
			came[string(m.Body)]++
			mu.Unlock()
			time.Sleep(time.Millisecond)
			return nil
		}), WithClient(e), WithQueueLimits(20, 1<<20))
		for range rounds {
			f.fill(queue("a", 0), 3)
			f.fill(queue("a", 1), 17)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		m.stop()
		for body, n := range came {
			if n != 1 {
				t.Errorf("%s came %d times", body, n)
			}
		}
		if len(came) != rounds*20 {
			t.Errorf("%d of %d messages came", len(came), rounds*20)
		}
		if e.ended[0] < 10 || e.ended[1] < 10 {
			t.Errorf("streams ended %v times", e.ended)
		}
	})
}
