package consumer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
)

// seen records what handlers were called with.
type seen struct {
	mu   sync.Mutex
	msgs []string
}

func (s *seen) add(m *message.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.msgs = append(s.msgs, string(m.Body))
}

func (s *seen) list() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.msgs)
}

func queue(broker string, id int32) allocate.Queue {
	return allocate.Queue{Topic: "T", Broker: broker, ID: id}
}

// member is a consumer that runs in a test.
type testMember struct {
	*PushConsumer
	stop func()
	err  chan error
}

func runPush(t *testing.T, f *fake, id string, h Handler, opts ...Option) *testMember {
	t.Helper()
	opts = append([]Option{WithClient(f), WithTopic("T", "*"), WithStart(First()), WithClientID(id)}, opts...)
	c, err := New(nil, "G", h, opts...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m := &testMember{PushConsumer: c, err: make(chan error, 1)}
	go func() { m.err <- c.Run(ctx) }() // stop waits for it
	var once sync.Once
	m.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-m.err; err != nil {
				t.Errorf("Run of %s: %v", id, err)
			}
		})
	}
	return m
}

func TestMessagesOfAllQueuesAreHandledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(4, "a", "b")
		var want []string
		for _, b := range []string{"a", "b"} {
			for id := range int32(4) {
				f.fill(queue(b, id), 50)
				for i := range 50 {
					want = append(want, fmt.Sprintf("%s/%d/%d", b, id, i))
				}
			}
		}
		var s seen
		m := runPush(t, f, "c1", Each(func(_ context.Context, m *message.Message) error {
			s.add(m)
			return nil
		}))
		time.Sleep(time.Second)
		got := s.list()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("handled %d messages, want %d", len(got), len(want))
		}
		m.stop()
		for _, b := range []string{"a", "b"} {
			for id := range int32(4) {
				if o := f.stored(queue(b, id)); o != 50 {
					t.Errorf("stored offset of %s/%d is %d, want 50", b, id, o)
				}
			}
		}
	})
}

// A consumer that is made and never run has nothing to close: no goroutine, no connection.
func TestConsumerThatIsNeverRunLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // which fails for a goroutine that is left
		dial := func(context.Context, string) (net.Conn, error) {
			t.Error("connects before Run")
			return nil, errors.New("no")
		}
		if _, err := New([]string{"ns:9876"}, "G", handle(func(*message.Message) error { return nil }), WithTopic("T", "*"), WithDialer(dial)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := New([]string{"no address"}, "G", handle(func(*message.Message) error { return nil }), WithTopic("T", "*")); err == nil {
			t.Error("a bad name server is accepted")
		}
	})
}
