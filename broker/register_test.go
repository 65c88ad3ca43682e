package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// nameServer is the least a name server is: it tells what brokers say to it.
type nameServer struct {
	tacitv1.UnimplementedNameServerServiceServer
	requests chan *tacitv1.RegisterRequest

	mu      sync.Mutex
	answer  func(*tacitv1.RegisterRequest) *tacitv1.RegisterResponse
	routes  *tacitv1.GetRoutesResponse
	lis     *bufconn.Listener
	srv     *grpc.Server
	watches chan chan *tacitv1.WatchRoutesResponse
}

func newNameServer(t *testing.T) *nameServer {
	ns := &nameServer{
		requests: make(chan *tacitv1.RegisterRequest, 1000),
		watches:  make(chan chan *tacitv1.WatchRoutesResponse, 100),
		routes:   &tacitv1.GetRoutesResponse{},
		answer: func(r *tacitv1.RegisterRequest) *tacitv1.RegisterResponse {
			return &tacitv1.RegisterResponse{Seq: r.GetSeq()}
		},
	}
	ns.start()
	t.Cleanup(func() { ns.srv.Stop() })
	return ns
}

func (ns *nameServer) start() {
	lis, srv := bufconn.Listen(1<<16), grpc.NewServer(grpc.WaitForHandlers(true))
	tacitv1.RegisterNameServerServiceServer(srv, ns)
	ns.mu.Lock()
	ns.lis, ns.srv = lis, srv
	ns.mu.Unlock()
	go func() { _ = srv.Serve(lis) }() // ends with srv.Stop
}

func (ns *nameServer) dial(ctx context.Context, _ string) (net.Conn, error) {
	ns.mu.Lock()
	lis := ns.lis
	ns.mu.Unlock()
	return lis.DialContext(ctx)
}

func (ns *nameServer) Register(s grpc.BidiStreamingServer[tacitv1.RegisterRequest, tacitv1.RegisterResponse]) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		ns.mu.Lock()
		resp := ns.answer(r)
		ns.mu.Unlock()
		ns.requests <- r
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

func (ns *nameServer) GetRoutes(context.Context, *tacitv1.GetRoutesRequest) (*tacitv1.GetRoutesResponse, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.routes, nil
}

func (ns *nameServer) WatchRoutes(_ *tacitv1.WatchRoutesRequest, s grpc.ServerStreamingServer[tacitv1.WatchRoutesResponse]) error {
	if err := s.Send(&tacitv1.WatchRoutesResponse{Full: true}); err != nil {
		return err
	}
	push := make(chan *tacitv1.WatchRoutesResponse)
	ns.watches <- push
	for {
		select {
		case r := <-push:
			if err := s.Send(r); err != nil {
				return err
			}
		case <-s.Context().Done():
			return nil
		}
	}
}

// next returns the next request that is no plain heartbeat.
func (ns *nameServer) next(t *testing.T) *tacitv1.RegisterRequest {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case r := <-ns.requests:
			if r.GetFull() || r.GetLeaving() || len(r.GetTopics())+len(r.GetRemovedTopics()) > 0 {
				return r
			}
		case <-timeout:
			t.Fatal("no registration")
		}
	}
}

func (ns *nameServer) options(cfg *Config) Option {
	cfg.NameServers = []string{"ns:9876"}
	cfg.RegisterInterval = 50 * time.Millisecond
	return WithDialer(ns.dial)
}

