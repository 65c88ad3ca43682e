package client

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// server is a name server and a broker in memory, with what a test wants them to do.
type server struct {
	tacitv1.UnimplementedNameServerServiceServer
	tacitv1.UnimplementedDataServiceServer
	tacitv1.UnimplementedOffsetServiceServer
	tacitv1.UnimplementedSessionServiceServer

	lis *bufconn.Listener

	produce func(grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error
	fetch   func(grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error
	session func(grpc.BidiStreamingServer[tacitv1.SessionRequest, tacitv1.SessionResponse]) error
	commit  func(context.Context) error

	mu    sync.Mutex
	dials map[string]int // by address
	down  map[string]bool
	watch map[chan string]bool // told the broker's address
	at    string
}

// newServer serves until the end of the test.
func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{lis: bufconn.Listen(1 << 20), dials: make(map[string]int), down: make(map[string]bool), watch: make(map[chan string]bool), at: "broker:1"}
	g := grpc.NewServer(rpcerr.ServerOptions(nil)...)
	tacitv1.RegisterNameServerServiceServer(g, s)
	tacitv1.RegisterDataServiceServer(g, s)
	tacitv1.RegisterOffsetServiceServer(g, s)
	tacitv1.RegisterSessionServiceServer(g, s)
	var wg sync.WaitGroup
	wg.Go(func() { _ = g.Serve(s.lis) }) // ends with Stop
	t.Cleanup(func() {
		g.Stop()
		wg.Wait()
	})
	return s
}

func (s *server) dial(ctx context.Context, address string) (net.Conn, error) {
	s.mu.Lock()
	s.dials[address]++
	down := s.down[address]
	s.mu.Unlock()
	if down {
		<-ctx.Done() // a host that is gone says nothing
		return nil, ctx.Err()
	}
	return s.lis.DialContext(ctx)
}

// move changes the broker's address.
func (s *server) move(to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = to
	for w := range s.watch {
		w <- to
	}
}

func (s *server) WatchRoutes(_ *tacitv1.WatchRoutesRequest, st grpc.ServerStreamingServer[tacitv1.WatchRoutesResponse]) error {
	moved := make(chan string, 10)
	s.mu.Lock()
	s.watch[moved] = true
	at := s.at
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watch, moved)
		s.mu.Unlock()
	}()
	for version := uint64(1); ; version++ {
		err := st.Send(&tacitv1.WatchRoutesResponse{Full: true, Routes: []*tacitv1.TopicRoute{{Topic: "T", Brokers: []*tacitv1.BrokerRoute{{
			Entry:  &tacitv1.BrokerEntry{Broker: "b", Address: at, BrokerEpoch: version},
			Config: &tacitv1.TopicConfig{Topic: "T", ReadQueues: 1, WriteQueues: 1, Permission: &tacitv1.Permission{Readable: true, Writable: true}},
		}}}}})
		if err != nil {
			return err
		}
		select {
		case at = <-moved:
		case <-st.Context().Done():
			return nil
		}
	}
}

func (s *server) Produce(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
	return s.produce(st)
}

func (s *server) Fetch(st grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error {
	return s.fetch(st)
}

func (s *server) Session(st grpc.BidiStreamingServer[tacitv1.SessionRequest, tacitv1.SessionResponse]) error {
	return s.session(st)
}

func (s *server) Commit(ctx context.Context, req *tacitv1.CommitRequest) (*tacitv1.CommitResponse, error) {
	if err := s.commit(ctx); err != nil {
		return nil, err
	}
	return &tacitv1.CommitResponse{Results: make([]*tacitv1.OffsetResult, len(req.GetOffsets()))}, nil
}

// open opens a client that knows the broker.
func open(t *testing.T, s *server, timeout time.Duration) *cluster {
	t.Helper()
	c, err := Open(Config{NameServers: []string{"ns:1"}, Dialer: s.dial, CallTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	routed := make(chan struct{}, 100)
	w := c.Watch(func() { routed <- struct{}{} })
	w.SetTopics([]string{"T"})
	for len(w.Routes()) == 0 {
		<-routed
	}
	t.Cleanup(func() {
		w.Close()
		c.Close()
	})
	return c.(*cluster)
}
