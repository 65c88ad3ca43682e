package admin

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// fakeNameServer says what it is told to say.
type fakeNameServer struct {
	tacitv1.UnimplementedNameServerServiceServer
	answer *tacitv1.GetRoutesResponse
}

func (f *fakeNameServer) GetRoutes(context.Context, *tacitv1.GetRoutesRequest) (*tacitv1.GetRoutesResponse, error) {
	return f.answer, nil
}

// fakeBroker answers from its fields; what is nil is not found.
type fakeBroker struct {
	tacitv1.UnimplementedAdminServiceServer
	tacitv1.UnimplementedDataServiceServer
	name string

	mu      sync.Mutex
	topics  map[string]*tacitv1.TopicInfo
	groups  map[string]*tacitv1.DescribeGroupResponse
	offset  int64 // FindOffset's answer
	puts    []*tacitv1.PutTopicRequest
	resets  []*tacitv1.ResetOffsetsRequest
	backlog bool // queues that are to go hold unread messages
	hang    bool
	deny    bool // offsets are not reset
}

func (f *fakeBroker) DescribeBroker(ctx context.Context, _ *tacitv1.DescribeBrokerRequest) (*tacitv1.DescribeBrokerResponse, error) {
	if f.hang {
		<-ctx.Done()
	}
	return &tacitv1.DescribeBrokerResponse{Entry: &tacitv1.BrokerEntry{Broker: f.name, BrokerEpoch: 7}, Version: "v1", Writable: true}, nil
}

func (f *fakeBroker) ListTopics(context.Context, *tacitv1.ListTopicsRequest) (*tacitv1.ListTopicsResponse, error) {
	resp := &tacitv1.ListTopicsResponse{}
	for _, t := range f.topics {
		resp.Topics = append(resp.Topics, t)
	}
	return resp, nil
}

func (f *fakeBroker) ListGroups(context.Context, *tacitv1.ListGroupsRequest) (*tacitv1.ListGroupsResponse, error) {
	resp := &tacitv1.ListGroupsResponse{}
	for name := range f.groups {
		resp.Groups = append(resp.Groups, &tacitv1.GroupInfo{Group: name})
	}
	return resp, nil
}

func (f *fakeBroker) DescribeGroup(_ context.Context, req *tacitv1.DescribeGroupRequest) (*tacitv1.DescribeGroupResponse, error) {
	if g := f.groups[req.GetGroup()]; g != nil {
		return g, nil
	}
	return nil, rpcerr.ErrGroupNotFound
}

func (f *fakeBroker) PutTopic(_ context.Context, req *tacitv1.PutTopicRequest) (*tacitv1.PutTopicResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.puts = append(f.puts, req)
	if t := f.topics[req.GetConfig().GetTopic()]; t != nil {
		if req.GetCreateOnly() {
			return nil, rpcerr.ErrTopicExists
		}
		if f.backlog && !req.GetForce() && req.GetConfig().GetReadQueues() < t.GetConfig().GetReadQueues() {
			return nil, rpcerr.ErrUnreadBacklog
		}
	}
	return &tacitv1.PutTopicResponse{Config: req.GetConfig()}, nil
}

func (f *fakeBroker) ResetOffsets(_ context.Context, req *tacitv1.ResetOffsetsRequest) (*tacitv1.ResetOffsetsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deny {
		return nil, rpcerr.ErrGroupActive
	}
	f.resets = append(f.resets, req)
	resp := &tacitv1.ResetOffsetsResponse{}
	for _, o := range req.GetOffsets() {
		resp.Changes = append(resp.Changes, &tacitv1.ResetOffsetsResponse_Change{Queue: o.GetQueue(), Before: 3, HadBefore: true, After: o.GetOffset()})
	}
	return resp, nil
}

func (f *fakeBroker) FindOffset(context.Context, *tacitv1.FindOffsetRequest) (*tacitv1.FindOffsetResponse, error) {
	return &tacitv1.FindOffsetResponse{Offset: f.offset}, nil
}

// fakeCluster is two brokers, a and b, and a name server that lists them and c,
// which is dead.
type fakeCluster struct {
	a, b *fakeBroker
	ns   *fakeNameServer
	*Client
}

func serve(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(rpcerr.ServerOptions(nil)...)
	register(srv)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(lis) }()
	t.Cleanup(func() { srv.Stop(); <-ended })
	return lis.Addr().String()
}

