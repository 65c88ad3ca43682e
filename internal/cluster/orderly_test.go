package cluster_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
)

// A failing message in order is tried so many times in place, goes to the dead letters, and the rest follow in order.
func TestF_ORD_06_FailingMessageInOrderBecomesADeadLetter(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 1)
	send(t, newProducer(t, c), 0, 20)
	var mu sync.Mutex
	var got []string
	consume(t, c, consumer.Orderly(func(_ context.Context, m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, string(m.Body))
		if string(m.Body) == "5" {
			return consumer.RetryAfter(10*time.Millisecond, errors.New("always"))
		}
		return nil
	}), consumer.WithMaxReconsumeTimes(2))
	until(t, 20*time.Second, "all of them", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) >= 22
	})
	mu.Lock()
	defer mu.Unlock()
	want := []string{"0", "1", "2", "3", "4", "5", "5", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16", "17", "18", "19"}
	if !slices.Equal(got, want) {
		t.Errorf("handled %v", got)
	}
	dead, err := consumer.NewLitePull(c.NameServers(), "D", consumer.WithTopic(message.DeadLetterTopic("G"), "*"), consumer.WithStart(consumer.First()))
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	msgs, err := dead.Poll(ctx)
	if err != nil || len(msgs) != 1 || string(msgs[0].Body) != "5" || msgs[0].ReconsumeTimes != 2 || msgs[0].Property(message.PropertyRetryReason) != "always" {
		t.Errorf("dead letters: %v, %v", msgs, err)
	}
}
