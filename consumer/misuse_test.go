package consumer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
)

// The loop of an application may have ended with the error of a Poll that returned nothing.
func TestMemberThatIsNotPolledGivesItsQueuesUpAndTakesThemAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		c := newPull(t, f, "c1", WithTopic("T", "*"))
		defer shut(t, c)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := c.Poll(ctx); err == nil {
			t.Fatal("something came")
		}
		if n := len(c.Assignment()); n != 1 {
			t.Errorf("after a Poll of an hour %d queues are assigned", n)
		}
		f.fill(q, 10)
		time.Sleep(6 * time.Minute)
		if n := len(c.Assignment()); n != 0 {
			t.Errorf("%d queues are assigned without a Poll", n)
		}
		poll(t, c, 10)
	})
}

func TestSeekBeyondTheEndGoesOnAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 50)
		c := newPull(t, f, "c1", WithTopic("T", "*"))
		defer shut(t, c)
		poll(t, c, 50)
		time.Sleep(time.Second)
		if err := c.Seek(q, 500); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		f.fill(q, 1)
		if m := poll(t, c, 1)[0]; m.Offset != 50 {
			t.Errorf("offset %d came, want 50", m.Offset)
		}
	})
}

type panicky struct{ calls atomic.Int64 }

func (p *panicky) OnAssigned(context.Context, []allocate.Queue) { p.calls.Add(1); panic("assigned") }
func (p *panicky) OnRevoked(context.Context, []allocate.Queue)  { p.calls.Add(1); panic("revoked") }
func (p *panicky) OnLost(context.Context, []allocate.Queue)     { p.calls.Add(1); panic("lost") }

func TestPanicOfAListenerHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		f.fill(queue("a", 0), 10)
		var n atomic.Int64
		p := new(panicky)
		m := runPush(t, f, "c1", handle(func(*message.Message) error { n.Add(1); return nil }), WithListener(p))
		time.Sleep(time.Second)
		begun := time.Now()
		m.stop()
		if n.Load() != 10 || p.calls.Load() != 2 || time.Since(begun) > time.Second {
			t.Errorf("%d messages handled, %d calls of the listener, stop took %v", n.Load(), p.calls.Load(), time.Since(begun))
		}
	})
}

// Brokers take no more in a fetch and a hello: such a member would own queues and never get anything of them.
func TestFiltersThatNoBrokerTakesAreRefused(t *testing.T) {
	tags := make([]string, message.MaxFilterTags+1)
	for i := range tags {
		tags[i] = fmt.Sprint(i)
	}
	for filter, ok := range map[string]bool{
		strings.Join(tags[1:], "||"):                  true,
		strings.Join(append(tags[1:], "256"), " || "): true, // one of them twice
		strings.Join(tags, "||"):                      false,
		strings.Repeat("x", message.MaxTagLength):     true,
		"\xff": false,
	} {
		if _, err := parseFilter(filter); (err == nil) != ok {
			t.Errorf("filter of %d bytes: %v", len(filter), err)
		}
	}
	var long []string
	for i := range 20 {
		long = append(long, strings.Repeat(string(rune('a'+i)), 250))
	}
	if _, err := parseFilter(strings.Join(long, "||")); err == nil {
		t.Error("a filter of 5 kB is accepted")
	}
}

// The group refuses a member with another filter, for good.
func TestSubscribeDoesNotChangeTheFilterOfATopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		m := runPush(t, f, "c1", handle(func(*message.Message) error { return nil }))
		time.Sleep(time.Second)
		if err := m.Subscribe("T", "a"); err == nil {
			t.Error("another filter is accepted")
		}
		if err := m.Subscribe("T", " * "); err != nil {
			t.Error(err)
		}
		m.stop()
	})
}

// Settings that do not fit together are told by New, and a consumer that cannot join leaves nothing behind.
func TestPullConsumerThatCannotJoinLeavesNothingBehind(t *testing.T) {
	for name, opts := range map[string][]Option{
		"heartbeat":      {WithTiming(0, 20*time.Second, 10*time.Second)},
		"strategy twice": {WithStrategies(allocate.Sticky{}, allocate.Sticky{})},
		"with a topic":   {WithTiming(0, 20*time.Second, 10*time.Second), WithTopic("T", "*")},
	} {
		before := goleak.IgnoreCurrent()
		c, err := NewLitePull([]string{"127.0.0.1:1"}, "G", opts...)
		if err == nil {
			if err = c.Subscribe("T", "*"); err == nil {
				t.Error("it joined")
			}
			t.Errorf("%s: New took settings that Subscribe refuses: %v", name, err)
			_ = c.Close(t.Context())
		}
		goleak.VerifyNone(t, before)
	}
}

// slowStart holds the first fetch back on its way to the broker.
type slowStart struct {
	*fake
	once sync.Once
	held chan struct{} // closed when it is being held
	on   chan struct{}
}

func (s *slowStart) Fetch(c *client.FetchCall) {
	s.once.Do(func() {
		close(s.held)
		<-s.on
	})
	s.fake.Fetch(c)
}

// A Seek that comes while a fetch is about to start takes effect at once, not when the long poll is over.
func TestSeekDoesNotWaitForAFetchThatIsAboutToStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		q := queue("a", 0)
		f.fill(q, 50)
		s := &slowStart{fake: f, held: make(chan struct{}), on: make(chan struct{})}
		c, err := NewLitePull(nil, "G", WithClient(s), WithClientID("c1"), WithStart(Last()), WithTopic("T", "*"))
		if err != nil {
			t.Fatal(err)
		}
		<-s.held
		if err := c.Seek(q, 10); err != nil {
			t.Fatal(err)
		}
		close(s.on)
		begun := time.Now()
		if msgs := poll(t, c, 1); msgs[0].Offset != 10 || time.Since(begun) > time.Second {
			t.Errorf("offset %d came after %v", msgs[0].Offset, time.Since(begun))
		}
		shut(t, c)
	})
}
