package nameserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// A name server that restarted is asked into with the one topic made just then; it asks for all and shows no part.
func TestF_NSV_02_RestartedServerNeverShowsAPartOfABroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var topics []string
		for i := range 50 {
			topics = append(topics, fmt.Sprintf("t%02d", i))
		}
		old := start(t)
		b := old.broker(t, "b1", "b1:1", 7)
		b.full(topics...)
		old.stop()

		fresh := start(t)
		watch := fresh.watch(t, &tacitv1.WatchRoutesRequest{Topics: []string{"t00", "t51"}})
		expect(t, "before", next(watch), "full warming t00:; t51:")
		again := fresh.broker(t, "b1", "b1:1", 7)
		again.entry.ConfigVersion = b.entry.GetConfigVersion()
		time.Sleep(time.Second)
		if answer := again.delta("t51"); !answer.GetNeedFull() {
			t.Errorf("the delta was taken: %v", answer)
		}
		expect(t, "after the delta", next(watch))
		if got := fresh.routes(t); got != "" {
			t.Errorf("routes of a part: %s", got)
		}
		if answer := again.full(append(topics, "t51")...); answer.GetNeedFull() {
			t.Errorf("the full registration was not taken: %v", answer)
		}
		expect(t, "after the full registration", next(watch), "delta warming t00: b1@b1:1=4; t51: b1@b1:1=4")
		if got := strings.Count(fresh.routes(t), ":1=4"); got != 51 {
			t.Errorf("%d routes, want 51", got)
		}
		again.close()
	})
}

// The late sign-off of a process that has a successor does not remove the successor.
func TestF_NSV_03_LateSignOffKeepsTheSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		p, q := r.broker(t, "b1", "p:1", 1), r.broker(t, "b1", "q:1", 2)
		p.full("t")
		q.full("t")
		p.say(&tacitv1.RegisterRequest{Leaving: true})
		if got := r.routes(t, "t"); got != "t: b1@q:1=4" {
			t.Errorf("routes %q", got)
		}
		q.say(&tacitv1.RegisterRequest{Leaving: true})
		if got := r.routes(t, "t"); got != "t:" {
			t.Errorf("its own sign-off: routes %q", got)
		}
		p.close()
		q.close()
	})
}

// A name server says that it is warming from its first second on, answers all the same, and stops by itself when its time is over.
func TestF_NSV_04_WarmingEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, asked := range []bool{true, false} {
			r := start(t, func(c *Config) { c.BrokerExpiry = 5 * time.Second })
			b := r.broker(t, "b1", "b1:1", 1)
			b.full("t")
			for second := range 5 {
				if asked {
					m, err := r.GetRoutes(t.Context(), &tacitv1.GetRoutesRequest{Topics: []string{"t"}})
					if err != nil || !m.GetWarming() || showRoutes(m.GetRoutes()) != "t: b1@b1:1=4" {
						t.Errorf("second %d: %v, %v", second, m, err)
					}
				}
				time.Sleep(time.Second)
				b.heartbeat()
			}
			time.Sleep(time.Millisecond)
			m, err := r.GetRoutes(t.Context(), &tacitv1.GetRoutesRequest{Topics: []string{"t"}})
			if err != nil || m.GetWarming() {
				t.Errorf("asked before %v, after 5 s: %v, %v", asked, m, err)
			}
			b.close()
			r.stop()
		}
	})
}

func TestWatchersHearOfTheirTopicsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		one := r.watch(t, &tacitv1.WatchRoutesRequest{Topics: []string{"t1", "t1", "none"}})
		all := r.watch(t, &tacitv1.WatchRoutesRequest{All: true})
		expect(t, "one", next(one), "full warming none:; t1:")
		expect(t, "all", next(all), "full warming")

		b := r.broker(t, "b1", "b1:1", 1)
		b.full("t1", "t2")
		expect(t, "one", next(one), "delta warming t1: b1@b1:1=4")
		expect(t, "all", next(all), "delta warming t1: b1@b1:1=4; t2: b1@b1:1=4 +b1")
		b.delta("t3")
		b.heartbeat()
		expect(t, "one", next(one))
		expect(t, "all", next(all), "delta warming t3: b1@b1:1=4")

		for range 4 { // over the end of warming
			time.Sleep(3 * time.Second)
			b.heartbeat()
		}
		expect(t, "one", next(one), "delta")
		expect(t, "all", next(all), "delta")

		b.entry.ConfigVersion++
		b.say(&tacitv1.RegisterRequest{RemovedTopics: []string{"t1"}})
		expect(t, "one", next(one), "delta t1:")
		expect(t, "all", next(all), "delta t1:")

		// Silence ends it: the last broker's going makes the server warm up again,
		// since now it may just have been cut off.
		time.Sleep(11 * time.Second)
		expect(t, "one", next(one), "delta warming")
		expect(t, "all", next(all), "delta warming t2:; t3:")
		if n := r.logs.FilterMessage("broker expired").Len(); n != 1 {
			t.Errorf("%d expiries are logged", n)
		}
		if answer := b.heartbeat(); !answer.GetNeedFull() {
			t.Error("a broker that was dropped is not asked for all its topics")
		}
		b.close()
	})
}

