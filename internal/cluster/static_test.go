package cluster_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
)

func TestRollingRestartOfStaticMembersMovesNothingAndRepeatsNothing(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 2})
	topic(t, c, "T", 4)
	p := newProducer(t, c)
	got := newTally()
	var mu sync.Mutex
	owner := make(map[allocate.Queue]int) // the last one
	moved := 0
	run := func(i int) *running {
		return consume(t, c, got.handler(), consumer.WithInstanceID([]string{"one", "two", "three"}[i]),
			consumer.WithListener(consumer.ListenerFuncs{Assigned: func(_ context.Context, qs []allocate.Queue) {
				mu.Lock()
				defer mu.Unlock()
				for _, q := range qs {
					if was, ok := owner[q]; ok && was != i && q.Topic == "T" {
						moved++
					}
					owner[q] = i
				}
			}}))
	}
	members := []*running{run(0), run(1), run(2)}
	settled := func() bool {
		n := 0
		for _, m := range members {
			n += owned(m, "T")
		}
		return n == 8 && owned(members[0], "T") >= 2 && owned(members[1], "T") >= 2 && owned(members[2], "T") >= 2
	}
	until(t, 10*time.Second, "settled", settled)
	mu.Lock()
	moved = 0 // members that come in one by one may take from each other
	mu.Unlock()
	stop := stream(t, p)
	for i := range members {
		if err := members[i].stop(); err != nil {
			t.Fatal(err)
		}
		members[i] = run(i)
		until(t, 10*time.Second, "the member has its queues again", settled)
	}
	mu.Lock()
	if moved != 0 {
		t.Errorf("%d queues moved in three restarts", moved)
	}
	mu.Unlock()
	got.check(t, stop(), false)
}

func TestStaticMemberIsFencedByItsSuccessor(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 2)
	opts := []consumer.Option{consumer.WithTopic("T", "*"), consumer.WithInstanceID("one"), consumer.WithTiming(time.Second, 200*time.Millisecond, 2*time.Second)}
	h := consumer.Each(func(context.Context, *message.Message) error { return nil })
	old, err := consumer.New(c.NameServers(), "G", h, opts...)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- old.Run(t.Context()) }() // ends when it is fenced
	until(t, 10*time.Second, "2 queues", func() bool {
		n := 0
		for _, q := range old.Stats().Queues {
			if q.Queue.Topic == "T" {
				n++
			}
		}
		return n == 2
	})
	successor := consume(t, c, h, consumer.WithInstanceID("one"))
	select {
	case err := <-ended:
		if !errors.Is(err, consumer.ErrFenced) {
			t.Errorf("the old member ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the old member goes on")
	}
	until(t, 10*time.Second, "the successor has both", func() bool { return owned(successor, "T") == 2 })
}
