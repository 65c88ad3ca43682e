package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// Limits of requests to a coordinator.
const (
	// MaxAssignors of one member.
	MaxAssignors = 32
	// MaxRebalanceTimeout of a member: Kafka's max.poll.interval.ms is an int32.
	MaxRebalanceTimeout = 24 * time.Hour
	// MaxMemberID is the length of a member id, in bytes: a client id and what the
	// coordinator adds.
	MaxMemberID = message.MaxClientIDLength + 64
)

func identity(i coordination.Identity) *tacitv1.GroupIdentity {
	return &tacitv1.GroupIdentity{Group: i.Group, MemberId: i.MemberID, Instance: i.Instance, Generation: Epoch(i.Generation)}
}

func toIdentity(m *tacitv1.GroupIdentity) (coordination.Identity, error) {
	i := coordination.Identity{Group: m.GetGroup(), MemberID: m.GetMemberId(), Instance: m.GetInstance(), Generation: ToEpoch(m.GetGeneration())}
	if err := message.CheckGroup(i.Group); err != nil {
		return i, err
	}
	return i, checkMember(i.MemberID, i.Instance)
}

func checkMember(id, instance string) error {
	if len(id) > MaxMemberID {
		return rpcerr.Invalid("member_id", "of %d bytes: must be at most %d bytes", len(id), MaxMemberID)
	}
	if instance == "" {
		return nil
	}
	if err := message.CheckClientID(instance); err != nil {
		return fieldOf("instance", err)
	}
	return nil
}

func subscription(s coordination.Subscription) *tacitv1.GroupSubscription {
	return &tacitv1.GroupSubscription{Topics: s.Topics, Owned: Queues(s.Owned), Generation: Epoch(s.Generation), Rack: s.Rack}
}

func toSubscription(m *tacitv1.GroupSubscription) (s coordination.Subscription, err error) {
	s.Generation, s.Rack = ToEpoch(m.GetGeneration()), m.GetRack()
	if s.Topics, err = toTopics(m.GetTopics()); err != nil {
		return s, err
	}
	if s.Owned, err = ToQueues("owned", m.GetOwned()); err != nil {
		return s, err
	}
	return s, checkName("rack", s.Rack, 0)
}

func toTopics(topics []string) ([]string, error) {
	return unlist("topics", topics, MaxSubscriptions, func(t string) (string, error) { return t, message.CheckTopic(t) })
}

func toAssignors(names []string) ([]string, error) {
	return unlist("assignors", names, MaxAssignors, func(n string) (string, error) { return n, checkName("assignor", n, 1) })
}

func assignment(a coordination.Assignment) *tacitv1.GroupAssignment {
	return &tacitv1.GroupAssignment{MemberId: a.MemberID, Queues: Queues(a.Queues)}
}

func toAssignment(m *tacitv1.GroupAssignment) (coordination.Assignment, error) {
	queues, err := ToQueues("queues", m.GetQueues())
	if err == nil {
		err = checkMember(m.GetMemberId(), "")
	}
	return coordination.Assignment{MemberID: m.GetMemberId(), Queues: queues}, err
}

// CoordinateRequest encodes a request to a coordinator.
func CoordinateRequest(id uint64, req coordination.Request) *tacitv1.CoordinateRequest {
	m := &tacitv1.CoordinateRequest{Id: id, Identity: identity(req.Who())}
	switch r := req.(type) {
	case coordination.Join:
		m.Request = &tacitv1.CoordinateRequest_Join{Join: &tacitv1.JoinGroup{
			ClientId: r.ClientID, SessionTimeout: duration(r.SessionTimeout), RebalanceTimeout: duration(r.RebalanceTimeout),
			Assignors: r.Assignors, Subscription: subscription(r.Subscription), Reason: r.Reason, Exceed: Epoch(r.Exceed),
		}}
	case coordination.Sync:
		m.Request = &tacitv1.CoordinateRequest_Sync{Sync: &tacitv1.SyncGroup{Assignments: list(r.Assignments, assignment)}}
	case coordination.Heartbeat:
		m.Request = &tacitv1.CoordinateRequest_Heartbeat{Heartbeat: &tacitv1.GroupHeartbeat{}}
	case coordination.Leave:
		m.Request = &tacitv1.CoordinateRequest_Leave{Leave: &tacitv1.LeaveGroup{Members: list(r.Members, identity), Reason: r.Reason}}
	case coordination.ConsumerHeartbeat:
		m.Request = &tacitv1.CoordinateRequest_ConsumerHeartbeat{ConsumerHeartbeat: &tacitv1.ConsumerGroupHeartbeat{
			ClientId: r.ClientID, Rack: r.Rack, RebalanceTimeout: duration(r.RebalanceTimeout), Topics: r.Topics, HasTopics: r.Topics != nil,
			Assignor: r.Assignor, Owned: Queues(r.Owned), HasOwned: r.HasOwned, Leaving: tacitv1.GroupLeaving(r.Leaving), Exceed: Epoch(r.Exceed),
		}}
	case coordination.Resume:
		m.Request = &tacitv1.CoordinateRequest_Resume{Resume: &tacitv1.ResumeGroup{
			ClientId: r.ClientID, SessionTimeout: duration(r.SessionTimeout), RebalanceTimeout: duration(r.RebalanceTimeout),
			Assignors: r.Assignors, Assignor: r.Assignor, Subscription: subscription(r.Subscription), Leader: r.Leader,
			Assigned: Queues(r.Assigned), Consumer: r.Consumer,
		}}
	}
	return m
}

