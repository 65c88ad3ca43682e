package wire

import (
	"strings"
	"unicode/utf8"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// Response encodes a frame that a broker sends.
func Response(frame session.ToMember) *tacitv1.SessionResponse {
	m := &tacitv1.SessionResponse{}
	switch f := frame.(type) {
	case session.Welcome:
		m.Frame = &tacitv1.SessionResponse_Welcome{Welcome: &tacitv1.Welcome{
			Broker: f.Broker, BrokerEpoch: f.BrokerEpoch, SessionTimeout: duration(f.SessionTimeout),
			Grants: list(f.Grants, grant), Inherited: list(f.Inherited, Owned),
		}}
	case session.Refused:
		m.Frame = &tacitv1.SessionResponse_Refused{Refused: &tacitv1.Refused{
			Reason: reason(f.Reason), Text: cut(f.Text), Incarnation: Incarnation(f.Incarnation),
		}}
	case session.HeartbeatAck:
		m.Frame = &tacitv1.SessionResponse_HeartbeatAck{HeartbeatAck: &tacitv1.HeartbeatAck{Seq: f.Seq, Views: list(f.Views, viewState)}}
	case session.ViewAnswer:
		m.Frame = &tacitv1.SessionResponse_ViewAnswer{ViewAnswer: &tacitv1.ViewAnswer{Seq: f.Seq, Warming: f.Warming, View: View(f.View)}}
	case session.ViewReady:
		m.Frame = &tacitv1.SessionResponse_ViewReady{ViewReady: &tacitv1.ViewReady{
			Topic: f.Topic, Version: ViewVersion(f.Version), InputsDigest: uint64(f.Inputs),
		}}
	case session.GroupChanged:
		m.Frame = &tacitv1.SessionResponse_GroupChanged{GroupChanged: &tacitv1.GroupChanged{
			Topic: f.Topic, Version: ViewVersion(f.Version), Previous: ViewVersion(f.Previous), Joined: members(f.Topic, f.Joined),
			Left: f.Left, Added: topicQueues(f.Topic, f.Added), Removed: topicQueues(f.Topic, f.Removed),
			InputsDigest: uint64(f.Inputs), OwnersBeforeDigest: uint64(f.OwnersBefore),
		}}
	case session.OwnersChanged:
		m.Frame = &tacitv1.SessionResponse_OwnersChanged{OwnersChanged: &tacitv1.OwnersChanged{
			Topic: f.Topic, Version: ViewVersion(f.Version), OwnersDigest: uint64(f.Owners),
		}}
	case session.Nudge:
		m.Frame = &tacitv1.SessionResponse_Nudge{Nudge: &tacitv1.Nudge{Topic: f.Topic, Queue: Queue(f.Queue)}}
	case session.AskMembers:
		m.Frame = &tacitv1.SessionResponse_AskMembers{AskMembers: &tacitv1.AskMembers{Topic: f.Topic, MembersDigest: uint64(f.Members)}}
	case session.Granted:
		m.Frame = &tacitv1.SessionResponse_Granted{Granted: &tacitv1.Granted{Grants: list(f.Grants, grant)}}
	case session.LeaseWanted:
		m.Frame = &tacitv1.SessionResponse_LeaseWanted{LeaseWanted: &tacitv1.LeaseWanted{Queues: Queues(f.Queues), ViewBroker: f.ViewBroker}}
	case session.Withdrawn:
		m.Frame = &tacitv1.SessionResponse_Withdrawn{Withdrawn: &tacitv1.Withdrawn{Queues: Queues(f.Queues), Reason: reason(f.Reason)}}
	case session.LeaseLost:
		m.Frame = &tacitv1.SessionResponse_LeaseLost{LeaseLost: &tacitv1.LeaseLost{Leases: list(f.Leases, Owned), Reason: reason(f.Reason)}}
	}
	return m
}

// ToMemberFrame decodes a frame of a broker.
func ToMemberFrame(m *tacitv1.SessionResponse) (session.ToMember, error) {
	switch f := m.GetFrame().(type) {
	case *tacitv1.SessionResponse_Welcome:
		return named("welcome", f.Welcome, toWelcome)
	case *tacitv1.SessionResponse_Refused:
		return named("refused", f.Refused, toRefused)
	case *tacitv1.SessionResponse_HeartbeatAck:
		return named("heartbeat_ack", f.HeartbeatAck, toHeartbeatAck)
	case *tacitv1.SessionResponse_ViewAnswer:
		return named("view_answer", f.ViewAnswer, toViewAnswer)
	case *tacitv1.SessionResponse_ViewReady:
		return named("view_ready", f.ViewReady, toViewReady)
	case *tacitv1.SessionResponse_GroupChanged:
		return named("group_changed", f.GroupChanged, toGroupChanged)
	case *tacitv1.SessionResponse_OwnersChanged:
		return named("owners_changed", f.OwnersChanged, toOwnersChanged)
	case *tacitv1.SessionResponse_Nudge:
		return named("nudge", f.Nudge, toNudge)
	case *tacitv1.SessionResponse_AskMembers:
		return named("ask_members", f.AskMembers, toAskMembers)
	case *tacitv1.SessionResponse_Granted:
		return named("granted", f.Granted, toGranted)
	case *tacitv1.SessionResponse_LeaseWanted:
		return named("lease_wanted", f.LeaseWanted, toLeaseWanted)
	case *tacitv1.SessionResponse_Withdrawn:
		return named("withdrawn", f.Withdrawn, toWithdrawn)
	case *tacitv1.SessionResponse_LeaseLost:
		return named("lease_lost", f.LeaseLost, toLeaseLost)
	}
	return nil, rpcerr.Invalid("frame", "is missing or not known")
}

func toWelcome(m *tacitv1.Welcome) (session.ToMember, error) {
	f := session.Welcome{Broker: m.GetBroker(), BrokerEpoch: m.GetBrokerEpoch()}
	err := checkBroker("broker", f.Broker)
	if err != nil {
		return nil, err
	}
	if f.SessionTimeout, err = toDuration("session_timeout", m.GetSessionTimeout(), MinSessionTimeout, MaxSessionTimeout); err != nil {
		return nil, err
	}
	if f.Grants, err = unlist("grants", m.GetGrants(), MaxListed, toGrant); err != nil {
		return nil, err
	}
	if f.Inherited, err = toOwnedList("inherited", m.GetInherited()); err != nil {
		return nil, err
	}
	return f, nil
}

func toRefused(m *tacitv1.Refused) (session.ToMember, error) {
	r, err := toReason(m.GetReason())
	if err == nil && r == 0 {
		err = rpcerr.Invalid("reason", "is missing")
	}
	return session.Refused{Reason: r, Text: cut(m.GetText()), Incarnation: ToIncarnation(m.GetIncarnation())}, err
}

func toHeartbeatAck(m *tacitv1.HeartbeatAck) (session.ToMember, error) {
	views, err := unlist("views", m.GetViews(), MaxListed, toViewState)
	return session.HeartbeatAck{Seq: m.GetSeq(), Views: views}, err
}

func toViewAnswer(m *tacitv1.ViewAnswer) (session.ToMember, error) {
	if m.GetView() == nil && !m.GetWarming() {
		return nil, rpcerr.Invalid("view", "is missing")
	}
	v, err := ToView(m.GetView())
	return session.ViewAnswer{Seq: m.GetSeq(), Warming: m.GetWarming(), View: v}, err
}

func toViewReady(m *tacitv1.ViewReady) (session.ToMember, error) {
	v, err := toTopicVersion(m.GetTopic(), m.GetVersion())
	return session.ViewReady{Topic: m.GetTopic(), Version: v, Inputs: session.Digest(m.GetInputsDigest())}, err
}

func toGroupChanged(m *tacitv1.GroupChanged) (session.ToMember, error) {
	f := session.GroupChanged{
		Topic: m.GetTopic(), Inputs: session.Digest(m.GetInputsDigest()), OwnersBefore: session.Digest(m.GetOwnersBeforeDigest()),
	}
	var err error
	if f.Version, err = toTopicVersion(f.Topic, m.GetVersion()); err != nil {
		return nil, err
	}
	if f.Previous, err = ToVersion(m.GetPrevious()); err != nil {
		return nil, rpcerr.In(err, "previous")
	}
	if f.Joined, err = toMembers(f.Topic, m.GetJoined()); err != nil {
		return nil, rpcerr.In(err, "joined")
	}
	if f.Left, err = toClientIDs("left", m.GetLeft()); err != nil {
		return nil, err
	}
	if f.Added, err = toTopicQueues("added", f.Topic, m.GetAdded()); err != nil {
		return nil, err
	}
	if f.Removed, err = toTopicQueues("removed", f.Topic, m.GetRemoved()); err != nil {
		return nil, err
	}
	return f, nil
}

func toOwnersChanged(m *tacitv1.OwnersChanged) (session.ToMember, error) {
	v, err := toTopicVersion(m.GetTopic(), m.GetVersion())
	return session.OwnersChanged{Topic: m.GetTopic(), Version: v, Owners: session.Digest(m.GetOwnersDigest())}, err
}

func toNudge(m *tacitv1.Nudge) (session.ToMember, error) {
	if err := message.CheckTopic(m.GetTopic()); err != nil {
		return nil, err
	}
	q, err := ToQueue(m.GetQueue())
	return session.Nudge{Topic: m.GetTopic(), Queue: q}, err
}

func toAskMembers(m *tacitv1.AskMembers) (session.ToMember, error) {
	return session.AskMembers{Topic: m.GetTopic(), Members: session.Digest(m.GetMembersDigest())}, message.CheckTopic(m.GetTopic())
}

func toGranted(m *tacitv1.Granted) (session.ToMember, error) {
	grants, err := unlist("grants", m.GetGrants(), MaxListed, toGrant)
	return session.Granted{Grants: grants}, err
}

func toLeaseWanted(m *tacitv1.LeaseWanted) (session.ToMember, error) {
	queues, err := toAsked(m.GetQueues(), m.GetViewBroker())
	return session.LeaseWanted{Queues: queues, ViewBroker: m.GetViewBroker()}, err
}

func toWithdrawn(m *tacitv1.Withdrawn) (session.ToMember, error) {
	queues, err := ToQueues("queues", m.GetQueues())
	if err != nil {
		return nil, err
	}
	r, err := toReason(m.GetReason())
	return session.Withdrawn{Queues: queues, Reason: r}, err
}

func toLeaseLost(m *tacitv1.LeaseLost) (session.ToMember, error) {
	leases, err := toOwnedList("leases", m.GetLeases())
	if err != nil {
		return nil, err
	}
	r, err := toReason(m.GetReason())
	return session.LeaseLost{Leases: leases, Reason: r}, err
}

func toTopicVersion(topic string, m *tacitv1.ViewVersion) (session.Version, error) {
	if err := message.CheckTopic(topic); err != nil {
		return session.Version{}, err
	}
	return ToVersion(m)
}

func viewState(s session.ViewState) *tacitv1.ViewState {
	return &tacitv1.ViewState{
		Topic: s.Topic, Version: ViewVersion(s.Version), InputsDigest: uint64(s.Inputs),
		OwnersDigest: uint64(s.Owners), OwnersSettled: s.OwnersSettled,
	}
}

func toViewState(m *tacitv1.ViewState) (session.ViewState, error) {
	v, err := toTopicVersion(m.GetTopic(), m.GetVersion())
	return session.ViewState{
		Topic: m.GetTopic(), Version: v, Inputs: session.Digest(m.GetInputsDigest()),
		Owners: session.Digest(m.GetOwnersDigest()), OwnersSettled: m.GetOwnersSettled(),
	}, err
}

func grant(g session.Grant) *tacitv1.Grant {
	return &tacitv1.Grant{Queue: Queue(g.Queue), Epoch: Epoch(g.Epoch), Offset: g.Offset, HasOffset: g.HasOffset, Kept: g.Kept}
}

func toGrant(m *tacitv1.Grant) (session.Grant, error) {
	g := session.Grant{Epoch: ToEpoch(m.GetEpoch()), HasOffset: m.GetHasOffset(), Kept: m.GetKept()}
	var err error
	if g.Queue, err = ToQueue(m.GetQueue()); err != nil {
		return g, err
	}
	g.Offset, err = toOffset(m.GetOffset(), g.HasOffset)
	return g, err
}

// reason encodes a reason: the numbers are the same on both sides, by test.
func reason(r session.Reason) tacitv1.Reason { return tacitv1.Reason(r) }

// toReason decodes a reason; none is zero.
func toReason(r tacitv1.Reason) (session.Reason, error) {
	if _, known := tacitv1.Reason_name[int32(r)]; !known {
		return 0, rpcerr.Invalid("reason", "%d: no such reason", int32(r))
	}
	return session.Reason(r), nil //nolint:gosec // known ones are small
}

// cut bounds a text for people, at the end of a character.
func cut(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= MaxText {
		return s
	}
	n := MaxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
