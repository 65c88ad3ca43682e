// Package wire turns the values of packages session and route into protobuf
// messages and back.
//
// Both directions are total. Encoding accepts every value; a nil message and
// the zero value are the same. Decoding accepts every message: what is missing,
// out of range or over a limit gives an error that wraps
// [rpcerr.ErrInvalidArgument] and names the field by its path, as in
// "hello.subscriptions[2].topic". Decoding what was encoded from valid values
// gives those values again, with empty lists as nil.
package wire

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// Limits of what is decoded. Lists are bounded by the size of a message as well.
const (
	// MaxFilterLength of a subscription, in bytes.
	MaxFilterLength = message.MaxFilterLength
	// MaxSubscriptions of one member.
	MaxSubscriptions = 10_000
	// MaxOffers is how many strategies a member may announce.
	MaxOffers = 32
	// MaxOfferData of one strategy, in bytes.
	MaxOfferData = 1 << 20
	// MaxListed is how many queues, leases, members or views one frame may name.
	MaxListed = 1 << 17
	// MaxText of a refusal, in bytes; a longer one is cut.
	MaxText = 4 << 10
	// MinSessionTimeout and MaxSessionTimeout bound what a member may ask for.
	MinSessionTimeout = 10 * time.Millisecond
	MaxSessionTimeout = time.Hour
)

// Queue encodes the name of a queue.
func Queue(q allocate.Queue) *tacitv1.MessageQueue {
	return &tacitv1.MessageQueue{Topic: q.Topic, Broker: q.Broker, QueueId: q.ID}
}

// ToQueue decodes the name of a queue. The errors name fields within "queue".
func ToQueue(m *tacitv1.MessageQueue) (allocate.Queue, error) {
	if m == nil {
		return allocate.Queue{}, rpcerr.Invalid("queue", "is missing")
	}
	if err := message.CheckTopic(m.GetTopic()); err != nil {
		return allocate.Queue{}, rpcerr.In(err, "queue")
	}
	if err := checkBroker("queue.broker", m.GetBroker()); err != nil {
		return allocate.Queue{}, err
	}
	if err := checkQueueID(m.GetQueueId()); err != nil {
		return allocate.Queue{}, rpcerr.In(err, "queue")
	}
	return allocate.Queue{Topic: m.GetTopic(), Broker: m.GetBroker(), ID: m.GetQueueId()}, nil
}

// Queues encodes a list of queues.
func Queues(qs []allocate.Queue) []*tacitv1.MessageQueue {
	return list(qs, Queue)
}

// ToQueues decodes a list of queues; field is its name in errors.
func ToQueues(field string, ms []*tacitv1.MessageQueue) ([]allocate.Queue, error) {
	out, err := unlist(field, ms, MaxListed, ToQueue)
	// Every queue has its own copy of the names; keep one of each run.
	for i := 1; i < len(out); i++ {
		if out[i].Topic == out[i-1].Topic {
			out[i].Topic = out[i-1].Topic
		}
		if out[i].Broker == out[i-1].Broker {
			out[i].Broker = out[i-1].Broker
		}
	}
	return out, err
}

// Epoch encodes a lease epoch, nil for none.
func Epoch(e session.Epoch) *tacitv1.Epoch {
	if e.IsZero() {
		return nil
	}
	return &tacitv1.Epoch{Broker: e.Broker, Counter: e.Counter}
}

// ToEpoch decodes a lease epoch; every value is one.
func ToEpoch(m *tacitv1.Epoch) session.Epoch {
	return session.Epoch{Broker: m.GetBroker(), Counter: m.GetCounter()}
}

// Incarnation encodes an incarnation, nil for none.
func Incarnation(i session.Incarnation) *tacitv1.Incarnation {
	if i == (session.Incarnation{}) {
		return nil
	}
	return &tacitv1.Incarnation{Counter: i.Counter, Random: i.Random}
}

// ToIncarnation decodes an incarnation; every value is one.
func ToIncarnation(m *tacitv1.Incarnation) session.Incarnation {
	return session.Incarnation{Counter: m.GetCounter(), Random: m.GetRandom()}
}

// HandOver encodes the mode of a group.
func HandOver(m session.Mode) tacitv1.HandOver {
	switch m {
	case session.Exclusive:
		return tacitv1.HandOver_HAND_OVER_EXCLUSIVE
	case session.Immediate:
		return tacitv1.HandOver_HAND_OVER_IMMEDIATE
	case session.Broadcasting:
		return tacitv1.HandOver_HAND_OVER_BROADCASTING
	}
	return tacitv1.HandOver(m) + 1 // no such mode; the peer says so
}

// ToMode decodes the mode of a group.
func ToMode(h tacitv1.HandOver) (session.Mode, error) {
	switch h {
	case tacitv1.HandOver_HAND_OVER_UNSPECIFIED, tacitv1.HandOver_HAND_OVER_EXCLUSIVE:
		return session.Exclusive, nil
	case tacitv1.HandOver_HAND_OVER_IMMEDIATE:
		return session.Immediate, nil
	case tacitv1.HandOver_HAND_OVER_BROADCASTING:
		return session.Broadcasting, nil
	}
	return 0, rpcerr.Invalid("mode", "%d: no such hand-over mode", int32(h))
}

// ViewVersion encodes the version of a view, nil for none.
func ViewVersion(v session.Version) *tacitv1.ViewVersion {
	if v.IsZero() {
		return nil
	}
	return &tacitv1.ViewVersion{Broker: v.Broker, BrokerEpoch: v.Epoch, Counter: v.Counter}
}