// ToCoordinationRequest decodes a request to a coordinator.
func ToCoordinationRequest(m *tacitv1.CoordinateRequest) (coordination.Request, error) {
	who, err := toIdentity(m.GetIdentity())
	if err != nil {
		return nil, rpcerr.In(err, "identity")
	}
	switch r := m.GetRequest().(type) {
	case *tacitv1.CoordinateRequest_Join:
		return named("join", r.Join, func(m *tacitv1.JoinGroup) (coordination.Request, error) { return toJoin(who, m) })
	case *tacitv1.CoordinateRequest_Sync:
		return named("sync", r.Sync, func(m *tacitv1.SyncGroup) (coordination.Request, error) {
			all, err := unlist("assignments", m.GetAssignments(), MaxListed, toAssignment)
			return coordination.Sync{Identity: who, Assignments: all}, err
		})
	case *tacitv1.CoordinateRequest_Heartbeat:
		return coordination.Heartbeat{Identity: who}, nil
	case *tacitv1.CoordinateRequest_Leave:
		return named("leave", r.Leave, func(m *tacitv1.LeaveGroup) (coordination.Request, error) {
			members, err := unlist("members", m.GetMembers(), MaxListed, toIdentity)
			return coordination.Leave{Identity: who, Members: members, Reason: cut(m.GetReason())}, err
		})
	case *tacitv1.CoordinateRequest_ConsumerHeartbeat:
		return named("consumer_heartbeat", r.ConsumerHeartbeat, func(m *tacitv1.ConsumerGroupHeartbeat) (coordination.Request, error) {
			return toConsumerHeartbeat(who, m)
		})
	case *tacitv1.CoordinateRequest_Resume:
		return named("resume", r.Resume, func(m *tacitv1.ResumeGroup) (coordination.Request, error) { return toResume(who, m) })
	}
	return nil, rpcerr.Invalid("request", "is missing or not known")
}

func toJoin(who coordination.Identity, m *tacitv1.JoinGroup) (coordination.Request, error) {
	r := coordination.Join{Identity: who, ClientID: m.GetClientId(), Reason: cut(m.GetReason()), Exceed: ToEpoch(m.GetExceed())}
	err := checkClient(r.ClientID)
	if err != nil {
		return nil, err
	}
	if r.SessionTimeout, r.RebalanceTimeout, err = toTimeouts(m); err != nil {
		return nil, err
	}
	if r.Assignors, err = toAssignors(m.GetAssignors()); err != nil {
		return nil, err
	}
	if r.Subscription, err = toSubscription(m.GetSubscription()); err != nil {
		return nil, rpcerr.In(err, "subscription")
	}
	return r, nil
}

func checkClient(id string) error {
	if err := message.CheckClientID(id); err != nil {
		return fieldOf("client_id", err)
	}
	return nil
}

// toTimeouts decodes the two timeouts of a join or resume.
func toTimeouts(m interface {
	GetSessionTimeout() *durationpb.Duration
	GetRebalanceTimeout() *durationpb.Duration
},
) (sessionTimeout, rebalanceTimeout time.Duration, err error) {
	if sessionTimeout, err = toDuration("session_timeout", m.GetSessionTimeout(), MinSessionTimeout, MaxSessionTimeout); err != nil {
		return 0, 0, err
	}
	rebalanceTimeout, err = toDuration("rebalance_timeout", m.GetRebalanceTimeout(), MinSessionTimeout, MaxRebalanceTimeout)
	return sessionTimeout, rebalanceTimeout, err
}

