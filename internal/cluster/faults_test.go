package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// until waits for something to become true.
func until(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", limit, what)
		case <-tick.C:
		}
	}
}

// owned counts the queues of a topic that a consumer has.
func owned(r *running, topic string) int {
	n := 0
	for _, q := range r.Stats().Queues {
		if q.Queue.Topic == topic && !q.Draining {
			n++
		}
	}
	return n
}

func sendTagged(t *testing.T, p *producer.Producer, topic, tag string, from, n int) {
	t.Helper()
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = &message.Message{Topic: topic, Tag: tag, Body: fmt.Appendf(nil, "%s/%d", topic, from+i)}
	}
	if _, err := p.Send(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
}

// A topic that a member drops while it lives on goes to the others, all of it.
func TestF_OWN_01_UnsubscribedTopicMovesToOthers(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 4)
	got := newCounter(400)
	one := consume(t, c, counting(got))
	two := consume(t, c, counting(got))
	until(t, 10*time.Second, "2 queues each", func() bool { return owned(one, "T") == 2 && owned(two, "T") == 2 })
	one.Unsubscribe("T")
	until(t, 10*time.Second, "all with the other", func() bool { return owned(one, "T") == 0 && owned(two, "T") == 4 })
	send(t, newProducer(t, c), 0, 400)
	got.wait(t, 10*time.Second)
}

// Processes with the same address and process id have different client ids and share the queues.
func TestF_IDN_01_SameAddressAndPidAreDifferentMembers(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 8)
	got := newCounter(800)
	one := consume(t, c, counting(got)) // same process: same address, same pid
	two := consume(t, c, counting(got))
	if one.ClientID() == two.ClientID() {
		t.Errorf("both are %s", one.ClientID())
	}
	until(t, 10*time.Second, "4 queues each", func() bool { return owned(one, "T") == 4 && owned(two, "T") == 4 })
	send(t, newProducer(t, c), 0, 800)
	got.wait(t, 10*time.Second)
}

// Of two members with one explicit id one is refused with a clear error, and failing messages are retried once per attempt.
func TestF_IDN_02_SecondMemberWithTheSameIDIsRefused(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 2)
	var mu sync.Mutex
	attempts := make(map[string]int)
	h := consumer.Each(func(_ context.Context, m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		attempts[string(m.Body)]++
		return consumer.RetryAfter(50*time.Millisecond, errors.New("always"))
	})
	opts := []consumer.Option{
		consumer.WithTopic("T", "*"), consumer.WithStart(consumer.First()), consumer.WithClientID("same"), consumer.WithMaxReconsumeTimes(4),
		consumer.WithTiming(time.Second, 200*time.Millisecond, 2*time.Second),
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	for range 2 {
		pc, err := consumer.New(c.NameServers(), "G", h, opts...)
		if err != nil {
			t.Fatal(err)
		}
		go func() { ended <- pc.Run(ctx) }() // waited for below
	}
	select {
	case err := <-ended:
		if !errors.Is(err, consumer.ErrDuplicateClientID) {
			t.Errorf("one ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("both go on")
	}
	send(t, newProducer(t, c), 0, 20)
	count := func() (n, most int) {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range attempts {
			n += k
			most = max(most, k)
		}
		return n, most
	}
	until(t, 20*time.Second, "all attempts", func() bool { n, _ := count(); return n >= 100 })
	time.AfterFunc(time.Second, cancel)
	if err := <-ended; err != nil {
		t.Errorf("the other ended with %v", err)
	}
	if n, most := count(); n != 100 || most != 5 {
		t.Errorf("%d attempts, at most %d of one message, want 100 and 5", n, most)
	}
}

// Members with different topics each share their own among those who want it: nothing is silently left.
func TestF_SUB_01_DifferentTopicsInOneGroup(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "A", 4)
	topic(t, c, "B", 4)
	got := newCounter(800)
	p := newProducer(t, c)
	other := func(topic string) *running { return consumeTopic(t, c, topic, counting(got)) }
	one, two := other("A"), other("B")
	sendTagged(t, p, "A", "", 0, 400)
	sendTagged(t, p, "B", "", 0, 400)
	got.wait(t, 10*time.Second)
	if owned(one, "A") != 4 || owned(two, "B") != 4 {
		t.Errorf("own %d and %d queues, want 4 each", owned(one, "A"), owned(two, "B"))
	}
}

// consumeTopic is consume with one other topic.
func consumeTopic(t *testing.T, c *cluster.Cluster, topic string, h consumer.Handler, opts ...consumer.Option) *running {
	t.Helper()
	return consumeOnly(t, c, h, append(opts, consumer.WithTopic(topic, "*"))...)
}

// A member with another filter than its group's is refused with an error that says so, before it can skip anything.
func TestF_SUB_02_DifferentFilterIsRefused(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 2)
	got := newCounter(100)
	consumeOnly(t, c, counting(got), consumer.WithTopic("T", "x"))
	p := newProducer(t, c)
	sendTagged(t, p, "T", "x", 0, 50)
	until(t, 10*time.Second, "first half", func() bool { got.mu.Lock(); defer got.mu.Unlock(); return len(got.n) == 50 })
	two, err := consumer.New(c.NameServers(), "G", counting(got), consumer.WithTopic("T", "y"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := two.Run(ctx); !errors.Is(err, consumer.ErrFilterMismatch) {
		t.Errorf("the member with another filter ended with %v", err)
	}
	sendTagged(t, p, "T", "y", 1000, 100)
	sendTagged(t, p, "T", "x", 50, 50)
	got.wait(t, 10*time.Second)
}

// Two consumers of one process in one group with different topics both work.
func TestF_SUB_03_TwoConsumersOfAProcessWithDifferentTopics(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "A", 2)
	topic(t, c, "B", 2)
	got := newCounter(400)
	consumeTopic(t, c, "A", counting(got))
	consumeTopic(t, c, "B", counting(got))
	p := newProducer(t, c)
	sendTagged(t, p, "A", "", 0, 200)
	sendTagged(t, p, "B", "", 0, 200)
	got.wait(t, 10*time.Second)
}

// A broker that begins to host a topic is used by the producer and by the consumer of the same process.
func TestF_RTE_01_NewBrokerIsNoticedByProducerAndConsumerOfOneProcess(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 4, "broker-a")
	got := newCounter(300)
	p := newProducer(t, c)
	one := consume(t, c, counting(got))
	send(t, p, 0, 100)
	if _, err := c.AddBroker("broker-b"); err != nil {
		t.Fatal(err)
	}
	topic(t, c, "T", 4, "broker-b")
	until(t, 10*time.Second, "queues of both brokers", func() bool { return owned(one, "T") == 8 })
	var used atomic.Bool
	for i := range 200 {
		res, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: fmt.Append(nil, 100+i)})
		if err != nil {
			t.Fatal(err)
		}
		if res[0].Queue.Broker == "broker-b" {
			used.Store(true)
		}
	}
	got.wait(t, 10*time.Second)
	if !used.Load() {
		t.Error("the producer does not use the new broker")
	}
}

