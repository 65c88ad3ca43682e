package wire

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// travel marshals m and unmarshals it into an empty message of its type.
func travel[M proto.Message](t interface {
	Helper()
	Fatal(args ...any)
}, m M,
) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out, ok := m.ProtoReflect().New().Interface().(M)
	if !ok {
		t.Fatal("another type")
	}
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEveryFrameComesBackEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := gen{t}
		for _, f := range g.toBroker() {
			got, err := ToBrokerFrame(travel(t, Request(f)))
			if err != nil {
				t.Fatalf("%#v: %v", f, err)
			}
			if !reflect.DeepEqual(got, f) {
				t.Fatalf("sent %#v\n got %#v", f, got)
			}
		}
		for _, f := range g.toMember() {
			got, err := ToMemberFrame(travel(t, Response(f)))
			if err != nil {
				t.Fatalf("%#v: %v", f, err)
			}
			if !reflect.DeepEqual(got, f) {
				t.Fatalf("sent %#v\n got %#v", f, got)
			}
		}
	})
}

// A frame or field that is new in the schema and forgotten here would be lost:
// the drawn frames fill every field of every message they reach.
func TestEveryFieldOfTheSchemaIsUsed(t *testing.T) {
	used := map[protoreflect.FullName]bool{}
	rapid.Check(t, func(t *rapid.T) {
		g := gen{t}
		for _, f := range g.toBroker() {
			mark(used, Request(f).ProtoReflect())
		}
		for _, f := range g.toMember() {
			mark(used, Response(f).ProtoReflect())
		}
	})
	seen := map[protoreflect.FullName]bool{}
	var walk func(d protoreflect.MessageDescriptor)
	walk = func(d protoreflect.MessageDescriptor) {
		if seen[d.FullName()] || d.ParentFile().Package() != "tacit.v1" {
			return
		}
		seen[d.FullName()] = true
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			if !used[f.FullName()] {
				t.Errorf("%s is never set", f.FullName())
			}
			if m := f.Message(); m != nil {
				walk(m)
			}
		}
	}
	walk((&tacitv1.SessionRequest{}).ProtoReflect().Descriptor())
	walk((&tacitv1.SessionResponse{}).ProtoReflect().Descriptor())
	if len(seen) < 30 {
		t.Errorf("walked over %d messages only", len(seen))
	}
}

func mark(used map[protoreflect.FullName]bool, m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		used[f.FullName()] = true
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				mark(used, v.List().Get(i).Message())
			}
		default:
			mark(used, v.Message())
		}
		return true
	})
}

func TestReasonsHaveTheNumbersOfTheSchema(t *testing.T) {
	for n, name := range tacitv1.Reason_name {
		if n == 0 {
			continue
		}
		r, err := toReason(tacitv1.Reason(n))
		if err != nil {
			t.Fatal(err)
		}
		got := "REASON_" + strings.ToUpper(strings.ReplaceAll(r.String(), " ", "_"))
		short := strings.NewReplacer("REASON_STATIC_MEMBER_EXISTS", "REASON_STATIC_EXISTS", "REASON_SESSION_EXPIRED", "REASON_EXPIRED")
		if short.Replace(got) != name {
			t.Errorf("%d is %q here and %s in the schema", n, r, name)
		}
	}
}

func TestRoutesComeBackEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := gen{t}
		want := route.Topic{Name: g.topic()}
		for range rapid.IntRange(0, 3).Draw(t, "hosts") {
			read := rapid.Int32Range(0, route.MaxQueues).Draw(t, "read")
			want.Hosts = append(want.Hosts, route.Host{
				Broker: route.Broker{
					Name: g.broker(), Address: rapid.SampledFrom([]string{"b1:10911", "10.0.0.7:1", "[::1]:65535"}).Draw(t, "address"),
					Cluster: g.optBroker(), Stamp: route.Stamp{Epoch: g.u64() | 1, Version: g.u64()},
				},
				Config: route.Config{
					Topic: want.Name, ReadQueues: read, WriteQueues: rapid.Int32Range(0, read).Draw(t, "write"),
					Readable: g.bool(), Writable: g.bool(),
				},
			})
		}
		got, err := ToTopicRoute(travel(t, TopicRoute(want)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("sent %+v\n got %+v, %v", want, got, err)
		}
	})
}