func toConsumerHeartbeat(who coordination.Identity, m *tacitv1.ConsumerGroupHeartbeat) (coordination.Request, error) {
	r := coordination.ConsumerHeartbeat{
		Identity: who, ClientID: m.GetClientId(), Rack: m.GetRack(), Assignor: m.GetAssignor(), HasOwned: m.GetHasOwned(), Exceed: ToEpoch(m.GetExceed()),
	}
	err := checkClient(r.ClientID)
	if err != nil {
		return nil, err
	}
	if err := checkName("rack", r.Rack, 0); err != nil {
		return nil, err
	}
	if err := checkName("assignor", r.Assignor, 0); err != nil {
		return nil, err
	}
	if r.RebalanceTimeout, err = toDuration("rebalance_timeout", m.GetRebalanceTimeout(), MinSessionTimeout, MaxRebalanceTimeout); err != nil {
		return nil, err
	}
	if r.Topics, err = toTopics(m.GetTopics()); err != nil {
		return nil, err
	}
	if m.GetHasTopics() && r.Topics == nil {
		r.Topics = []string{}
	}
	if r.Owned, err = ToQueues("owned", m.GetOwned()); err != nil {
		return nil, err
	}
	if m.GetLeaving() < 0 || m.GetLeaving() > tacitv1.GroupLeaving_GROUP_LEAVING_FOR_A_WHILE {
		return nil, rpcerr.Invalid("leaving", "%d: no such way to leave", m.GetLeaving())
	}
	r.Leaving = coordination.Leaving(m.GetLeaving())
	return r, nil
}

func toResume(who coordination.Identity, m *tacitv1.ResumeGroup) (coordination.Request, error) {
	r := coordination.Resume{Identity: who, ClientID: m.GetClientId(), Assignor: m.GetAssignor(), Leader: m.GetLeader(), Consumer: m.GetConsumer()}
	err := checkClient(r.ClientID)
	if err != nil {
		return nil, err
	}
	if r.SessionTimeout, r.RebalanceTimeout, err = toTimeouts(m); err != nil {
		return nil, err
	}
	if r.Assignors, err = toAssignors(m.GetAssignors()); err != nil {
		return nil, err
	}
	if err := checkName("assignor", r.Assignor, 0); err != nil {
		return nil, err
	}
	if err := checkMember(r.Leader, ""); err != nil {
		return nil, rpcerr.In(err, "leader")
	}
	if r.Subscription, err = toSubscription(m.GetSubscription()); err != nil {
		return nil, rpcerr.In(err, "subscription")
	}
	r.Assigned, err = ToQueues("assigned", m.GetAssigned())
	return r, err
}

func result(code coordination.Code, text string) *tacitv1.GroupResult {
	return &tacitv1.GroupResult{Code: int32(code), Text: cut(text)}
}

func toResult(m *tacitv1.GroupResult) (coordination.Result, error) {
	code := coordination.Code(m.GetCode()) //nolint:gosec // compared below
	if int32(code) != m.GetCode() {
		return coordination.Result{}, rpcerr.Invalid("code", "%d: must fit 16 bits", m.GetCode())
	}
	return coordination.Result{Code: code, Text: cut(m.GetText())}, nil
}

func joined(j coordination.Joined) *tacitv1.JoinedMember {
	return &tacitv1.JoinedMember{MemberId: j.MemberID, Instance: j.Instance, Subscription: subscription(j.Subscription)}
}

func toJoined(m *tacitv1.JoinedMember) (coordination.Joined, error) {
	j := coordination.Joined{MemberID: m.GetMemberId(), Instance: m.GetInstance()}
	err := checkMember(j.MemberID, j.Instance)
	if err != nil {
		return j, err
	}
	if j.Subscription, err = toSubscription(m.GetSubscription()); err != nil {
		return j, rpcerr.In(err, "subscription")
	}
	return j, nil
}

