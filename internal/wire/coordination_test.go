package wire

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

func (g gen) queues() []allocate.Queue {
	return nilIfEmpty(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) allocate.Queue { return gen{t}.queue() }), 0, 4).Draw(g.T, "queues"))
}

func (g gen) strings(one func(gen) string) []string {
	return nilIfEmpty(rapid.SliceOfN(rapid.Custom(func(t *rapid.T) string { return one(gen{t}) }), 0, 4).Draw(g.T, "strings"))
}

func nilIfEmpty[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return s
}

func (g gen) identity() coordination.Identity {
	return coordination.Identity{Group: g.topic(), MemberID: g.opt(), Instance: g.opt(), Generation: g.epoch()}
}

func (g gen) groupSubscription() coordination.Subscription {
	return coordination.Subscription{Topics: g.strings(gen.topic), Owned: g.queues(), Generation: g.epoch(), Rack: g.opt()}
}

func (g gen) requests() []coordination.Request {
	assignments := make([]coordination.Assignment, rapid.IntRange(1, 3).Draw(g.T, "assignments"))
	for i := range assignments {
		assignments[i] = coordination.Assignment{MemberID: g.id(), Queues: g.queues()}
	}
	beat := coordination.ConsumerHeartbeat{
		Identity: g.identity(), ClientID: g.id(), Rack: g.opt(), RebalanceTimeout: g.timeout(), Topics: g.strings(gen.topic), Assignor: g.opt(),
		Owned: g.queues(), HasOwned: g.bool(), Leaving: coordination.Leaving(rapid.IntRange(0, 2).Draw(g.T, "leaving")), Exceed: g.epoch(),
	}
	if beat.Topics == nil && g.bool() {
		beat.Topics = []string{} // none, which is another thing than unchanged
	}
	return []coordination.Request{
		coordination.Join{
			Identity: g.identity(), ClientID: g.id(), SessionTimeout: g.timeout(), RebalanceTimeout: g.timeout(), Assignors: g.strings(gen.id),
			Subscription: g.groupSubscription(), Reason: g.text(), Exceed: g.epoch(),
		},
		coordination.Sync{Identity: g.identity(), Assignments: assignments},
		coordination.Heartbeat{Identity: g.identity()},
		coordination.Leave{Identity: g.identity(), Members: []coordination.Identity{g.identity()}, Reason: g.text()},
		beat,
		coordination.Resume{
			Identity: g.identity(), ClientID: g.id(), SessionTimeout: g.timeout(), RebalanceTimeout: g.timeout(), Assignors: g.strings(gen.id), Assignor: g.opt(),
			Subscription: g.groupSubscription(), Leader: g.opt(), Assigned: g.queues(), Consumer: g.bool(),
		},
	}
}

func (g gen) result() coordination.Result {
	return coordination.Result{Code: coordination.Code(rapid.Int16().Draw(g.T, "code")), Text: g.text()}
}

func (g gen) answers() []coordination.Answer {
	return []coordination.Answer{
		coordination.JoinAnswer{
			Result: g.result(), MemberID: g.opt(), Generation: g.epoch(), Assignor: g.opt(), Leader: g.opt(), SkipAssignment: g.bool(),
			Members: []coordination.Joined{{MemberID: g.id(), Instance: g.opt(), Subscription: g.groupSubscription()}},
		},
		coordination.SyncAnswer{Result: g.result(), Queues: g.queues()},
		coordination.HeartbeatAnswer{Result: g.result()},
		coordination.LeaveAnswer{Result: g.result(), Members: []coordination.Result{g.result()}},
		coordination.ConsumerHeartbeatAnswer{
			Result: g.result(), MemberID: g.opt(), Generation: g.epoch(), Interval: g.timeout(), Queues: g.queues(), HasQueues: g.bool(),
		},
		coordination.ResumeAnswer{Result: g.result()},
	}
}

func TestEveryRequestToACoordinatorComesBackEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := gen{t}
		for _, r := range g.requests() {
			m := travel(t, CoordinateRequest(7, r))
			got, err := ToCoordinationRequest(m)
			if err != nil {
				t.Fatalf("%#v: %v", r, err)
			}
			if m.GetId() != 7 || !reflect.DeepEqual(got, r) {
				t.Fatalf("sent %#v\n got %#v", r, got)
			}
		}
		for _, a := range g.answers() {
			got, err := ToCoordinationAnswer(travel(t, CoordinateResponse(7, a)))
			if err != nil {
				t.Fatalf("%#v: %v", a, err)
			}
			if !reflect.DeepEqual(got, a) {
				t.Fatalf("sent %#v\n got %#v", a, got)
			}
		}
	})
}

func TestRequestsToACoordinatorNameTheBadField(t *testing.T) {
	who := &tacitv1.GroupIdentity{Group: "g"}
	for want, m := range map[string]*tacitv1.CoordinateRequest{
		"identity.group": {},
		"request":        {Identity: who},
		"join.client_id": {Identity: who, Request: &tacitv1.CoordinateRequest_Join{Join: &tacitv1.JoinGroup{}}},
		"join.session_timeout": {Identity: who, Request: &tacitv1.CoordinateRequest_Join{Join: &tacitv1.JoinGroup{
			ClientId: "c", SessionTimeout: durationpb.New(48 * time.Hour),
		}}},
		"join.subscription.topics[0].topic": {Identity: who, Request: &tacitv1.CoordinateRequest_Join{Join: &tacitv1.JoinGroup{
			ClientId: "c", Subscription: &tacitv1.GroupSubscription{Topics: []string{"a b"}},
		}}},
		"sync.assignments[0].queues[0].queue": {Identity: who, Request: &tacitv1.CoordinateRequest_Sync{Sync: &tacitv1.SyncGroup{
			Assignments: []*tacitv1.GroupAssignment{{MemberId: "m", Queues: []*tacitv1.MessageQueue{nil}}},
		}}},
		"consumer_heartbeat.leaving": {Identity: who, Request: &tacitv1.CoordinateRequest_ConsumerHeartbeat{
			ConsumerHeartbeat: &tacitv1.ConsumerGroupHeartbeat{ClientId: "c", Leaving: 3},
		}},
		"resume.assignors[0].assignor": {Identity: who, Request: &tacitv1.CoordinateRequest_Resume{Resume: &tacitv1.ResumeGroup{
			ClientId: "c", Assignors: []string{""},
		}}},
	} {
		_, err := ToCoordinationRequest(m)
		if fe, ok := errors.AsType[*rpcerr.FieldError](err); !ok || fe.Field != want {
			t.Errorf("%v, want an error of %q", err, want)
		}
	}
}

func FuzzCoordinateRequest(f *testing.F) {
	all := rapid.Custom(func(t *rapid.T) []coordination.Request { return (gen{t}).requests() })
	for seed := range 3 {
		for _, r := range all.Example(seed) {
			b, err := proto.Marshal(CoordinateRequest(1, r))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m tacitv1.CoordinateRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		r, err := ToCoordinationRequest(&m)
		if err != nil {
			return
		}
		again, err := ToCoordinationRequest(CoordinateRequest(m.GetId(), r))
		if err != nil || !reflect.DeepEqual(again, r) {
			t.Errorf("%#v came back as %#v: %v", r, again, err)
		}
	})
}