// Queues added to a topic are shared by the members that run, and read from the first message on.
func TestF_RTE_02_AddedQueuesAreShared(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 4)
	got := newCounter(1200)
	one := consume(t, c, counting(got))
	two := consume(t, c, counting(got))
	until(t, 10*time.Second, "2 queues each", func() bool { return owned(one, "T") == 2 && owned(two, "T") == 2 })
	topic(t, c, "T", 12)
	p := newProducer(t, c, producer.WithSelector(producer.SelectorFunc(func(m *message.Message, queues []allocate.Queue) int {
		return int(m.Body[0]) % len(queues)
	})))
	until(t, 10*time.Second, "the producer to see 12 queues", func() bool {
		res, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte{11}})
		return err == nil && res[0].Queue.ID == 11
	})
	var msgs []*message.Message
	for q := range 12 {
		for i := range 100 {
			msgs = append(msgs, &message.Message{Topic: "T", Body: append([]byte{byte(q)}, fmt.Append(nil, i)...)})
		}
	}
	got.mu.Lock()
	clear(got.n)
	got.mu.Unlock()
	if _, err := p.Send(t.Context(), msgs...); err != nil {
		t.Fatal(err)
	}
	until(t, 10*time.Second, "6 queues each", func() bool { return owned(one, "T") == 6 && owned(two, "T") == 6 })
	got.wait(t, 10*time.Second)
}

// The first retries of a new group whose policy is "latest" are not skipped, also when the member restarts before it reads them.
func TestF_OFF_05_FirstRetriesAreNotSkipped(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 1)
	p := newProducer(t, c)
	var failures atomic.Int64
	one := consume(t, c, consumer.Each(func(context.Context, *message.Message) error {
		failures.Add(1)
		return consumer.RetryAfter(300*time.Millisecond, nil)
	}), consumer.WithStart(consumer.Last()))
	until(t, 10*time.Second, "the queue is read", func() bool { s := one.Stats(); return len(s.Queues) > 0 && s.Queues[0].Next >= 0 })
	send(t, p, 0, 10)
	until(t, 10*time.Second, "ten failures", func() bool { return failures.Load() >= 10 })
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	got := newCounter(10)
	consume(t, c, counting(got), consumer.WithStart(consumer.Last()))
	got.wait(t, 20*time.Second)
}