func TestBrokerRegistersInFullThenByDeltaAndSignsOff(t *testing.T) {
	ns := newNameServer(t)
	cfg := testConfig(t.TempDir())
	cfg.Advertise, cfg.Cluster = "broker.example:10911", "east"
	e := start(t, cfg, ns.options(&cfg))
	_ = e
	first := ns.next(t)
	if !first.GetFull() || len(first.GetTopics()) != 0 || first.GetEntry().GetAddress() != "broker.example:10911" ||
		first.GetEntry().GetCluster() != "east" || first.GetEntry().GetBrokerEpoch() == 0 {
		t.Fatalf("first %v", first)
	}
	e.topic("A", 2)
	second := ns.next(t)
	if second.GetFull() || len(second.GetTopics()) != 1 || second.GetTopics()[0].GetTopic() != "A" ||
		second.GetEntry().GetConfigVersion() <= first.GetEntry().GetConfigVersion() {
		t.Errorf("delta %v", second)
	}
	if _, err := e.admin.DeleteTopic(e.ctx(), &tacitv1.DeleteTopicRequest{Topic: "A"}); err != nil {
		t.Fatal(err)
	}
	if third := ns.next(t); len(third.GetRemovedTopics()) != 1 || third.GetFull() {
		t.Errorf("removal %v", third)
	}
	e.stop()
	if last := ns.next(t); !last.GetLeaving() {
		t.Errorf("last %v", last)
	}
}

// After a name server's restart the first that it hears of a broker is all of
// its topics, however soon another one is made.
func TestF_NSV_02_FirstRegistrationAfterARestartIsFull(t *testing.T) {
	ns := newNameServer(t)
	cfg := testConfig(t.TempDir())
	e := start(t, cfg, ns.options(&cfg))
	for i := range 50 {
		e.topic(fmt.Sprintf("T%d", i), 1)
	}
	ns.srv.Stop()
	for len(ns.requests) > 0 {
		<-ns.requests
	}
	e.topic("T50", 1)
	ns.start()
	r := ns.next(t)
	if !r.GetFull() {
		t.Fatalf("a restarted name server heard %v first", r)
	}
	if len(r.GetTopics()) != 51 {
		t.Errorf("%d topics in the first registration", len(r.GetTopics()))
	}
}

func TestNameServerThatMissedADeltaGetsEverything(t *testing.T) {
	ns := newNameServer(t)
	cfg := testConfig(t.TempDir())
	e := start(t, cfg, ns.options(&cfg))
	ns.next(t)
	e.topic("A", 1)
	ns.next(t)
	ns.mu.Lock()
	once := true
	ns.answer = func(r *tacitv1.RegisterRequest) *tacitv1.RegisterResponse {
		defer func() { once = false }()
		return &tacitv1.RegisterResponse{Seq: r.GetSeq(), NeedFull: once}
	}
	ns.mu.Unlock()
	if r := ns.next(t); !r.GetFull() || len(r.GetTopics()) != 1 {
		t.Errorf("got %v", r)
	}
}

// A name server that knows a newer life of this broker is outdone: before the
// start if it can be asked, else as soon as it says so, and members come again.
func TestHigherEpochOfTheSameNameIsExceeded(t *testing.T) {
	ns := newNameServer(t)
	far := uint64(time.Now().Add(24 * time.Hour).UnixMilli())
	ns.routes = &tacitv1.GetRoutesResponse{Brokers: []*tacitv1.BrokerEntry{{Broker: "b1", Address: "a:1", BrokerEpoch: far}}}
	cfg := testConfig(t.TempDir())
	e := start(t, cfg, ns.options(&cfg))
	first := ns.next(t)
	if first.GetEntry().GetBrokerEpoch() <= far {
		t.Fatalf("epoch %d, known was %d", first.GetEntry().GetBrokerEpoch(), far)
	}
	e.topic("T", 1)
	m, g := e.hold(mq("T", 0))
	farther := far + 1_000_000
	ns.mu.Lock()
	ns.answer = func(r *tacitv1.RegisterRequest) *tacitv1.RegisterResponse {
		resp := &tacitv1.RegisterResponse{Seq: r.GetSeq()}
		if r.GetEntry().GetBrokerEpoch() <= farther {
			resp.SupersededByEpoch = farther
		}
		return resp
	}
	ns.mu.Unlock()
	if r := await(m, (*tacitv1.SessionResponse).GetRefused); r.GetReason() != tacitv1.Reason_REASON_SHUTDOWN {
		t.Errorf("member was told %v", r)
	}
	m = e.openSession(e.conn)
	h := hello("g", "c1", 1, "T")
	h.Held = []*tacitv1.OwnedQueue{{Queue: g.GetQueue(), Epoch: g.GetEpoch()}}
	m.hello(h)
	w := await(m, (*tacitv1.SessionResponse).GetWelcome)
	if w.GetBrokerEpoch() <= farther || len(w.GetGrants()) != 1 || !w.GetGrants()[0].GetKept() {
		t.Errorf("welcome %v", w)
	}
	e.stop()
	// It is stored: the next start goes on from there.
	e = start(t, cfg)
	d, err := e.admin.DescribeBroker(e.ctx(), &tacitv1.DescribeBrokerRequest{})
	if err != nil || d.GetEntry().GetBrokerEpoch() <= w.GetBrokerEpoch() {
		t.Errorf("after a restart %v %v", d, err)
	}
}