func TestBadFieldsAreNamed(t *testing.T) {
	queue := func(topic, broker string, id int32) *tacitv1.MessageQueue {
		return &tacitv1.MessageQueue{Topic: topic, Broker: broker, QueueId: id}
	}
	hello := func(change func(*tacitv1.Hello)) *tacitv1.SessionRequest {
		h := &tacitv1.Hello{Group: "g", ClientId: "c"}
		change(h)
		return &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Hello{Hello: h}}
	}
	// view spoils one thing in a view of two members that each own a queue.
	view := func(spoil func(*tacitv1.ViewMembers)) *tacitv1.SessionResponse {
		v := session.View{Topic: "t", Members: make([]session.Member, 2)}
		for i := range v.Members {
			v.Members[i] = session.Member{
				ClientID: strconv.Itoa(i), Offers: []session.Offer{{Strategy: "s"}},
				Owned: []session.Owned{{Queue: allocate.Queue{Topic: "t", Broker: "b", ID: int32(i)}}},
			}
		}
		m := Response(session.ViewAnswer{View: v})
		spoil(m.GetViewAnswer().GetView().GetMembers())
		return m
	}
	long := strings.Repeat("x", 300)
	for _, tc := range []struct {
		field string
		m     *tacitv1.SessionRequest
	}{
		{"frame", nil},
		{"frame", &tacitv1.SessionRequest{}},
		{"hello.group", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Hello{}}},
		{"hello.group", hello(func(h *tacitv1.Hello) { h.Group = "a b" })},
		{"hello.client_id", hello(func(h *tacitv1.Hello) { h.ClientId = "" })},
		{"hello.instance", hello(func(h *tacitv1.Hello) { h.Instance = long })},
		{"hello.mode", hello(func(h *tacitv1.Hello) { h.Mode = 77 })},
		{"hello.session_timeout", hello(func(h *tacitv1.Hello) { h.SessionTimeout = durationpb.New(-time.Second) })},
		{"hello.session_timeout", hello(func(h *tacitv1.Hello) { h.SessionTimeout = durationpb.New(48 * time.Hour) })},
		{"hello.session_timeout", hello(func(h *tacitv1.Hello) { h.SessionTimeout = &durationpb.Duration{Seconds: 1, Nanos: -5} })},
		{"hello.subscriptions[1].topic", hello(func(h *tacitv1.Hello) { h.Subscriptions = []*tacitv1.Subscription{{Topic: "a"}, nil} })},
		{"hello.subscriptions[0].filter", hello(func(h *tacitv1.Hello) {
			h.Subscriptions = []*tacitv1.Subscription{{Topic: "a", Filter: strings.Repeat(long, 20)}}
		})},
		{"hello.offers", hello(func(h *tacitv1.Hello) { h.Offers = make([]*tacitv1.StrategyOffer, MaxOffers+1) })},
		{"hello.offers[0].strategy", hello(func(h *tacitv1.Hello) { h.Offers = []*tacitv1.StrategyOffer{{}} })},
		{"hello.offers[0].data", hello(func(h *tacitv1.Hello) {
			h.Offers = []*tacitv1.StrategyOffer{{Strategy: "s", Data: make([]byte, MaxOfferData+1)}}
		})},
		{"hello.held[0].queue", hello(func(h *tacitv1.Hello) { h.Held = []*tacitv1.OwnedQueue{{}} })},
		{"hello.held[0].queue.queue_id", hello(func(h *tacitv1.Hello) { h.Held = []*tacitv1.OwnedQueue{{Queue: queue("t", "b", -1)}} })},
		{"hello.views[0].version.broker", hello(func(h *tacitv1.Hello) {
			h.Views = []*tacitv1.ViewRef{{Topic: "t", Version: &tacitv1.ViewVersion{Counter: 1}}}
		})},
		{"hello.silent[0].broker", hello(func(h *tacitv1.Hello) { h.Silent = []*tacitv1.Silence{{}} })},
		{"report.topic", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Report{}}},
		{"report.not_owned[0].queue.broker", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Report{Report: &tacitv1.Report{
			Topic: "t", NotOwned: []*tacitv1.MessageQueue{queue("t", "a b", 0)},
		}}}},
		{"fetch_view.topic", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_FetchView{}}},
		{"acquire.view_broker", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Acquire{Acquire: &tacitv1.Acquire{ViewBroker: "\n"}}}},
		{"acquire.queues[0].queue.topic", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Acquire{Acquire: &tacitv1.Acquire{
			Queues: []*tacitv1.MessageQueue{queue("t/x", "b", 0)},
		}}}},
		{"withdraw.queues[0].queue.queue_id", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Withdraw{Withdraw: &tacitv1.Withdraw{
			Queues: []*tacitv1.MessageQueue{queue("t", "b", route.MaxQueues)},
		}}}},
		{"released.leases[0].offset", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Released{Released: &tacitv1.Released{
			Leases: []*tacitv1.LeaseRelease{{Queue: queue("t", "b", 0), Offset: -1, HasOffset: true}},
		}}}},
		{"member_list.client_ids[1].client_id", &tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_MemberList{MemberList: &tacitv1.MemberList{
			Topic: "t", ClientIds: []string{"a", ""},
		}}}},
	} {
		t.Run(tc.field, func(t *testing.T) {
			f, err := ToBrokerFrame(tc.m)
			fe, ok := errors.AsType[*rpcerr.FieldError](err)
			if f != nil || !ok || fe.Field != tc.field {
				t.Errorf("got frame %v and error %v, want one of field %s", f, err, tc.field)
			}
			if len(err.Error()) > 500 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
	for _, tc := range []struct {
		field string
		m     *tacitv1.SessionResponse
	}{
		{"frame", nil},
		{"welcome.broker", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_Welcome{}}},
		{"refused.reason", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_Refused{}}},
		{"refused.reason", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_Refused{Refused: &tacitv1.Refused{Reason: 500}}}},
		{"view_answer.view", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_ViewAnswer{}}},
		{"view_answer.view.topic", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_ViewAnswer{ViewAnswer: &tacitv1.ViewAnswer{View: &tacitv1.View{}}}}},
		{"view_answer.view.members.client_ids[1].client_id", view(func(m *tacitv1.ViewMembers) { m.ClientIds[1] = "" })},
		{"view_answer.view.members.instances", view(func(m *tacitv1.ViewMembers) { m.Instances = []string{"i"} })},
		{"view_answer.view.members.incarnation_counters", view(func(m *tacitv1.ViewMembers) { m.IncarnationCounters = nil })},
		{"view_answer.view.members.offers[0].offers[0].strategy", view(func(m *tacitv1.ViewMembers) { m.Offers[0].Offers[0].Strategy = "" })},
		{"view_answer.view.members.offers_index[1]", view(func(m *tacitv1.ViewMembers) { m.OffersIndex[1] = 1 })},
		{"view_answer.view.members.owned_counts", view(func(m *tacitv1.ViewMembers) { m.OwnedCounts[1] = 0 })},
		{"view_answer.view.members.owned_counts[1]", view(func(m *tacitv1.ViewMembers) { m.OwnedCounts[1] = 1 << 31 })},
		{"view_answer.view.members.owned_queue_ids[1].queue_id", view(func(m *tacitv1.ViewMembers) { m.OwnedQueueIds[1] = -1 })},
		{"view_answer.view.members.owned_brokers[0]", view(func(m *tacitv1.ViewMembers) { m.OwnedBrokers[0] = "a b" })},
		{"view_answer.view.members.owned_brokers_index[0]", view(func(m *tacitv1.ViewMembers) { m.OwnedBrokersIndex[0] = 9 })},
		{"view_answer.view.members.owned_epoch_counters", view(func(m *tacitv1.ViewMembers) { m.OwnedEpochCounters = nil })},
		{"view_answer.view.queues[0].queue_ids[1].queue_id", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_ViewAnswer{ViewAnswer: &tacitv1.ViewAnswer{
			View: &tacitv1.View{Topic: "t", Queues: []*tacitv1.BrokerQueues{{Broker: "b", QueueIds: []int32{1, route.MaxQueues}}}},
		}}}},
		{"group_changed.previous.version.broker", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_GroupChanged{GroupChanged: &tacitv1.GroupChanged{
			Topic: "t", Previous: &tacitv1.ViewVersion{Counter: 4},
		}}}},
		{"granted.grants[0].queue", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_Granted{Granted: &tacitv1.Granted{Grants: []*tacitv1.Grant{nil}}}}},
		{"lease_lost.reason", &tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_LeaseLost{LeaseLost: &tacitv1.LeaseLost{Reason: -1}}}},
	} {
		t.Run(tc.field, func(t *testing.T) {
			f, err := ToMemberFrame(tc.m)
			fe, ok := errors.AsType[*rpcerr.FieldError](err)
			if f != nil || !ok || fe.Field != tc.field {
				t.Errorf("got frame %v and error %v, want one of field %s", f, err, tc.field)
			}
		})
	}
}

