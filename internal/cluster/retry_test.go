package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
)

// A message that comes again, and again, shows where it was stored first and how often it was repeated; so does its dead letter.
func TestRepeatedMessageShowsItsOrigin(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 2)
	send(t, newProducer(t, c), 0, 4)
	var mu sync.Mutex
	first := make(map[string]message.Message)
	seen := make(map[string]int32)
	consume(t, c, consumer.Each(func(_ context.Context, m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		body := string(m.Body)
		if was, again := first[body]; !again {
			first[body] = *m
		} else if m.Topic != "T" || m.Queue != was.Queue || m.Offset != was.Offset {
			t.Errorf("message %s comes again as %v@%d, was %v@%d", body, m.Queue, m.Offset, was.Queue, was.Offset)
		}
		if m.ReconsumeTimes != seen[body] {
			t.Errorf("message %s: %d repeats, says %d", body, seen[body], m.ReconsumeTimes)
		}
		seen[body]++
		return consumer.RetryAfter(10*time.Millisecond, errors.New("always"))
	}), consumer.WithMaxReconsumeTimes(2))
	dead, err := consumer.NewLitePull(c.NameServers(), "D", consumer.WithTopic(message.DeadLetterTopic("G"), "*"), consumer.WithStart(consumer.First()))
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for n := 0; n < 4; {
		msgs, err := dead.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			if n++; m.ReconsumeTimes != 2 || m.Property(message.PropertyRetryReason) != "always" || m.Property(message.PropertyOriginTopic) != "T" {
				t.Errorf("dead letter %s: %d repeats, %v", m.Body, m.ReconsumeTimes, m.Properties)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for body, n := range seen {
		if n != 3 {
			t.Errorf("message %s was handed out %d times, want 3", body, n)
		}
	}
}