// CoordinateResponse encodes an answer of a coordinator.
func CoordinateResponse(id uint64, answer coordination.Answer) *tacitv1.CoordinateResponse {
	m := &tacitv1.CoordinateResponse{Id: id, Result: result(answer.Outcome())}
	switch a := answer.(type) {
	case coordination.JoinAnswer:
		m.Answer = &tacitv1.CoordinateResponse_Join{Join: &tacitv1.JoinGroupAnswer{
			MemberId: a.MemberID, Generation: Epoch(a.Generation), Assignor: a.Assignor, Leader: a.Leader, Members: list(a.Members, joined), SkipAssignment: a.SkipAssignment,
		}}
	case coordination.SyncAnswer:
		m.Answer = &tacitv1.CoordinateResponse_Sync{Sync: &tacitv1.SyncGroupAnswer{Queues: Queues(a.Queues)}}
	case coordination.HeartbeatAnswer:
		m.Answer = &tacitv1.CoordinateResponse_Heartbeat{Heartbeat: &tacitv1.GroupHeartbeatAnswer{}}
	case coordination.LeaveAnswer:
		m.Answer = &tacitv1.CoordinateResponse_Leave{Leave: &tacitv1.LeaveGroupAnswer{
			Members: list(a.Members, func(r coordination.Result) *tacitv1.GroupResult { return result(r.Outcome()) }),
		}}
	case coordination.ConsumerHeartbeatAnswer:
		m.Answer = &tacitv1.CoordinateResponse_ConsumerHeartbeat{ConsumerHeartbeat: &tacitv1.ConsumerGroupHeartbeatAnswer{
			MemberId: a.MemberID, Generation: Epoch(a.Generation), Interval: duration(a.Interval), Queues: Queues(a.Queues), HasQueues: a.HasQueues,
		}}
	case coordination.ResumeAnswer:
		m.Answer = &tacitv1.CoordinateResponse_Resume{Resume: &tacitv1.ResumeGroupAnswer{}}
	}
	return m
}

// ToCoordinationAnswer decodes an answer of a coordinator.
func ToCoordinationAnswer(m *tacitv1.CoordinateResponse) (coordination.Answer, error) {
	res, err := toResult(m.GetResult())
	if err != nil {
		return nil, rpcerr.In(err, "result")
	}
	switch a := m.GetAnswer().(type) {
	case *tacitv1.CoordinateResponse_Join:
		return named("join", a.Join, func(m *tacitv1.JoinGroupAnswer) (coordination.Answer, error) {
			members, err := unlist("members", m.GetMembers(), MaxListed, toJoined)
			return coordination.JoinAnswer{
				Result: res, MemberID: m.GetMemberId(), Generation: ToEpoch(m.GetGeneration()), Assignor: m.GetAssignor(), Leader: m.GetLeader(),
				Members: members, SkipAssignment: m.GetSkipAssignment(),
			}, err
		})
	case *tacitv1.CoordinateResponse_Sync:
		return named("sync", a.Sync, func(m *tacitv1.SyncGroupAnswer) (coordination.Answer, error) {
			queues, err := ToQueues("queues", m.GetQueues())
			return coordination.SyncAnswer{Result: res, Queues: queues}, err
		})
	case *tacitv1.CoordinateResponse_Heartbeat:
		return coordination.HeartbeatAnswer{Result: res}, nil
	case *tacitv1.CoordinateResponse_Leave:
		return named("leave", a.Leave, func(m *tacitv1.LeaveGroupAnswer) (coordination.Answer, error) {
			members, err := unlist("members", m.GetMembers(), MaxListed, toResult)
			return coordination.LeaveAnswer{Result: res, Members: members}, err
		})
	case *tacitv1.CoordinateResponse_ConsumerHeartbeat:
		return named("consumer_heartbeat", a.ConsumerHeartbeat, func(m *tacitv1.ConsumerGroupHeartbeatAnswer) (coordination.Answer, error) {
			queues, err := ToQueues("queues", m.GetQueues())
			if err != nil {
				return nil, err
			}
			interval, err := toDuration("interval", m.GetInterval(), time.Millisecond, MaxSessionTimeout)
			return coordination.ConsumerHeartbeatAnswer{
				Result: res, MemberID: m.GetMemberId(), Generation: ToEpoch(m.GetGeneration()), Interval: interval, Queues: queues, HasQueues: m.GetHasQueues(),
			}, err
		})
	case *tacitv1.CoordinateResponse_Resume:
		return coordination.ResumeAnswer{Result: res}, nil
	}
	return nil, rpcerr.Invalid("answer", "is missing or not known")
}
