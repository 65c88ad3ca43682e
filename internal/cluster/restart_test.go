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
)

// stream sends messages at a steady rate until it is stopped, and returns how
// many were acknowledged.
func stream(t *testing.T, p *producer.Producer) (stop func() (acknowledged map[string]bool)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	acks := make(map[string]bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			body := fmt.Sprint(i)
			p.SendAsync(t.Context(), &message.Message{Topic: "T", Keys: []string{body}, Body: []byte(body)}, func(r producer.Result) {
				if r.Err == nil {
					mu.Lock()
					acks[body] = true
					mu.Unlock()
				}
			})
		}
	})
	return func() map[string]bool {
		cancel()
		wg.Wait()
		flush, done := context.WithTimeout(t.Context(), 30*time.Second)
		defer done()
		if err := p.Flush(flush); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		return acks
	}
}

// tally counts messages by body and queue.
type tally struct {
	mu     sync.Mutex
	n      map[string]int
	queues map[allocate.Queue]time.Time // when the last message came
	total  atomic.Int64
}

func newTally() *tally {
	return &tally{n: make(map[string]int), queues: make(map[allocate.Queue]time.Time)}
}

func (l *tally) handler() consumer.Handler {
	return consumer.Each(func(_ context.Context, m *message.Message) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.n[string(m.Body)]++
		l.queues[m.Queue] = time.Now()
		l.total.Add(1)
		return nil
	})
}

func (l *tally) missing(acks map[string]bool) (missing, repeats int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for body := range acks {
		if l.n[body] == 0 {
			missing++
		}
	}
	for _, n := range l.n {
		repeats += n - 1
	}
	return missing, repeats
}

func (l *tally) check(t *testing.T, acks map[string]bool, repeats bool) {
	t.Helper()
	until(t, 30*time.Second, "every acknowledged message consumed", func() bool { n, _ := l.missing(acks); return n == 0 })
	if _, n := l.missing(acks); n > 0 && !repeats {
		t.Errorf("%d messages came again", n)
	}
}

func TestGroupSurvivesWhateverRestarts(t *testing.T) {
	for _, tc := range []struct {
		name    string
		repeats bool // allowed
		fault   func(t *testing.T, c *cluster.Cluster, members []*running, net *cluster.Net)
	}{
		{"name server restarts", false, func(t *testing.T, c *cluster.Cluster, _ []*running, _ *cluster.Net) {
			if err := c.NameServer(0).Restart(false); err != nil {
				t.Error(err)
			}
		}},
		{"name server is killed", false, func(t *testing.T, c *cluster.Cluster, _ []*running, _ *cluster.Net) {
			if err := c.NameServer(0).Restart(true); err != nil {
				t.Error(err)
			}
		}},
		{"broker restarts", false, func(t *testing.T, c *cluster.Cluster, _ []*running, _ *cluster.Net) {
			if err := c.Broker("broker-b").Restart(false); err != nil {
				t.Error(err)
			}
		}},
		{"broker is killed", true, func(t *testing.T, c *cluster.Cluster, _ []*running, _ *cluster.Net) {
			if err := c.Broker("broker-b").Restart(true); err != nil {
				t.Error(err)
			}
		}},
		{"member leaves", false, func(t *testing.T, _ *cluster.Cluster, members []*running, _ *cluster.Net) {
			if err := members[1].stop(); err != nil {
				t.Error(err)
			}
		}},
		{"member is cut off", true, func(_ *testing.T, _ *cluster.Cluster, _ []*running, net *cluster.Net) {
			net.All(func(l *cluster.Link) { l.Cut() })
		}},
		{"member is silent", true, func(_ *testing.T, _ *cluster.Cluster, _ []*running, net *cluster.Net) {
			net.All(func(l *cluster.Link) { l.Swallow() })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := start(t, cluster.Config{Brokers: 2})
			topic(t, c, "T", 4)
			p := newProducer(t, c, producer.WithTimeout(30*time.Second))
			net := cluster.NewNet()
			got := newTally()
			members := []*running{consume(t, c, got.handler()), consume(t, c, got.handler()), consume(t, c, got.handler(), consumer.WithDialer(net.Dial))}
			until(t, 10*time.Second, "settled", func() bool {
				n := 0
				for _, m := range members {
					k := owned(m, "T")
					n += k
					if k < 2 || k > 3 {
						return false
					}
				}
				return n == 8
			})
			stop := stream(t, p)
			time.Sleep(300 * time.Millisecond)
			tc.fault(t, c, members, net)
			before := got.total.Load()
			until(t, 20*time.Second, "it goes on", func() bool { return got.total.Load() > before+500 })
			acks := stop()
			got.check(t, acks, tc.repeats)
		})
	}
}