// A reader that stands still holds up nobody and costs one message for all it missed.
func TestSlowWatcherGetsAllChangesAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		b := r.broker(t, "b1", "b1:1", 1)
		names := make([]string, 500)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%04d", strings.Repeat("long", 20), i)
		}
		b.full(names...)
		slow, err := r.WatchRoutes(t.Context(), &tacitv1.WatchRoutesRequest{All: true})
		if err != nil {
			t.Fatal(err)
		}
		fast := r.watch(t, &tacitv1.WatchRoutesRequest{Topics: names[:1]})
		next(fast)
		for q := range int32(30) { // far more than a window of flow control
			b.entry.ConfigVersion++
			m := &tacitv1.RegisterRequest{}
			for _, name := range names {
				m.Topics = append(m.Topics, topicConfig(name, q+5))
			}
			b.say(m)
			if got := next(fast); len(got) != 1 {
				t.Fatalf("change %d: a fast watcher got %q", q, got)
			}
		}
		messages := 0
		for {
			m, err := slow.Recv()
			if err != nil {
				t.Fatal(err)
			}
			messages++
			routes := m.GetRoutes()
			if len(routes) == len(names) && !slices.ContainsFunc(routes, func(r *tacitv1.TopicRoute) bool {
				return r.GetBrokers()[0].GetConfig().GetReadQueues() != 34
			}) {
				break // the last state
			}
		}
		if messages > 10 {
			t.Errorf("%d messages for a watcher that stood still", messages)
		}
		b.close()
	})
}

func TestSupersededBrokerIsToldTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		b, old := r.broker(t, "b1", "b1:1", 9), r.broker(t, "b1", "b1:1", 4)
		b.full("t")
		if answer := old.full("t", "u"); answer.GetSupersededByEpoch() != 9 {
			t.Errorf("answer %v", answer)
		}
		old.entry.BrokerEpoch = 10
		if answer := old.full("u"); answer.GetSupersededByEpoch() != 0 || answer.GetNeedFull() {
			t.Errorf("answer %v", answer)
		}
		if got := r.routes(t); got != "u: b1@b1:1=4" {
			t.Errorf("routes %q", got)
		}
		b.close()
		old.close()
	})
}

func TestBadRegistrationsNameTheField(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *Config) { c.MaxTopics = 3 })
		good := func() *tacitv1.RegisterRequest {
			return &tacitv1.RegisterRequest{
				Full: true, Entry: &tacitv1.BrokerEntry{Broker: "b", Address: "b:1", BrokerEpoch: 1},
				Topics: []*tacitv1.TopicConfig{topicConfig("t", 4)},
			}
		}
		for _, tc := range []struct {
			field  string
			change func(*tacitv1.RegisterRequest)
		}{
			{"entry", func(m *tacitv1.RegisterRequest) { m.Entry = nil }},
			{"entry.broker", func(m *tacitv1.RegisterRequest) { m.Entry.Broker = "a b" }},
			{"entry.broker", func(m *tacitv1.RegisterRequest) { m.Entry.Broker = "a/b" }},
			{"entry.cluster", func(m *tacitv1.RegisterRequest) { m.Entry.Cluster = "a:b" }},
			{"entry.address", func(m *tacitv1.RegisterRequest) { m.Entry.Address = "nowhere" }},
			{"entry.broker_epoch", func(m *tacitv1.RegisterRequest) { m.Entry.BrokerEpoch = 0 }},
			{"topics[0].topic", func(m *tacitv1.RegisterRequest) { m.Topics[0].Topic = "" }},
			{"topics[0].write_queues", func(m *tacitv1.RegisterRequest) { m.Topics[0].WriteQueues = 8 }},
			{"topics[1].topic", func(m *tacitv1.RegisterRequest) { m.Topics = append(m.Topics, m.GetTopics()[0]) }},
			{"removed_topics[0].topic", func(m *tacitv1.RegisterRequest) { m.RemovedTopics = []string{"\x00"} }},
		} {
			m := good()
			tc.change(m)
			err := sendOne(t, r, m)
			if fe, ok := errors.AsType[*rpcerr.FieldError](err); !ok || fe.Field != tc.field || status.Code(err) != codes.InvalidArgument {
				t.Errorf("got %v, want an error of %s", err, tc.field)
			}
		}
		m := good()
		for i := range 4 {
			m.Topics = append(m.Topics, topicConfig(fmt.Sprint("x", i), 1))
		}
		if err := sendOne(t, r, m); !errors.Is(err, rpcerr.ErrLimitReached) {
			t.Errorf("too many topics: %v", err)
		}
		if _, err := r.GetRoutes(t.Context(), &tacitv1.GetRoutesRequest{Topics: []string{"a", "b c"}}); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("bad topic: %v", err)
		}
		if got := r.routes(t); got != "" {
			t.Errorf("something was taken: %s", got)
		}
	})
}