// More writable than readable queues would take messages that nobody can read.
func TestTopicConfigsAreChecked(t *testing.T) {
	for _, tc := range []struct {
		field string
		m     *tacitv1.TopicConfig
	}{
		{"topic", nil},
		{"topic", &tacitv1.TopicConfig{Topic: "a b"}},
		{"read_queues", &tacitv1.TopicConfig{Topic: "t", ReadQueues: -1}},
		{"read_queues", &tacitv1.TopicConfig{Topic: "t", ReadQueues: route.MaxQueues + 1}},
		{"write_queues", &tacitv1.TopicConfig{Topic: "t", ReadQueues: 4, WriteQueues: 8}},
		{"write_queues", &tacitv1.TopicConfig{Topic: "t", ReadQueues: 4, WriteQueues: -8}},
	} {
		_, err := ToTopicConfig(tc.m)
		if fe, ok := errors.AsType[*rpcerr.FieldError](err); !ok || fe.Field != tc.field {
			t.Errorf("%v: got %v, want an error of %s", tc.m, err, tc.field)
		}
	}
}

func TestAddressesAreChecked(t *testing.T) {
	for _, good := range []string{"b1:10911", "10.0.0.7:1", "[::1]:65535", "broker-1.tacit.svc.cluster.local:10911"} {
		if err := CheckAddress(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "b1", "b1:", ":1", "b1:0", "b1:65536", "b1:http", "<html>:80", "a b:1", "b1:1:2", strings.Repeat("x", 300) + ":1", "http://x:80"} {
		if err := CheckAddress(bad); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("%q is taken: %v", bad, err)
		}
	}
}