// A listener hears of each queue: assigned, then exactly one of revoked and lost, then perhaps assigned again; lost at the latest when the member is back.
func TestF_HND_05_ListenerIsToldOfLoss(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 4)
	net := cluster.NewNet()
	var mu sync.Mutex
	state := make(map[allocate.Queue]string)
	var wrong []string
	losses := 0
	change := func(to string, from ...string) func(context.Context, []allocate.Queue) {
		return func(_ context.Context, qs []allocate.Queue) {
			mu.Lock()
			defer mu.Unlock()
			for _, q := range qs {
				ok := false
				for _, f := range from {
					ok = ok || state[q] == f
				}
				if !ok {
					wrong = append(wrong, fmt.Sprintf("%v: %q after %q", q, to, state[q]))
				}
				if to == "lost" {
					losses++
				}
				state[q] = to
			}
		}
	}
	one := consume(t, c, newTally().handler(), consumer.WithDialer(net.Dial), consumer.WithListener(consumer.ListenerFuncs{
		Assigned: change("assigned", "", "revoked", "lost"), Revoked: change("revoked", "assigned"), Lost: change("lost", "assigned"),
	}))
	until(t, 10*time.Second, "4 queues", func() bool { return owned(one, "T") == 4 })
	two := consume(t, c, newTally().handler())
	until(t, 10*time.Second, "2 queues each", func() bool { return owned(one, "T") == 2 && owned(two, "T") == 2 })
	net.All(func(l *cluster.Link) { l.Swallow() })
	until(t, 20*time.Second, "the other has all", func() bool { return owned(two, "T") == 4 })
	net.All(func(l *cluster.Link) { l.Heal() })
	until(t, 30*time.Second, "2 queues each again", func() bool { return owned(one, "T") == 2 && owned(two, "T") == 2 })
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(wrong) > 0 || losses < 2 {
		t.Errorf("%d losses; out of order: %v", losses, wrong)
	}
	for q, s := range state {
		if s == "assigned" {
			t.Errorf("%v: the end of its ownership was not told", q)
		}
	}
}

// A new group begins where its policy says, on every queue and in every member that starts at the same time.
func TestF_OFF_04_NewGroupBeginsWhereItsPolicySays(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 2})
	topic(t, c, "T", 2)
	p := newProducer(t, c, producer.WithSelector(producer.ByKey()))
	send(t, p, 0, 1000)
	time.Sleep(20 * time.Millisecond)
	middle := time.Now()
	time.Sleep(20 * time.Millisecond)
	send(t, p, 1000, 50)
	for name, tc := range map[string]struct {
		start consumer.Start
		want  int
	}{"first": {consumer.First(), 1060}, "last": {consumer.Last(), 10}, "time": {consumer.At(middle), 60}} {
		t.Run(name, func(t *testing.T) {
			got := newTally()
			group := func() *running {
				return consumeGroup(t, c, "G-"+name, got.handler(), consumer.WithTopic("T", "*"), consumer.WithStart(tc.start))
			}
			members := []*running{group(), group()}
			until(t, 10*time.Second, "all queues have a beginning", func() bool {
				n := 0
				for _, m := range members {
					for _, q := range m.Stats().Queues {
						if q.Queue.Topic == "T" && q.Next >= 0 {
							n++
						}
					}
				}
				return n == 4
			})
			msgs := make([]*message.Message, 10)
			for i := range msgs {
				msgs[i] = &message.Message{Topic: "T", Keys: []string{fmt.Sprint("new", i)}, Body: fmt.Append(nil, name, i)}
			}
			if _, err := p.Send(t.Context(), msgs...); err != nil {
				t.Fatal(err)
			}
			until(t, 10*time.Second, "all", func() bool { return got.total.Load() >= int64(tc.want) })
			for _, m := range members {
				if err := m.stop(); err != nil {
					t.Error(err)
				}
			}
			if n := got.total.Load(); name == "last" && n != 10 {
				t.Errorf("%d messages, want 10", n)
			}
		})
	}
}

