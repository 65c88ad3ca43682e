package wire

import (
	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// Request encodes a frame that a member sends.
func Request(frame session.ToBroker) *tacitv1.SessionRequest {
	m := &tacitv1.SessionRequest{}
	switch f := frame.(type) {
	case session.Hello:
		m.Frame = &tacitv1.SessionRequest_Hello{Hello: &tacitv1.Hello{
			Group: f.Group, ClientId: f.ClientID, Instance: f.Instance, Incarnation: Incarnation(f.Incarnation),
			Mode: HandOver(f.Mode), SessionTimeout: duration(f.SessionTimeout), Subscriptions: Subscriptions(f.Subscriptions),
			Offers: list(f.Offers, offer), Held: list(f.Held, Owned), Views: list(f.Views, viewRef),
			Silent: list(f.Silent, silence), Leaving: f.Leaving,
		}}
	case session.Heartbeat:
		m.Frame = &tacitv1.SessionRequest_Heartbeat{Heartbeat: &tacitv1.Heartbeat{Seq: f.Seq}}
	case session.Subscribe:
		m.Frame = &tacitv1.SessionRequest_Subscribe{Subscribe: &tacitv1.Subscribe{Subscriptions: Subscriptions(f.Subscriptions)}}
	case session.Reach:
		m.Frame = &tacitv1.SessionRequest_Reach{Reach: &tacitv1.Reach{Silent: list(f.Silent, silence)}}
	case session.Report:
		m.Frame = &tacitv1.SessionRequest_Report{Report: &tacitv1.Report{
			Topic: f.Topic, Full: f.Full, Owned: list(f.Owned, Owned), NotOwned: Queues(f.NotOwned),
			ExpectedDigest: uint64(f.Expected), Draining: f.Draining,
		}}
	case session.FetchView:
		m.Frame = &tacitv1.SessionRequest_FetchView{FetchView: &tacitv1.FetchView{Topic: f.Topic, Seq: f.Seq}}
	case session.Acquire:
		m.Frame = &tacitv1.SessionRequest_Acquire{Acquire: &tacitv1.Acquire{Queues: Queues(f.Queues), ViewBroker: f.ViewBroker}}
	case session.Withdraw:
		m.Frame = &tacitv1.SessionRequest_Withdraw{Withdraw: &tacitv1.Withdraw{Queues: Queues(f.Queues)}}
	case session.Released:
		m.Frame = &tacitv1.SessionRequest_Released{Released: &tacitv1.Released{Leases: list(f.Leases, release)}}
	case session.MemberList:
		m.Frame = &tacitv1.SessionRequest_MemberList{MemberList: &tacitv1.MemberList{
			Topic: f.Topic, MembersDigest: uint64(f.Members), ClientIds: f.IDs,
		}}
	case session.Leaving:
		m.Frame = &tacitv1.SessionRequest_Leaving{Leaving: &tacitv1.Leaving{}}
	case session.Goodbye:
		m.Frame = &tacitv1.SessionRequest_Goodbye{Goodbye: &tacitv1.Goodbye{}}
	}
	return m
}

// ToBrokerFrame decodes a frame of a member.
func ToBrokerFrame(m *tacitv1.SessionRequest) (session.ToBroker, error) {
	switch f := m.GetFrame().(type) {
	case *tacitv1.SessionRequest_Hello:
		return named("hello", f.Hello, toHello)
	case *tacitv1.SessionRequest_Heartbeat:
		return session.Heartbeat{Seq: f.Heartbeat.GetSeq()}, nil
	case *tacitv1.SessionRequest_Subscribe:
		return named("subscribe", f.Subscribe, toSubscribe)
	case *tacitv1.SessionRequest_Reach:
		return named("reach", f.Reach, toReach)
	case *tacitv1.SessionRequest_Report:
		return named("report", f.Report, toReport)
	case *tacitv1.SessionRequest_FetchView:
		return named("fetch_view", f.FetchView, toFetchView)
	case *tacitv1.SessionRequest_Acquire:
		return named("acquire", f.Acquire, toAcquire)
	case *tacitv1.SessionRequest_Withdraw:
		return named("withdraw", f.Withdraw, toWithdraw)
	case *tacitv1.SessionRequest_Released:
		return named("released", f.Released, toReleased)
	case *tacitv1.SessionRequest_MemberList:
		return named("member_list", f.MemberList, toMemberList)
	case *tacitv1.SessionRequest_Leaving:
		return session.Leaving{}, nil
	case *tacitv1.SessionRequest_Goodbye:
		return session.Goodbye{}, nil
	}
	return nil, rpcerr.Invalid("frame", "is missing or not known")
}

// named decodes m and puts its name before the field of an error.
func named[M any, F any](name string, m M, decode func(M) (F, error)) (out F, err error) {
	f, err := decode(m)
	if err != nil {
		return out, rpcerr.In(err, name)
	}
	return f, nil
}

func toHello(m *tacitv1.Hello) (session.ToBroker, error) {
	f := session.Hello{Group: m.GetGroup(), Incarnation: ToIncarnation(m.GetIncarnation()), Leaving: m.GetLeaving()}
	err := message.CheckGroup(f.Group)
	if err != nil {
		return nil, err
	}
	if f.ClientID, f.Instance, err = toIDs(m.GetClientId(), m.GetInstance()); err != nil {
		return nil, err
	}
	if f.Mode, err = ToMode(m.GetMode()); err != nil {
		return nil, err
	}
	if f.SessionTimeout, err = toDuration("session_timeout", m.GetSessionTimeout(), MinSessionTimeout, MaxSessionTimeout); err != nil {
		return nil, err
	}
	if f.Subscriptions, err = toSubscriptions(m.GetSubscriptions()); err != nil {
		return nil, err
	}
	if f.Offers, err = unlist("offers", m.GetOffers(), MaxOffers, toOffer); err != nil {
		return nil, err
	}
	if f.Held, err = toOwnedList("held", m.GetHeld()); err != nil {
		return nil, err
	}
	if f.Views, err = unlist("views", m.GetViews(), MaxListed, toViewRef); err != nil {
		return nil, err
	}
	if f.Silent, err = unlist("silent", m.GetSilent(), MaxListed, toSilence); err != nil {
		return nil, err
	}
	return f, nil
}

func toSubscriptions(ms []*tacitv1.Subscription) ([]session.Subscription, error) {
	return unlist("subscriptions", ms, MaxSubscriptions, ToSubscription)
}

func toSubscribe(m *tacitv1.Subscribe) (session.ToBroker, error) {
	subs, err := toSubscriptions(m.GetSubscriptions())
	return session.Subscribe{Subscriptions: subs}, err
}

func toReach(m *tacitv1.Reach) (session.ToBroker, error) {
	silent, err := unlist("silent", m.GetSilent(), MaxListed, toSilence)
	return session.Reach{Silent: silent}, err
}

func toReport(m *tacitv1.Report) (session.ToBroker, error) {
	f := session.Report{Topic: m.GetTopic(), Full: m.GetFull(), Expected: session.Digest(m.GetExpectedDigest()), Draining: m.GetDraining()}
	err := message.CheckTopic(f.Topic)
	if err != nil {
		return nil, err
	}
	if f.Owned, err = toOwnedList("owned", m.GetOwned()); err != nil {
		return nil, err
	}
	if f.NotOwned, err = ToQueues("not_owned", m.GetNotOwned()); err != nil {
		return nil, err
	}
	return f, nil
}

func toFetchView(m *tacitv1.FetchView) (session.ToBroker, error) {
	return session.FetchView{Topic: m.GetTopic(), Seq: m.GetSeq()}, message.CheckTopic(m.GetTopic())
}

func toAcquire(m *tacitv1.Acquire) (session.ToBroker, error) {
	queues, err := toAsked(m.GetQueues(), m.GetViewBroker())
	return session.Acquire{Queues: queues, ViewBroker: m.GetViewBroker()}, err
}

func toWithdraw(m *tacitv1.Withdraw) (session.ToBroker, error) {
	queues, err := ToQueues("queues", m.GetQueues())
	return session.Withdraw{Queues: queues}, err
}

func toReleased(m *tacitv1.Released) (session.ToBroker, error) {
	leases, err := unlist("leases", m.GetLeases(), MaxListed, toRelease)
	return session.Released{Leases: leases}, err
}

func toMemberList(m *tacitv1.MemberList) (session.ToBroker, error) {
	f := session.MemberList{Topic: m.GetTopic(), Members: session.Digest(m.GetMembersDigest())}
	if err := message.CheckTopic(f.Topic); err != nil {
		return nil, err
	}
	ids, err := toClientIDs("client_ids", m.GetClientIds())
	f.IDs = ids
	return f, err
}

func toClientIDs(field string, ids []string) ([]string, error) {
	return unlist(field, ids, MaxListed, func(id string) (string, error) {
		if err := message.CheckClientID(id); err != nil {
			return "", fieldOf("client_id", err)
		}
		return id, nil
	})
}

// toAsked decodes the queues of a request or a wish and checks the view broker
// named with it, which may be empty in a group without views.
func toAsked(ms []*tacitv1.MessageQueue, viewBroker string) ([]allocate.Queue, error) {
	if viewBroker != "" {
		if err := checkBroker("view_broker", viewBroker); err != nil {
			return nil, err
		}
	}
	return ToQueues("queues", ms)
}

func viewRef(r session.ViewRef) *tacitv1.ViewRef {
	return &tacitv1.ViewRef{Topic: r.Topic, Version: ViewVersion(r.Version), MembersDigest: uint64(r.Members)}
}

func toViewRef(m *tacitv1.ViewRef) (session.ViewRef, error) {
	r := session.ViewRef{Topic: m.GetTopic(), Members: session.Digest(m.GetMembersDigest())}
	if err := message.CheckTopic(r.Topic); err != nil {
		return r, err
	}
	v, err := ToVersion(m.GetVersion())
	r.Version = v
	return r, err
}

func silence(s session.Silence) *tacitv1.Silence {
	return &tacitv1.Silence{Broker: s.Broker, Unreachable: s.Unreachable}
}

func toSilence(m *tacitv1.Silence) (session.Silence, error) {
	return session.Silence{Broker: m.GetBroker(), Unreachable: m.GetUnreachable()}, checkBroker("broker", m.GetBroker())
}

func release(r session.Release) *tacitv1.LeaseRelease {
	return &tacitv1.LeaseRelease{Queue: Queue(r.Queue), Epoch: Epoch(r.Epoch), Offset: r.Offset, HasOffset: r.HasOffset}
}

func toRelease(m *tacitv1.LeaseRelease) (session.Release, error) {
	r := session.Release{Epoch: ToEpoch(m.GetEpoch()), HasOffset: m.GetHasOffset()}
	var err error
	if r.Queue, err = ToQueue(m.GetQueue()); err != nil {
		return r, err
	}
	r.Offset, err = toOffset(m.GetOffset(), r.HasOffset)
	return r, err
}

// toOffset checks an offset; without has it is zero.
func toOffset(offset int64, has bool) (int64, error) {
	if !has {
		return 0, nil
	}
	if offset < 0 {
		return 0, rpcerr.Invalid("offset", "%d: must be 0 or greater", offset)
	}
	return offset, nil
}
