package admin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

// twoBrokers starts two brokers with a topic of four queues and a message in each.
func twoBrokers(t *testing.T) (context.Context, *Client, *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cluster.Config{Dir: t.TempDir(), Brokers: 2})
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open(Config{NameServers: c.NameServers()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.Close()
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	if _, err := a.CreateTopic(ctx, "orders", TopicChange{Queues: new(int32(4))}); err != nil {
		t.Fatal(err)
	}
	p, err := producer.New(c.NameServers())
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		if _, err := p.Send(ctx, &message.Message{Topic: "orders", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx, a, c
}

// eventually looks again and again whether something holds, until ctx ends.
func eventually(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		}
	}
}

// removed is what became of a broker that a topic is taken off.
func removed(t *testing.T, changes []HostChange, broker string) HostChange {
	t.Helper()
	for _, ch := range changes {
		if ch.Broker == broker {
			return ch
		}
	}
	t.Fatalf("nothing is said of broker %s: %+v", broker, changes)
	return HostChange{}
}

func TestTopicGoesOffABrokerOnceItIsRead(t *testing.T) {
	ctx, a, _ := twoBrokers(t)
	hosts := func() []string {
		cl, err := a.Cluster(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return cl.Topic("orders").Brokers()
	}
	eventually(ctx, t, "both host it", func() bool { return slices.Equal(hosts(), []string{"broker-a", "broker-b"}) })

	changes, err := a.AlterTopic(ctx, "orders", TopicChange{Without: []string{"broker-b"}})
	if err != nil {
		t.Fatal(err)
	}
	if ch := removed(t, changes, "broker-b"); ch.Removed || !strings.Contains(ch.Pending, "no group has read") || ch.WriteQueues != 0 || len(changes) != 1 {
		t.Fatalf("unread: %+v", changes)
	}
	reset := Reset{Group: "g", Topics: []string{"orders"}, Kind: ToEarliest, Execute: true}
	if _, _, err := a.ResetOffsets(ctx, reset); err != nil {
		t.Fatal(err)
	}
	changes, err = a.AlterTopic(ctx, "orders", TopicChange{Without: []string{"broker-b"}})
	if ch := removed(t, changes, "broker-b"); err != nil || ch.Removed || !strings.Contains(ch.Pending, `group "g" has`) {
		t.Fatalf("unread by a group: %+v, %v", changes, err)
	}
	reset.Kind = ToLatest
	if _, _, err := a.ResetOffsets(ctx, reset); err != nil {
		t.Fatal(err)
	}
	changes, err = a.AlterTopic(ctx, "orders", TopicChange{Without: []string{"broker-b"}})
	if ch := removed(t, changes, "broker-b"); err != nil || !ch.Removed || ch.Pending != "" {
		t.Fatalf("read: %+v, %v", changes, err)
	}
	eventually(ctx, t, "a alone hosts it", func() bool { return slices.Equal(hosts(), []string{"broker-a"}) })
	changes, err = a.AlterTopic(ctx, "orders", TopicChange{Without: []string{"broker-b"}})
	if ch := removed(t, changes, "broker-b"); err != nil || !ch.Removed {
		t.Errorf("again: %+v, %v", changes, err)
	}
	topics, _, err := a.Topics(ctx, "orders")
	if err != nil || topics[0].ReadQueues != 2 || topics[0].WriteQueues != 2 {
		t.Errorf("the other broker: %+v, %v", topics, err)
	}
	if _, err := a.AlterTopic(ctx, "orders", TopicChange{Without: []string{"broker-a"}}); !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("off the last broker: %v", err)
	}
}

func TestTopicGoesOffABrokerByForceAndTheOthersGrow(t *testing.T) {
	ctx, a, _ := twoBrokers(t)
	eventually(ctx, t, "both host it", func() bool {
		cl, err := a.Cluster(ctx)
		return err == nil && len(cl.Topic("orders").Hosts) == 2
	})
	changes, err := a.AlterTopic(ctx, "orders", TopicChange{Without: []string{"broker-b"}, Queues: new(int32(6)), Force: true})
	if err != nil || len(changes) != 2 {
		t.Fatalf("%+v, %v", changes, err)
	}
	if !removed(t, changes, "broker-b").Removed || removed(t, changes, "broker-a").WriteQueues != 6 {
		t.Errorf("%+v", changes)
	}
}

func TestMessagesThatWaitForARetryAreCounted(t *testing.T) {
	ctx, a, c := twoBrokers(t)
	run, stop := context.WithCancel(ctx)
	member, err := consumer.New(c.NameServers(), "g", consumer.Each(func(context.Context, *message.Message) error { return errors.New("not today") }),
		consumer.WithTopic("orders", "*"), consumer.WithStart(consumer.First()), consumer.WithCommitInterval(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- member.Run(run) }() // ended by stop
	var g *Group
	eventually(ctx, t, "four messages wait", func() bool {
		g, _, err = a.DescribeGroup(ctx, "g")
		return err == nil && g.RetriesScheduled == 4
	})
	eventually(ctx, t, "they are in no lag", func() bool {
		g, _, err = a.DescribeGroup(ctx, "g")
		return err == nil && g.Lag() == 0
	})
	if n := g.Retries(); n != 4 {
		t.Errorf("%d messages are to be handed out again", n)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