// A topic that begins on another broker while the group is stopped is read from its first message, though the policy is "last".
func TestF_OFF_03_QueuesNewToAGroupAreReadFromTheStart(t *testing.T) {
	c := start(t, cluster.Config{Brokers: 2})
	topic(t, c, "T", 2, "broker-a")
	p := newProducer(t, c)
	got := newTally()
	one := consume(t, c, got.handler(), consumer.WithStart(consumer.Last()))
	until(t, 10*time.Second, "begun", func() bool { return owned(one, "T") == 2 && one.Stats().Queues[1].Next >= 0 })
	time.Sleep(1200 * time.Millisecond) // longer than offsets of a newcomer are kept back
	send(t, p, 0, 10)
	until(t, 10*time.Second, "first messages", func() bool { return got.total.Load() == 10 })
	if err := one.stop(); err != nil {
		t.Fatal(err)
	}
	topic(t, c, "T", 2, "broker-b")
	late := newProducer(t, c, producer.WithSelector(producer.SelectorFunc(func(_ *message.Message, qs []allocate.Queue) int {
		for i, q := range qs {
			if q.Broker == "broker-b" {
				return i
			}
		}
		return 0
	})))
	until(t, 10*time.Second, "the producer knows broker-b", func() bool {
		r, err := late.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("100")})
		return err == nil && r[0].Queue.Broker == "broker-b"
	})
	send(t, late, 1000, 99)
	consume(t, c, got.handler(), consumer.WithStart(consumer.Last()))
	until(t, 10*time.Second, "the messages of the new broker", func() bool {
		missing, _ := got.missing(map[string]bool{"100": true, "1000": true, "1098": true})
		return missing == 0
	})
}

// A consumer can be made anew in its process again and again, and users that share connections end in any order.
func TestF_LIF_03_ConsumersCanBeMadeAgain(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 2)
	p := newProducer(t, c)
	for round := range 10 {
		got := newCounter(10)
		r := consume(t, c, counting(got), consumer.WithClientID("same"))
		send(t, p, 10*round, 10)
		got.wait(t, 10*time.Second)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		if n := got.repeats(); n > 0 {
			t.Errorf("round %d: %d repeats", round, n)
		}
	}
}

// Users of shared connections end in any order without harm to the others.
func TestF_LIF_04_SharedConnectionsEndWithTheirLastUser(t *testing.T) {
	c := start(t, cluster.Config{})
	topic(t, c, "T", 3)
	last := newProducer(t, c)
	got := newCounter(1)
	one, two := consumeGroup(t, c, "one", counting(newCounter(1<<30)), consumer.WithTopic("T", "*")), consumeGroup(t, c, "two", counting(got), consumer.WithTopic("T", "*"), consumer.WithStart(consumer.First()))
	p, err := producer.New(c.NameServers())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	got.wait(t, 10*time.Second)
	if err := errors.Join(one.stop(), p.Close(t.Context()), p.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	got.mu.Lock()
	got.n, got.done = make(map[string]int), make(chan struct{})
	got.mu.Unlock()
	send(t, last, 7, 1)
	got.wait(t, 10*time.Second)
	if err := two.stop(); err != nil {
		t.Fatal(err)
	}
	send(t, last, 8, 1)
}