func TestLongTextIsCutAtACharacter(t *testing.T) {
	got := cut(strings.Repeat("é", MaxText))
	if len(got) > MaxText || strings.Contains(got, "\uFFFD") || !strings.HasPrefix(got, "éé") {
		t.Errorf("cut to %d bytes: ...%q", len(got), got[len(got)-4:])
	}
}

func FuzzToBrokerFrame(f *testing.F) {
	f.Add([]byte{})
	frames := rapid.Custom(func(t *rapid.T) []session.ToBroker { return (gen{t}).toBroker() })
	for seed := range 3 {
		for _, frame := range frames.Example(seed) {
			b, err := proto.Marshal(Request(frame))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tacitv1.SessionRequest{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		frame, err := ToBrokerFrame(m)
		if err != nil {
			if !errors.Is(err, rpcerr.ErrInvalidArgument) || frame != nil {
				t.Fatalf("frame %v, error %v", frame, err)
			}
			return
		}
		again, err := ToBrokerFrame(travel(t, Request(frame)))
		if err != nil || !reflect.DeepEqual(again, frame) {
			t.Fatalf("%#v became %#v, %v", frame, again, err)
		}
	})
}

func FuzzToMemberFrame(f *testing.F) {
	f.Add([]byte{})
	frames := rapid.Custom(func(t *rapid.T) []session.ToMember { return (gen{t}).toMember() })
	for seed := range 3 {
		for _, frame := range frames.Example(seed) {
			b, err := proto.Marshal(Response(frame))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tacitv1.SessionResponse{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		frame, err := ToMemberFrame(m)
		if err != nil {
			if !errors.Is(err, rpcerr.ErrInvalidArgument) || frame != nil {
				t.Fatalf("frame %v, error %v", frame, err)
			}
			return
		}
		again, err := ToMemberFrame(travel(t, Response(frame)))
		if err != nil || !reflect.DeepEqual(again, frame) {
			t.Fatalf("%#v became %#v, %v", frame, again, err)
		}
	})
}

func FuzzRoutes(f *testing.F) {
	b, err := proto.Marshal(&tacitv1.WatchRoutesResponse{Full: true, Routes: []*tacitv1.TopicRoute{TopicRoute(route.Topic{
		Name: "t", Hosts: []route.Host{{
			Broker: route.Broker{Name: "b", Address: "b:1", Stamp: route.Stamp{Epoch: 1}},
			Config: route.Config{Topic: "t", ReadQueues: 4, WriteQueues: 4, Readable: true},
		}},
	})}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tacitv1.WatchRoutesResponse{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if u, err := WatchUpdate(m); err == nil {
			route.NewTable().Apply("n", u)
		} else if !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Fatal(err)
		}
	})
}

func TestAppendedFramesAreTheFramesOfTheSchema(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := gen{t}
		for _, f := range g.toMember() {
			b, err := AppendResponse([]byte("before"), f)
			if err != nil {
				t.Fatal(err)
			}
			sameFrame(t, f, b[len("before"):])
		}
		answer := session.ViewAnswer{Seq: g.u64(), Warming: g.bool(), View: g.view()}
		view, err := AppendView(nil, answer.View)
		if err != nil {
			t.Fatal(err)
		}
		sameFrame(t, answer, append(AppendViewAnswer(nil, answer.Seq, answer.Warming, len(view)), view...))
	})
}

