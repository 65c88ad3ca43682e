package cluster_test

import (
	"testing"
	"time"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// A topic that is deleted and made again is consumed at once: nobody waits for
// the tick, which is set to ten minutes here.
func TestTopicMadeAgainIsConsumedAtOnce(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 2})
	topic(t, c, "T", 4)
	got := newTally()
	members := make([]*running, 3)
	for i := range members {
		members[i] = consume(t, c, got.handler(), consumer.WithTiming(10*time.Minute, 200*time.Millisecond, 2*time.Second))
	}
	shared := func() bool {
		n := 0
		for _, m := range members {
			n += owned(m, "T")
		}
		return n == 8
	}
	until(t, 10*time.Second, "all queues have an owner", shared)
	for range 3 {
		for _, b := range c.Brokers() {
			if err := c.Admin(b, func(a tacitv1.AdminServiceClient) error {
				_, err := a.DeleteTopic(t.Context(), &tacitv1.DeleteTopicRequest{Topic: "T"})
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		topic(t, c, "T", 4)
		until(t, 5*time.Second, "all queues of the new topic have an owner", shared)
	}
	stop := stream(t, newProducer(t, c))
	until(t, 10*time.Second, "messages are handed out", func() bool { return got.total.Load() > 50 })
	got.check(t, stop(), false)
}
