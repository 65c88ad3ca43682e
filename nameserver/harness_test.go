package nameserver

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// running is a name server in this process with a connection to it.
type running struct {
	tacitv1.NameServerServiceClient
	conn *grpc.ClientConn
	logs *observer.ObservedLogs
	reg  *prometheus.Registry
	lis  *bufconn.Listener
	stop func()
}

// start runs a name server until the test ends or stop is called.
func start(t *testing.T, change ...func(*Config)) *running {
	t.Helper()
	cfg := Default()
	for _, c := range change {
		c(&cfg)
	}
	core, logs := observer.New(zap.DebugLevel)
	lis := bufconn.Listen(1 << 16)
	reg := prometheus.NewRegistry()
	srv, err := New(cfg, WithListener(lis), WithLogger(zap.New(core)), WithRegisterer(reg))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///ns", append(rpcerr.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }() // ended by stop
	r := &running{NameServerServiceClient: tacitv1.NewNameServerServiceClient(conn), conn: conn, logs: logs, reg: reg, lis: lis}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// registrar is a broker's registration stream.
type registrar struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[tacitv1.RegisterRequest, tacitv1.RegisterResponse]
	entry  *tacitv1.BrokerEntry
	seq    uint64
	close  context.CancelFunc
}

func (r *running) broker(t *testing.T, name, address string, epoch uint64) *registrar {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := r.Register(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &registrar{
		t: t, stream: stream, close: cancel,
		entry: &tacitv1.BrokerEntry{Broker: name, Address: address, BrokerEpoch: epoch, ConfigVersion: 1},
	}
}

// say sends a message about the topics and returns the answer.
func (b *registrar) say(m *tacitv1.RegisterRequest, topics ...string) *tacitv1.RegisterResponse {
	b.t.Helper()
	b.seq++
	m.Entry, m.Seq = b.entry, b.seq
	for _, name := range topics {
		m.Topics = append(m.Topics, topicConfig(name, 4))
	}
	if err := b.stream.Send(m); err != nil {
		b.t.Fatal(err)
	}
	answer, err := b.stream.Recv()
	if err != nil {
		b.t.Fatal(err)
	}
	if answer.GetSeq() != b.seq {
		b.t.Fatalf("answer to %d, want %d", answer.GetSeq(), b.seq)
	}
	return answer
}

func (b *registrar) full(topics ...string) *tacitv1.RegisterResponse {
	b.t.Helper()
	return b.say(&tacitv1.RegisterRequest{Full: true}, topics...)
}

func (b *registrar) delta(topics ...string) *tacitv1.RegisterResponse {
	b.t.Helper()
	b.entry.ConfigVersion++
	return b.say(&tacitv1.RegisterRequest{}, topics...)
}

func (b *registrar) heartbeat() *tacitv1.RegisterResponse {
	b.t.Helper()
	return b.say(&tacitv1.RegisterRequest{})
}

func topicConfig(name string, queues int32) *tacitv1.TopicConfig {
	return &tacitv1.TopicConfig{
		Topic: name, ReadQueues: queues, WriteQueues: queues,
		Permission: &tacitv1.Permission{Readable: true, Writable: true},
	}
}

// routes returns "topic: broker@address ..." of the named topics, or of all.
func (r *running) routes(t *testing.T, topics ...string) string {
	t.Helper()
	m, err := r.GetRoutes(t.Context(), &tacitv1.GetRoutesRequest{Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	return showRoutes(m.GetRoutes())
}

func showRoutes(rs []*tacitv1.TopicRoute) string {
	var out []string
	for _, r := range rs {
		line := r.GetTopic() + ":"
		for _, b := range r.GetBrokers() {
			line += fmt.Sprintf(" %s@%s=%d", b.GetEntry().GetBroker(), b.GetEntry().GetAddress(), b.GetConfig().GetReadQueues())
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

// watch collects what a watch is sent until the test ends.
func (r *running) watch(t *testing.T, m *tacitv1.WatchRoutesRequest) <-chan *tacitv1.WatchRoutesResponse {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.WatchRoutes(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *tacitv1.WatchRoutesResponse, 1000)
	ended := make(chan struct{})
	go func() { // ended by the cleanup
		defer close(ended)
		defer close(out)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			out <- m
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return out
}

// next returns what came on a watch since the last call, in short.
func next(watch <-chan *tacitv1.WatchRoutesResponse) []string {
	synctest.Wait()
	var out []string
	for {
		select {
		case m, ok := <-watch:
			if !ok {
				return append(out, "ended")
			}
			line := "delta"
			if m.GetFull() {
				line = "full"
			}
			if m.GetWarming() {
				line += " warming"
			}
			if s := showRoutes(m.GetRoutes()); s != "" {
				line += " " + s
			}
			for _, b := range m.GetBrokers() {
				line += " +" + b.GetBroker()
			}
			out = append(out, line)
		default:
			return out
		}
	}
}

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}