// sendOne registers with one message and returns the error.
func sendOne(t *testing.T, r *running, m *tacitv1.RegisterRequest) error {
	t.Helper()
	stream, err := r.Register(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(m); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	return err
}

// What is not HTTP/2 ends its own connection and nothing else.
func TestGarbageOnThePortHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		b := r.broker(t, "b1", "b1:1", 1)
		b.full("t")
		for _, garbage := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00\xff\x16\x03\x01", strings.Repeat("x", 100_000)} {
			conn, err := r.lis.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte(garbage)) // the server may close it meanwhile
			time.Sleep(time.Second)
			_ = conn.Close()
		}
		b.heartbeat()
		if got := r.routes(t); got != "t: b1@b1:1=4" {
			t.Errorf("routes %q", got)
		}
		b.close()
	})
}

func FuzzRegister(f *testing.F) {
	for _, m := range []*tacitv1.RegisterRequest{
		{Full: true, Entry: &tacitv1.BrokerEntry{Broker: "b", Address: "b:1", BrokerEpoch: 1}, Topics: []*tacitv1.TopicConfig{topicConfig("t", 4)}},
		{Entry: &tacitv1.BrokerEntry{Broker: "b", Address: "b:1", BrokerEpoch: 1, ConfigVersion: 2}, RemovedTopics: []string{"t"}},
		{Leaving: true, Entry: &tacitv1.BrokerEntry{Broker: "b", Address: "b:1", BrokerEpoch: 1}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s, err := New(Default(), WithListener(bufconn.Listen(1)))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tacitv1.RegisterRequest{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if _, err := s.register(1, m); err != nil && !errors.Is(err, rpcerr.ErrInvalidArgument) && !errors.Is(err, rpcerr.ErrLimitReached) {
			t.Fatal(err)
		}
		s.snapshot().All()
	})
}

func TestWatchesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, func(c *Config) { c.MaxWatchers = 1 })
		next(r.watch(t, &tacitv1.WatchRoutesRequest{All: true}))
		s, err := r.WatchRoutes(t.Context(), &tacitv1.WatchRoutesRequest{All: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Recv(); !errors.Is(err, rpcerr.ErrOverloaded) {
			t.Errorf("second watch: %v", err)
		}
	})
}

// Open streams, which never end by themselves, do not hold up a stop.
func TestStopIsQuickWithStreamsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		b := r.broker(t, "b1", "b1:1", 1)
		b.full("t")
		watch := r.watch(t, &tacitv1.WatchRoutesRequest{All: true})
		health := healthv1.NewHealthClient(r.conn)
		if h, err := health.Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil || h.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health %v, %v", h, err)
		}
		next(watch)
		before := time.Now()
		r.stop()
		if took := time.Since(before); took > time.Second {
			t.Errorf("stop took %v", took)
		}
		expect(t, "watch", next(watch), "ended")
		if _, err := b.stream.Recv(); !errors.Is(err, rpcerr.ErrShuttingDown) {
			t.Errorf("registration ended with %v", err)
		}
	})
}

// After a pause of the whole process no broker is expired before its heartbeats
// that wait have been read.
func TestPausedServerGivesBrokersAnotherExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Default(), WithListener(bufconn.Listen(1)))
		if err != nil {
			t.Fatal(err)
		}
		m := &tacitv1.RegisterRequest{Full: true, Entry: &tacitv1.BrokerEntry{Broker: "b1", Address: "b1:1", BrokerEpoch: 1}}
		if _, err := s.register(1, m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // no sweep runs
		if wait := s.expire(); wait != s.cfg.BrokerExpiry {
			t.Errorf("next sweep after %v", wait)
		}
		if brokers, _ := s.table.Counts(); brokers != 1 {
			t.Error("the broker is expired")
		}
		time.Sleep(s.cfg.BrokerExpiry)
		s.expire()
		if brokers, _ := s.table.Counts(); brokers != 0 {
			t.Error("the broker is never expired")
		}
	})
}

func TestMetricsFollowTheTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		b := r.broker(t, "b2", "b2:1", 1)
		b.full("t", "u")
		b.heartbeat()
		next(r.watch(t, &tacitv1.WatchRoutesRequest{All: true}))
		got := map[string]float64{}
		families, err := r.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += "/" + l.GetValue()
				}
				got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		for name, want := range map[string]float64{
			"tacit_nameserver_brokers": 1, "tacit_nameserver_topics": 2, "tacit_nameserver_warming": 1,
			"tacit_nameserver_watches": 1, "tacit_nameserver_register_streams": 1,
			"tacit_nameserver_registrations_total/full": 1, "tacit_nameserver_registrations_total/heartbeat": 1,
		} {
			if got[name] != want {
				t.Errorf("%s is %v, want %v (%v)", name, got[name], want, got)
			}
		}
		b.close()
	})
}

func TestSettingsAreChecked(t *testing.T) {
	_, err := New(Config{Grace: -1})
	for _, want := range []string{"broker expiry", "max brokers", "max topics", "max watchers", "grace"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
	cfg := Default()
	cfg.Listen = "127.0.0.1:0"
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listen = s.Addr().String()
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), cfg.Listen) {
		t.Errorf("taken port: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Errorf("run with an ended context: %v", err)
	}
}
