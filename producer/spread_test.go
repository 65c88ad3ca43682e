package producer

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/message"
)

// What is sent at once, or before the route is known, is spread over queues rather than put into one.
func TestBurstIsSpreadOverQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.setRoute(4, "a", "b")
		p := newTest(t, f)
		for round := range 2 { // the second time the route is known
			before := make(map[string]int)
			for q, s := range f.stored {
				before[q.Broker+string(rune('0'+q.ID))] = len(s)
			}
			if _, err := p.Send(t.Context(), numbered(10)...); err != nil {
				t.Fatal(err)
			}
			used, most := 0, 0
			for q, s := range f.stored {
				if n := len(s) - before[q.Broker+string(rune('0'+q.ID))]; n > 0 {
					used++
					most = max(most, n)
				}
			}
			if used < DefaultMaxInFlight || most > 4 {
				t.Errorf("round %d: 10 messages went to %d queues, up to %d to one", round, used, most)
			}
		}
	})
}

// A message that no name server could be asked about fails in its time and says why: who, and what was wrong.
func TestDeadNameServerIsTheCauseOfTheFailure(t *testing.T) {
	refuse := func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }
	synctest.Test(t, func(t *testing.T) {
		p, err := New([]string{"ns-1:9876"}, WithDialer(refuse), WithTimeout(3*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := p.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		begun := time.Now()
		says := func(what string, err error) {
			t.Helper()
			text := ""
			if err != nil {
				text = err.Error()
			}
			if !errors.Is(err, ErrUnreachable) || !strings.Contains(text, "ns-1:9876") || !strings.Contains(text, "connection refused") {
				t.Errorf("%s after %v: %v", what, time.Since(begun), err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = p.Send(ctx, &message.Message{Topic: "T"})
		says("ended by its context", err)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		_, err = p.Send(t.Context(), &message.Message{Topic: "T"})
		says("timed out", err)
		if !errors.Is(err, ErrTimeout) || time.Since(begun) > 5*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
	})
}

// Who waits for room in the buffer gets it in turn, or gives up with the context and leaves the room to others.
func TestRoomGoesToThoseWhoWaitInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.delay = time.Second
		f.setRoute(1, "a")
		p := newTest(t, f, WithMaxBodyBytes(1000), WithBufferBytes(1000+32<<10+64*1024+64<<10))
		big := func() *message.Message { return &message.Message{Topic: "T", Body: make([]byte, 1000)} }
		errs := make(chan error, 1000)
		begun := time.Now()
		for range 150 { // the buffer holds about as many
			p.SendAsync(t.Context(), big(), func(r Result) { errs <- r.Err })
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var refused int
		for range 50 {
			p.SendAsync(short, big(), func(r Result) {
				if r.Err != nil {
					refused++
				}
				errs <- r.Err
			})
		}
		if refused == 0 {
			t.Errorf("nobody waited for room, after %v", time.Since(begun))
		}
		p.SendAsync(t.Context(), big(), func(r Result) { errs <- r.Err })
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := 0
		for len(errs) > 0 {
			switch err := <-errs; {
			case err == nil:
				n++
			case !errors.Is(err, context.DeadlineExceeded):
				t.Error(err)
			}
		}
		if n != 201-refused || len(f.all()) != n {
			t.Errorf("%d of 201 stored, %d refused", n, refused)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.used != 0 || len(p.line) != 0 {
			t.Errorf("%d bytes of room were not given back, %d wait", p.used, len(p.line))
		}
	})
}
