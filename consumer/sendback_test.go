package consumer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

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
