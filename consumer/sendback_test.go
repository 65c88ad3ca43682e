package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// The session may end between a message's turn and the call of its handler. The broker may then leave the lease, and with
// it the process queue, to the member.
func TestOrderlyQueueGoesOnWhenItsLeaseStoppedBeforeTheHandler(t *testing.T) {
	cfg := defaults("g")
	cfg.handler = Orderly(func(context.Context, *message.Message) error { return nil })
	cfg.topics = []session.Subscription{{Topic: "T", Filter: "*"}}
	if err := cfg.validate(); err != nil {
		t.Fatal(err)
	}
	m, err := newMember(cfg, newFake(t))
	if err != nil {
		t.Fatal(err)
	}
	q := queue("a", 0)
	pq := m.newQueue(q, session.Epoch{Broker: 1, Counter: 1})
	pq.lease = m.lease("a")
	m.extend("a", time.Now().Add(time.Minute))
	m.queues[q] = pq
	pq.known, pq.phase = true, running
	pq.slots = []slot{{msg: &message.Message{Topic: "T"}, size: 1}}
	pq.unfinished, m.waiting = 1, 1
	m.enqueue(pq)
	task := new(task)
	if !m.hand(task, 1, time.Now()) {
		t.Fatal("nothing is handed out")
	}
	m.extend("a", time.Now()) // the stream has ended
	m.handle(task)
	m.mu.Lock()
	m.finished(task)
	m.mu.Unlock()
	m.extend("a", time.Now().Add(time.Minute)) // welcome, the lease is kept
	if !m.hand(task, 1, time.Now()) {
		t.Fatal("the message is never handed out again")
	}
}

func TestAnyErrorTextTravelsWithItsMessage(t *testing.T) {
	for name, text := range map[string]string{
		"cut inside a character": strings.Repeat("x", maxCause-1) + "ü", "binary": "body \xff\xfe is odd", "none": "", "plain": "no luck",
	} {
		got := causeText(errors.New(text))
		if _, err := proto.Marshal(&tacitv1.SendBackRequest{Cause: got}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if len(got) > maxCause || name == "plain" && got != text {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// What can never be sent back, because retention has taken it or the broker refuses it, has its attempts here, and then
// no more stops its queue.
func TestMessageThatCanNeverBeSentBackIsGivenUpAfterItsLastAttempt(t *testing.T) {
	for _, h := range []string{"concurrent", "orderly"} {
		for _, cause := range []error{rpcerr.ErrOffsetOutOfRange, rpcerr.ErrMessageNotFound, rpcerr.ErrInvalidArgument, rpcerr.ErrLimitReached} {
			t.Run(fmt.Sprint(h, " ", cause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFake(t)
					f.topic(1, "a")
					q := queue("a", 0)
					f.fill(q, 20)
					f.setFailing(func(what string, _ allocate.Queue) error {
						if what == "sendback" {
							return fmt.Errorf("send back: %w", cause)
						}
						return nil
					})
					var tries atomic.Int64
					fail := func(_ context.Context, m *message.Message) error {
						if m.Offset == 7 {
							tries.Add(1)
							return errors.New("poison")
						}
						return nil
					}
					handler := Each(fail)
					if h == "orderly" {
						handler = Orderly(fail)
					}
					m := runPush(t, f, "c1", handler, WithMaxReconsumeTimes(3), WithCommitInterval(time.Second))
					time.Sleep(2 * time.Minute)
					if n := tries.Load(); n != 4 {
						t.Errorf("%d attempts, want the first and 3 repeats", n)
					}
					if o := f.stored(q); o != 20 {
						t.Errorf("stored offset is %d, want 20", o)
					}
					m.stop()
				})
			})
		}
	}
}

// Brokers refuse longer delays.
func TestRetryAfterIsBoundedByWhatBrokersTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.topic(1, "a")
		f.fill(queue("a", 0), 1)
		m := runPush(t, f, "c1", handle(func(*message.Message) error { return RetryAfter(10*maxRetryDelay, errors.New("not this decade")) }))
		time.Sleep(time.Second)
		m.stop()
		if len(f.sentBack) != 1 || f.sentBack[0].Delay != maxRetryDelay {
			t.Errorf("sent back: %+v", f.sentBack)
		}
	})
}