// deadAddress is where nobody listens.
func deadAddress(t *testing.T) string {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

func newFakeCluster(t *testing.T, withDead bool) *fakeCluster {
	t.Helper()
	f := &fakeCluster{ns: &fakeNameServer{answer: &tacitv1.GetRoutesResponse{}}}
	names := []string{"a", "b"}
	if withDead {
		names = append(names, "c")
	}
	orders := &tacitv1.TopicRoute{Topic: "orders"}
	for _, name := range names {
		address := ""
		if name == "c" {
			address = deadAddress(t)
		} else {
			b := &fakeBroker{
				name:   name,
				topics: map[string]*tacitv1.TopicInfo{"orders": topicInfo("orders", name, 10, 5)},
				groups: make(map[string]*tacitv1.DescribeGroupResponse),
			}
			address = serve(t, func(s *grpc.Server) {
				tacitv1.RegisterAdminServiceServer(s, b)
				tacitv1.RegisterDataServiceServer(s, b)
			})
			if name == "a" {
				f.a = b
			} else {
				f.b = b
			}
		}
		entry := &tacitv1.BrokerEntry{Broker: name, Address: address, BrokerEpoch: 5, ConfigVersion: 1}
		f.ns.answer.Brokers = append(f.ns.answer.Brokers, entry)
		orders.Brokers = append(orders.Brokers, &tacitv1.BrokerRoute{Entry: entry, Config: topicConfig("orders", 2, 2)})
	}
	f.ns.answer.Routes = []*tacitv1.TopicRoute{orders}
	ns := serve(t, func(s *grpc.Server) { tacitv1.RegisterNameServerServiceServer(s, f.ns) })
	c, err := Open(Config{NameServers: []string{ns}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	f.Client = c
	return f
}

func topicConfig(topic string, read, write int32) *tacitv1.TopicConfig {
	return &tacitv1.TopicConfig{Topic: topic, ReadQueues: read, WriteQueues: write, Permission: &tacitv1.Permission{Readable: true, Writable: true}}
}

// topicInfo has two queues with these ends and 1 as their first offset.
func topicInfo(topic, broker string, ends ...int64) *tacitv1.TopicInfo {
	info := &tacitv1.TopicInfo{Config: topicConfig(topic, int32(len(ends)), int32(len(ends)))}
	for id, end := range ends {
		info.Queues = append(info.Queues, &tacitv1.QueueInfo{
			Queue: &tacitv1.MessageQueue{Topic: topic, Broker: broker, QueueId: int32(id)}, MinOffset: 1, MaxOffset: end,
		})
	}
	return info
}

// lease is a lease of queue id of topic orders with 1 and 10 as its bounds;
// committed below 0 is none.
func lease(broker string, id int32, holder string, committed int64) *tacitv1.LeaseInfo {
	return &tacitv1.LeaseInfo{
		Queue:  &tacitv1.MessageQueue{Topic: "orders", Broker: broker, QueueId: id},
		Holder: holder, Epoch: &tacitv1.Epoch{Broker: 5, Counter: 9},
		Committed: max(0, committed), HasCommitted: committed >= 0, MinOffset: 1, MaxOffset: 10,
	}
}

func describe(broker string, sessions []string, leases ...*tacitv1.LeaseInfo) *tacitv1.DescribeGroupResponse {
	r := &tacitv1.DescribeGroupResponse{Group: "g", Broker: broker, Mode: tacitv1.HandOver_HAND_OVER_EXCLUSIVE, Leases: leases}
	for _, s := range sessions {
		r.Sessions = append(r.Sessions, &tacitv1.SessionInfo{
			ClientId: s, Host: "10.0.0." + s, Subscriptions: []*tacitv1.Subscription{{Topic: "orders", Filter: "*"}},
		})
	}
	return r
}

// view adds a view of topic orders to a description.
func view(r *tacitv1.DescribeGroupResponse, warming, settled bool, members ...string) *tacitv1.DescribeGroupResponse {
	v := session.View{Topic: "orders", Version: session.Version{Broker: r.GetBroker(), Epoch: 5, Counter: 3}}
	for _, id := range members {
		v.Members = append(v.Members, session.Member{ClientID: id})
	}
	r.Views = append(r.Views, &tacitv1.GroupView{View: wire.View(v), Warming: warming, Settled: settled, Strategy: "Sticky"})
	return r
}

func values[T, V any](list []T, f func(T) V) []V {
	return slices.Collect(func(yield func(V) bool) {
		for _, t := range list {
			if !yield(f(t)) {
				return
			}
		}
	})
}
