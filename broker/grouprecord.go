package broker

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// groupSpace is where the state has the records of coordinated groups.
const groupSpace = "coordination"

// recordKey is a record's key in the state: neither group nor member ids have NUL bytes.
func recordKey(k coordinator.Key) string {
	return k.Group + "\x00" + string(rune('a'+k.Kind)) + "\x00" + k.MemberID
}

// encodeRecord encodes a record for the state.
func encodeRecord(r coordinator.Record) ([]byte, error) {
	m := &tacitv1.GroupRecord{}
	switch r := r.(type) {
	case coordinator.Classic:
		g := &tacitv1.ClassicGroup{Group: r.Group, Generation: wire.Epoch(r.Generation), Assignor: r.Assignor, Leader: r.Leader}
		for i := range r.Members {
			g.Members = append(g.Members, classicMember(&r.Members[i]))
		}
		m.Record = &tacitv1.GroupRecord_Classic{Classic: g}
	case coordinator.ConsumerGroup:
		m.Record = &tacitv1.GroupRecord_Consumer{Consumer: &tacitv1.ConsumerGroup{
			Group: r.Group, Epoch: wire.Epoch(r.Epoch), TargetEpoch: wire.Epoch(r.TargetEpoch), Assignor: r.Assignor,
		}}
	case coordinator.ConsumerMember:
		m.Record = &tacitv1.GroupRecord_Member{Member: &tacitv1.ConsumerGroupMember{
			Group: r.Group, MemberId: r.MemberID, Instance: r.Instance, ClientId: r.ClientID, Rack: r.Rack,
			RebalanceTimeout: durationpb.New(r.RebalanceTimeout), Topics: r.Topics, Assignor: r.Assignor,
		}}
	case coordinator.ConsumerTarget:
		m.Record = &tacitv1.GroupRecord_Target{Target: &tacitv1.ConsumerGroupTarget{
			Group: r.Group, MemberId: r.MemberID, Queues: wire.Queues(r.Queues),
		}}
	case coordinator.ConsumerCurrent:
		m.Record = &tacitv1.GroupRecord_Current{Current: &tacitv1.ConsumerGroupCurrent{
			Group: r.Group, MemberId: r.MemberID, Epoch: wire.Epoch(r.Epoch), Previous: wire.Epoch(r.Previous),
			Assigned: wire.Queues(r.Assigned), Revoking: wire.Queues(r.Revoking), Away: r.Away,
		}}
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode record of group %q: %w", r.Key().Group, err)
	}
	return b, nil
}

func classicMember(m *coordinator.ClassicMember) *tacitv1.ClassicGroupMember {
	s := &m.Subscription
	return &tacitv1.ClassicGroupMember{
		MemberId: m.MemberID, Instance: m.Instance, ClientId: m.ClientID,
		SessionTimeout: durationpb.New(m.SessionTimeout), RebalanceTimeout: durationpb.New(m.RebalanceTimeout), Assignors: m.Assignors,
		Subscription: &tacitv1.GroupSubscription{Topics: s.Topics, Owned: wire.Queues(s.Owned), Generation: wire.Epoch(s.Generation), Rack: s.Rack},
		Assigned:     wire.Queues(m.Assigned),
	}
}

// decodeRecord decodes what encodeRecord made, from under its key.
func decodeRecord(key string, b []byte) (coordinator.Record, error) {
	name, _, _ := strings.Cut(key, "\x00")
	m := &tacitv1.GroupRecord{}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("damaged record of coordinated group %q: %w", name, err)
	}
	r, err := toRecord(m)
	if err != nil {
		return nil, fmt.Errorf("damaged record of coordinated group %q: %w", name, err)
	}
	if have := recordKey(r.Key()); have != key {
		return nil, fmt.Errorf("damaged record of coordinated group %q: it is that of %q", name, have)
	}
	return r, nil
}

func toRecord(m *tacitv1.GroupRecord) (coordinator.Record, error) {
	var errs queueErrors
	switch r := m.GetRecord().(type) {
	case *tacitv1.GroupRecord_Classic:
		g := r.Classic
		out := coordinator.Classic{Group: g.GetGroup(), Generation: wire.ToEpoch(g.GetGeneration()), Assignor: g.GetAssignor(), Leader: g.GetLeader()}
		for _, cm := range g.GetMembers() {
			s := cm.GetSubscription()
			out.Members = append(out.Members, coordinator.ClassicMember{
				MemberID: cm.GetMemberId(), Instance: cm.GetInstance(), ClientID: cm.GetClientId(),
				SessionTimeout: cm.GetSessionTimeout().AsDuration(), RebalanceTimeout: cm.GetRebalanceTimeout().AsDuration(), Assignors: cm.GetAssignors(),
				Subscription: coordination.Subscription{
					Topics: s.GetTopics(), Owned: errs.queues(s.GetOwned()), Generation: wire.ToEpoch(s.GetGeneration()), Rack: s.GetRack(),
				},
				Assigned: errs.queues(cm.GetAssigned()),
			})
		}
		return out, errs.first
	case *tacitv1.GroupRecord_Consumer:
		g := r.Consumer
		return coordinator.ConsumerGroup{
			Group: g.GetGroup(), Epoch: wire.ToEpoch(g.GetEpoch()), TargetEpoch: wire.ToEpoch(g.GetTargetEpoch()), Assignor: g.GetAssignor(),
		}, nil
	case *tacitv1.GroupRecord_Member:
		cm := r.Member
		return coordinator.ConsumerMember{
			Group: cm.GetGroup(), MemberID: cm.GetMemberId(), Instance: cm.GetInstance(), ClientID: cm.GetClientId(), Rack: cm.GetRack(),
			RebalanceTimeout: cm.GetRebalanceTimeout().AsDuration(), Topics: cm.GetTopics(), Assignor: cm.GetAssignor(),
		}, nil
	case *tacitv1.GroupRecord_Target:
		t := r.Target
		return coordinator.ConsumerTarget{Group: t.GetGroup(), MemberID: t.GetMemberId(), Queues: errs.queues(t.GetQueues())}, errs.first
	case *tacitv1.GroupRecord_Current:
		c := r.Current
		return coordinator.ConsumerCurrent{
			Group: c.GetGroup(), MemberID: c.GetMemberId(), Epoch: wire.ToEpoch(c.GetEpoch()), Previous: wire.ToEpoch(c.GetPrevious()),
			Assigned: errs.queues(c.GetAssigned()), Revoking: errs.queues(c.GetRevoking()), Away: c.GetAway(),
		}, errs.first
	}
	return nil, fmt.Errorf("of a kind that this version does not know")
}

// queueErrors keeps the first error of several lists of queues.
type queueErrors struct{ first error }

func (e *queueErrors) queues(ms []*tacitv1.MessageQueue) []allocate.Queue {
	qs, err := wire.ToQueues("queues", ms)
	if e.first == nil {
		e.first = err
	}
	return qs
}