// Queues of other brokers reach the view through the routes of any name server.
func TestViewHoldsTheQueuesOfAllBrokers(t *testing.T) {
	ns := newNameServer(t)
	cfg := testConfig(t.TempDir())
	e := start(t, cfg, ns.options(&cfg))
	e.topic("T", 1)
	push := <-ns.watches
	push <- &tacitv1.WatchRoutesResponse{Routes: []*tacitv1.TopicRoute{{Topic: "T", Brokers: []*tacitv1.BrokerRoute{{
		Entry:  &tacitv1.BrokerEntry{Broker: "b2", Address: "x:1", BrokerEpoch: 1, ConfigVersion: 1},
		Config: &tacitv1.TopicConfig{Topic: "T", ReadQueues: 2, WriteQueues: 2, Permission: &tacitv1.Permission{Readable: true, Writable: true}},
	}}}}}
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, "T"))
	await(m, (*tacitv1.SessionResponse).GetWelcome)
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Report{Report: &tacitv1.Report{Topic: "T", Full: true}}})
	deadline := time.Now().Add(20 * time.Second)
	for seq := uint64(1); ; seq++ {
		m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_FetchView{FetchView: &tacitv1.FetchView{Topic: "T", Seq: seq}}})
		a := await(m, (*tacitv1.SessionResponse).GetViewAnswer)
		if qs := a.GetView().GetQueues(); len(qs) == 2 && len(qs[0].GetQueueIds())+len(qs[1].GetQueueIds()) == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("view %v", a)
		}
	}
}

func TestSettingsOutOfRangeAreRefusedTogether(t *testing.T) {
	cfg := Default()
	cfg.Advertise, cfg.MaxBatchBytes, cfg.DefaultQueues = "nowhere", 1, 0
	_, err := New(cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"name", "data directory", "advertised address", "largest batch", "default queues"} {
		if !contains(err, want) {
			t.Errorf("%q is not named in: %v", want, err)
		}
	}
	cfg = testConfig(t.TempDir())
	cfg.NameServers, cfg.Listen = []string{"no port"}, "127.0.0.1:0"
	if _, err := New(cfg); err == nil || !contains(err, "name server") {
		t.Errorf("bad name server: %v", err)
	}
}

func TestDataDirectoryInUseIsRefused(t *testing.T) {
	cfg := testConfig(t.TempDir())
	start(t, cfg)
	cfg.Listen = "127.0.0.1:0"
	if _, err := New(cfg); err == nil || !contains(err, "in use") {
		t.Errorf("got %v", err)
	}
}