func sameFrame(t *rapid.T, f session.ToMember, b []byte) {
	var got tacitv1.SessionResponse
	if err := proto.Unmarshal(b, &got); err != nil {
		t.Fatalf("%#v: %v", f, err)
	}
	if want := Response(f); !proto.Equal(&got, want) {
		t.Fatalf("got %v\nwant %v", &got, want)
	}
}

func BenchmarkAppendHeartbeatAck(b *testing.B) {
	f := session.HeartbeatAck{Seq: 100, Views: []session.ViewState{{
		Topic: "orders", Version: session.Version{Broker: "broker-a", Epoch: 1 << 40, Counter: 300}, Inputs: 1, Owners: 2,
	}}}
	b.ReportAllocs()
	buf := make([]byte, 0, 128)
	for b.Loop() {
		if _, err := AppendResponse(buf, f); err != nil {
			b.Fatal(err)
		}
	}
}

// A view in which each member has a list of offers of its own costs what its size
// does; members with equal lists share one.
func TestDifferentOffersAreListedOnce(t *testing.T) {
	v := session.View{Topic: "t"}
	for i := range 3000 {
		v.Members = append(v.Members, session.Member{
			ClientID: strconv.Itoa(i), Offers: []session.Offer{{Strategy: "Config", Data: []byte(strconv.Itoa(i / 2))}, {Strategy: "Sticky"}},
		})
	}
	m := View(v)
	if got := len(m.GetMembers().GetOffers()); got != 1500 {
		t.Errorf("%d lists of offers, want 1500", got)
	}
	if back, err := ToView(travel(t, m)); err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("came back different: %v", err)
	}
}