// Commits that race each other never take the stored offset back, and end at the highest.
func TestF_OFF_09_ConcurrentCommitsNeverGoBack(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 1)
	p := newProducer(t, c)
	const n = 2000
	send(t, p, 0, n)
	pull, err := consumer.NewLitePull(c.NameServers(), "G", consumer.WithTopic("T", "*"), consumer.WithStart(consumer.First()),
		consumer.WithAutoCommit(false), consumer.WithPollMessages(7))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pull.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	q := allocate.Queue{Topic: "T", Broker: "broker-a", ID: 0}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := pull.Commit(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() { // watches the stored value
		last := int64(0)
		for {
			select {
			case <-stop:
				return
			default:
			}
			o, _, err := pull.Committed(t.Context(), q)
			if err != nil || o < last {
				t.Errorf("stored offset is %d after %d: %v", o, last, err)
				return
			}
			last = o
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for got := 0; got < n; {
		msgs, err := pull.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got += len(msgs)
	}
	close(stop)
	wg.Wait()
	if err := pull.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o, ok, err := pull.Committed(t.Context(), q); o != n || !ok || err != nil {
		t.Errorf("stored offset is %d, %v, %v, want %d", o, ok, err, n)
	}
}

// A member that learns late of a takeover hands out nothing more, and its commits do not count.
func TestF_HND_06_FormerOwnerCannotCommit(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 1)
	p := newProducer(t, c)
	send(t, p, 0, 100)
	net := cluster.NewNet()
	var handed atomic.Int64
	slow := func(n *atomic.Int64) consumer.Handler {
		return consumer.Each(func(context.Context, *message.Message) error {
			n.Add(1)
			time.Sleep(20 * time.Millisecond)
			return nil
		})
	}
	one := consume(t, c, slow(&handed), consumer.WithDialer(net.Dial), consumer.WithConcurrency(1), consumer.WithCommitInterval(100*time.Millisecond))
	until(t, 10*time.Second, "the first messages", func() bool { return handed.Load() > 5 })
	link := net.Link(c.Broker("broker-a").Address())
	link.Hold(cluster.In) // answers no longer reach it, and what it says still arrives
	link.Hold(cluster.Out)
	var others atomic.Int64
	two := consume(t, c, slow(&others), consumer.WithConcurrency(1))
	until(t, 20*time.Second, "the other has taken over", func() bool { return others.Load() > 3 })
	before := handed.Load()
	until(t, 20*time.Second, "the other goes on", func() bool { return others.Load() > 30 })
	if n := handed.Load() - before; n > 0 {
		t.Errorf("the former owner handed out %d messages after the takeover", n)
	}
	link.Heal()
	until(t, 20*time.Second, "the former owner is back", func() bool { return owned(one, "T")+owned(two, "T") == 1 })
	until(t, 20*time.Second, "all consumed", func() bool { return handed.Load()+others.Load() >= 100 })
}

// An operator's reset to the beginning under full load takes effect on every queue, whatever commits and pulls are under way.
func TestF_CTL_06_ResetIsNotUndone(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 2})
	topic(t, c, "T", 16)
	p := newProducer(t, c, producer.WithSelector(producer.ByKey()))
	const n = 6400
	send(t, p, 0, n)
	var mu sync.Mutex
	first := make(map[allocate.Queue]bool) // the first message came after the reset
	var total atomic.Int64
	h := consumer.Each(func(_ context.Context, m *message.Message) error {
		total.Add(1)
		if m.Offset == 0 {
			mu.Lock()
			first[m.Queue] = true
			mu.Unlock()
		}
		return nil
	})
	for range 4 {
		consume(t, c, h, consumer.WithCommitInterval(50*time.Millisecond))
	}
	for round := range 5 {
		until(t, 20*time.Second, "half of it", func() bool { return total.Load() >= n/2 })
		mu.Lock()
		clear(first)
		mu.Unlock()
		total.Store(0)
		for _, b := range c.Brokers() {
			req := &tacitv1.ResetOffsetsRequest{Group: "G", Topic: "T", Force: true}
			for id := range int32(16) {
				req.Offsets = append(req.Offsets, &tacitv1.OffsetTarget{Queue: &tacitv1.MessageQueue{Topic: "T", Broker: b, QueueId: id}})
			}
			if err := c.Admin(b, func(a tacitv1.AdminServiceClient) error {
				_, err := a.ResetOffsets(t.Context(), req)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		until(t, 20*time.Second, fmt.Sprintf("all queues from the beginning, round %d", round), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(first) == 32
		})
	}
}