// ToVersion decodes the version of a view; none is the zero version.
func ToVersion(m *tacitv1.ViewVersion) (session.Version, error) {
	v := session.Version{Broker: m.GetBroker(), Epoch: m.GetBrokerEpoch(), Counter: m.GetCounter()}
	if v.IsZero() {
		return v, nil
	}
	return v, checkBroker("version.broker", v.Broker)
}

// Subscription encodes a subscription.
func Subscription(s session.Subscription) *tacitv1.Subscription {
	return &tacitv1.Subscription{Topic: s.Topic, Filter: s.Filter}
}

// ToSubscription decodes a subscription; no filter is "*".
func ToSubscription(m *tacitv1.Subscription) (session.Subscription, error) {
	s := session.Subscription{Topic: m.GetTopic(), Filter: m.GetFilter()}
	if s.Filter == "" {
		s.Filter = "*"
	}
	if err := message.CheckTopic(s.Topic); err != nil {
		return s, err
	}
	if len(s.Filter) > MaxFilterLength {
		return s, rpcerr.Invalid("filter", "of %d bytes: must be at most %d bytes", len(s.Filter), MaxFilterLength)
	}
	return s, nil
}

// Subscriptions encodes a member's subscriptions.
func Subscriptions(ss []session.Subscription) []*tacitv1.Subscription {
	return list(ss, Subscription)
}

// Owned encodes an owned queue.
func Owned(o session.Owned) *tacitv1.OwnedQueue {
	return &tacitv1.OwnedQueue{Queue: Queue(o.Queue), Epoch: Epoch(o.Epoch)}
}

// ToOwned decodes an owned queue.
func ToOwned(m *tacitv1.OwnedQueue) (session.Owned, error) {
	q, err := ToQueue(m.GetQueue())
	return session.Owned{Queue: q, Epoch: ToEpoch(m.GetEpoch())}, err
}

func toOwnedList(field string, ms []*tacitv1.OwnedQueue) ([]session.Owned, error) {
	out, err := unlist(field, ms, MaxListed, ToOwned)
	for i := 1; i < len(out); i++ { // as in ToQueues
		if a, b := &out[i].Queue, &out[i-1].Queue; a.Topic == b.Topic {
			a.Topic = b.Topic
			if a.Broker == b.Broker {
				a.Broker = b.Broker
			}
		}
	}
	return out, err
}

func offer(o session.Offer) *tacitv1.StrategyOffer {
	return &tacitv1.StrategyOffer{Strategy: o.Strategy, Data: o.Data}
}

func toOffer(m *tacitv1.StrategyOffer) (session.Offer, error) {
	o := session.Offer{Strategy: m.GetStrategy()}
	if len(m.GetData()) > 0 {
		o.Data = m.GetData()
	}
	if err := checkName("strategy", o.Strategy, 1); err != nil {
		return o, err
	}
	if len(o.Data) > MaxOfferData {
		return o, rpcerr.Invalid("data", "of %d bytes: must be at most %d bytes", len(o.Data), MaxOfferData)
	}
	return o, nil
}

// toIDs checks a client id and a static member id, which may be empty.
func toIDs(client, instance string) (string, string, error) {
	if err := message.CheckClientID(client); err != nil {
		return "", "", fieldOf("client_id", err)
	}
	if instance != "" {
		if err := message.CheckClientID(instance); err != nil {
			return "", "", fieldOf("instance", err)
		}
	}
	return client, instance, nil
}

func checkBroker(field, name string) error {
	if err := route.CheckBroker(name); err != nil {
		return rpcerr.Invalid(field, "%s", err.Error())
	}
	return nil
}

func checkName(field, name string, least int) error {
	if len(name) < least || len(name) > route.MaxNameLength {
		return rpcerr.Invalid(field, "of %d bytes: must be %d to %d bytes", len(name), least, route.MaxNameLength)
	}
	return nil
}

// fieldOf gives a limit error the name that the field has on the wire.
func fieldOf(field string, err error) error {
	if le, ok := err.(*message.LimitError); ok { //nolint:errorlint // straight from the check
		return rpcerr.Invalid(field, "%s: must be %s", le.Value, le.Limit)
	}
	return rpcerr.Invalid(field, "%s", err.Error())
}

// duration encodes a duration, nil for zero.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// toDuration decodes a duration from low to high; absent is zero.
func toDuration(field string, m *durationpb.Duration, low, high time.Duration) (time.Duration, error) {
	if m == nil {
		return 0, nil
	}
	if err := m.CheckValid(); err != nil {
		return 0, rpcerr.Invalid(field, "is no duration: %v", err)
	}
	if d := m.AsDuration(); d == 0 || d >= low && d <= high {
		return d, nil
	}
	return 0, rpcerr.Invalid(field, "%v: must be %v to %v", m.AsDuration(), low, high)
}

// list encodes each element; no elements are nil.
func list[T, M any](ts []T, encode func(T) M) []M {
	if len(ts) == 0 {
		return nil
	}
	out := make([]M, len(ts))
	for i := range ts {
		out[i] = encode(ts[i])
	}
	return out
}

// unlist decodes each element; no elements are nil. Errors are of field[i].
func unlist[M, T any](field string, ms []M, most int, decode func(M) (T, error)) ([]T, error) {
	if len(ms) == 0 {
		return nil, nil
	}
	if len(ms) > most {
		return nil, rpcerr.Invalid(field, "has %d entries: must be at most %d", len(ms), most)
	}
	out := make([]T, len(ms))
	for i := range ms {
		t, err := decode(ms[i])
		if err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("%s[%d]", field, i))
		}
		out[i] = t
	}
	return out, nil
}