// The address that was set always wins; else loopback is told only if there is
// nothing else.
func TestF_IDN_05_LoopbackIsAdvertisedOnlyIfNothingElseExists(t *testing.T) {
	ip := func(s string) net.Addr { return &net.IPNet{IP: net.ParseIP(s), Mask: net.CIDRMask(24, 32)} }
	any4 := &net.TCPAddr{IP: net.IPv4zero, Port: 10911}
	for _, tc := range []struct {
		name, set string
		listen    net.Addr
		own       []net.Addr
		want      string
	}{
		{"set", "lb:1", any4, []net.Addr{ip("10.0.0.5")}, "lb:1"},
		{"LAN before bridge and loopback", "", any4, []net.Addr{ip("127.0.0.1"), ip("172.17.0.1"), ip("192.168.7.9")}, "192.168.7.9:10911"},
		{"bridge before loopback", "", any4, []net.Addr{ip("127.0.0.1"), ip("172.17.0.1")}, "172.17.0.1:10911"},
		{"only loopback", "", any4, []net.Addr{ip("127.0.0.1")}, "127.0.0.1:10911"},
		{"nothing", "", any4, nil, "127.0.0.1:10911"},
		{"what is listened on", "", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7}, []net.Addr{ip("10.0.0.5")}, "127.0.0.1:7"},
		{"IPv6", "", &net.TCPAddr{IP: net.IPv6unspecified, Port: 7}, []net.Addr{ip("::1"), ip("2001:db8::1")}, "[2001:db8::1]:7"},
	} {
		got, err := advertised(tc.set, tc.listen, func() ([]net.Addr, error) { return tc.own, nil })
		if err != nil || got != tc.want {
			t.Errorf("%s: %q %v, want %q", tc.name, got, err, tc.want)
		}
	}
	if _, err := advertised("", any4, func() ([]net.Addr, error) { return nil, errors.New("no") }); err == nil {
		t.Error("no error though no address could be found out")
	}
}

// A data directory is one broker's: under another name its queues would be others.
func TestDirectoryOfAnotherBrokerIsRefused(t *testing.T) {
	cfg := testConfig(t.TempDir())
	start(t, cfg).stop()
	cfg.Name = "b2"
	_, err := New(cfg, WithListener(bufconn.Listen(1<<20)))
	if err == nil || !strings.Contains(err.Error(), `belongs to broker "b1", not to "b2"`) {
		t.Errorf("error %v", err)
	}
	cfg.Name = "b1"
	start(t, cfg).stop()
}

// keepTable makes ns behave like a name server in what it knows of brokers.
func (ns *nameServer) keepTable() {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.answer = func(r *tacitv1.RegisterRequest) *tacitv1.RegisterResponse {
		resp := &tacitv1.RegisterResponse{Seq: r.GetSeq()}
		known := uint64(0)
		if b := ns.routes.GetBrokers(); len(b) > 0 {
			known = b[0].GetBrokerEpoch()
		}
		if e := r.GetEntry(); e.GetBrokerEpoch() < known {
			resp.SupersededByEpoch = known
		} else {
			ns.routes = &tacitv1.GetRoutesResponse{Brokers: []*tacitv1.BrokerEntry{e}}
		}
		return resp
	}
}

// Both would take a higher epoch, and end all sessions, every few seconds.
func TestNewcomerOfTwoBrokersWithOneNameGivesUp(t *testing.T) {
	ns := newNameServer(t)
	ns.keepTable()
	first := testConfig(t.TempDir())
	first.Advertise = "first:1"
	a := start(t, first, ns.options(&first))
	ns.next(t)

	second := testConfig(t.TempDir())
	second.Advertise = "second:2"
	through := ns.options(&second)
	b, err := New(second, through, WithListener(bufconn.Listen(1<<16)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = b.Run(ctx)
	if !errors.Is(err, ErrNameInUse) {
		t.Fatalf("the newcomer ended with %v", err)
	}
	for _, part := range []string{`"b1"`, "first:1", "second:2"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: does not name %s", err, part)
		}
	}
	if err := a.srv.Ready(); err != nil {
		t.Errorf("the first: %v", err)
	}
}

func TestRivalsAreCountedWithinAMinute(t *testing.T) {
	for _, tc := range []struct {
		name     string
		newcomer bool
		every    time.Duration
		want     int // the call that gives up; 0: none of 20
	}{
		{"first", false, time.Second, rivalLimit},
		{"newcomer", true, time.Second, newcomerLimit},
		{"clock set back now and then", true, rivalTime / 2, 0},
	} {
		r := &registrar{newcomer: tc.newcomer}
		at, got := time.Now(), 0
		for i := 1; i <= 20 && got == 0; i++ {
			if r.rivalled(at) {
				got = i
			}
			at = at.Add(tc.every)
		}
		if got != tc.want {
			t.Errorf("%s: gives up at %d, want %d", tc.name, got, tc.want)
		}
	}
}
