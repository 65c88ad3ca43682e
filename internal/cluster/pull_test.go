package cluster_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
)

// A seek or a question right after the start waits until the brokers are known, for
// as long as its context lets it.
func TestSeekRightAfterTheStartWaitsForRoutes(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 1})
	topic(t, c, "T", 1)
	p := newProducer(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	results, err := p.Send(ctx, &message.Message{Topic: "T", Body: []byte("a")}, &message.Message{Topic: "T", Body: []byte("b")})
	if err != nil {
		t.Fatal(err)
	}
	q := results[0].Queue

	pull, err := consumer.NewLitePull(c.NameServers(), "G")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pull.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if _, ok, err := pull.Committed(ctx, q); err != nil || ok {
		t.Errorf("committed: %v, %v", ok, err)
	}
	if err := pull.Assign(q); err != nil {
		t.Fatal(err)
	}
	if err := pull.SeekToBegin(ctx); err != nil {
		t.Fatal(err)
	}
	msgs, err := pull.Poll(ctx)
	if err != nil || len(msgs) == 0 || msgs[0].Offset != 0 {
		t.Errorf("polled %v, %v", msgs, err)
	}
	if _, _, err := pull.Committed(ctx, allocate.Queue{Topic: "nowhere", Broker: q.Broker}); !errors.Is(err, consumer.ErrTopicNotFound) {
		t.Errorf("of a topic that does not exist: %v", err)
	}
}
