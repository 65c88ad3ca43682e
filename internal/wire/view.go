package wire

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// View encodes a view, nil for the zero view. Queues of other topics than the
// view's are left out: there is no place for them.
func View(v session.View) *tacitv1.View {
	if v.Topic == "" && v.Version.IsZero() && v.Queues == nil && v.Members == nil && v.Inputs == 0 && v.Owners == 0 {
		return nil
	}
	return &tacitv1.View{
		Topic: v.Topic, Version: ViewVersion(v.Version), Queues: topicQueues(v.Topic, v.Queues),
		Members: members(v.Topic, v.Members), InputsDigest: uint64(v.Inputs), OwnersDigest: uint64(v.Owners),
	}
}

// ToView decodes a view; nil is the zero view.
func ToView(m *tacitv1.View) (out session.View, err error) {
	if m == nil {
		return out, nil
	}
	if err = message.CheckTopic(m.GetTopic()); err != nil {
		return out, rpcerr.In(err, "view")
	}
	if out.Version, err = ToVersion(m.GetVersion()); err != nil {
		return out, rpcerr.In(err, "view")
	}
	if out.Queues, err = toTopicQueues("queues", m.GetTopic(), m.GetQueues()); err != nil {
		return out, rpcerr.In(err, "view")
	}
	if out.Members, err = toMembers(m.GetTopic(), m.GetMembers()); err != nil {
		return out, rpcerr.In(err, "view.members")
	}
	out.Topic = m.GetTopic()
	out.Inputs, out.Owners = session.Digest(m.GetInputsDigest()), session.Digest(m.GetOwnersDigest())
	return out, nil
}

// topicQueues encodes queues of one topic in their order.
func topicQueues(topic string, qs []allocate.Queue) (out []*tacitv1.BrokerQueues) {
	for _, q := range qs {
		if q.Topic != topic {
			continue
		}
		if n := len(out); n == 0 || out[n-1].GetBroker() != q.Broker {
			out = append(out, &tacitv1.BrokerQueues{Broker: q.Broker})
		}
		last := out[len(out)-1]
		last.QueueIds = append(last.QueueIds, q.ID)
	}
	return out
}

// toTopicQueues decodes queues of one topic; field is their name in errors.
func toTopicQueues(field, topic string, ms []*tacitv1.BrokerQueues) ([]allocate.Queue, error) {
	n := 0
	for _, m := range ms {
		n += len(m.GetQueueIds())
	}
	if n > MaxListed {
		return nil, rpcerr.Invalid(field, "has %d queues: must be at most %d", n, MaxListed)
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]allocate.Queue, 0, n)
	for i, m := range ms {
		if err := checkBroker("broker", m.GetBroker()); err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("%s[%d]", field, i))
		}
		for j, id := range m.GetQueueIds() {
			if err := checkQueueID(id); err != nil {
				return nil, rpcerr.In(err, fmt.Sprintf("%s[%d].queue_ids[%d]", field, i, j))
			}
			out = append(out, allocate.Queue{Topic: topic, Broker: m.GetBroker(), ID: id})
		}
	}
	return out, nil
}

func checkQueueID(id int32) error {
	if id < 0 || id >= route.MaxQueues {
		return rpcerr.Invalid("queue_id", "%d: must be 0 to %d", id, route.MaxQueues-1)
	}
	return nil
}

// members encodes members of the view of a topic, nil for none.
func members(topic string, in []session.Member) *tacitv1.ViewMembers {
	if len(in) == 0 {
		return nil
	}
	owned, named := 0, false
	for i := range in {
		owned += len(in[i].Owned)
		named = named || in[i].Instance != ""
	}
	out := &tacitv1.ViewMembers{
		ClientIds:           make([]string, len(in)),
		IncarnationCounters: make([]uint64, len(in)),
		IncarnationRandoms:  make([]uint64, len(in)),
		ExpectedDigests:     make([]uint64, len(in)),
		OffersIndex:         make([]uint32, len(in)),
	}
	if named {
		out.Instances = make([]string, len(in))
	}
	if owned > 0 {
		out.OwnedCounts = make([]uint32, len(in))
		out.OwnedBrokersIndex = make([]uint32, 0, owned)
		out.OwnedQueueIds = make([]int32, 0, owned)
		out.OwnedEpochBrokers = make([]uint64, 0, owned)
		out.OwnedEpochCounters = make([]uint64, 0, owned)
	}
	sets := offerSets{known: make(map[string]uint32)}
	for i := range in {
		m := &in[i]
		out.ClientIds[i] = m.ClientID
		out.IncarnationCounters[i], out.IncarnationRandoms[i] = m.Incarnation.Counter, m.Incarnation.Random
		out.ExpectedDigests[i] = uint64(m.Expected)
		if named {
			out.Instances[i] = m.Instance
		}
		at, isNew := sets.place(m.Offers)
		if isNew {
			out.Offers = append(out.Offers, &tacitv1.StrategyOffers{Offers: list(m.Offers, offer)})
		}
		out.OffersIndex[i] = at
		for _, o := range m.Owned {
			if o.Queue.Topic != topic {
				continue
			}
			b := slices.Index(out.GetOwnedBrokers(), o.Queue.Broker)
			if b < 0 {
				b = len(out.GetOwnedBrokers())
				out.OwnedBrokers = append(out.OwnedBrokers, o.Queue.Broker)
			}
			out.OwnedCounts[i]++
			out.OwnedBrokersIndex = append(out.OwnedBrokersIndex, uint32(b))
			out.OwnedQueueIds = append(out.OwnedQueueIds, o.Queue.ID)
			out.OwnedEpochBrokers = append(out.OwnedEpochBrokers, o.Epoch.Broker)
			out.OwnedEpochCounters = append(out.OwnedEpochCounters, o.Epoch.Counter)
		}
	}
	return out
}

// offerSets numbers the different lists of offers. Mostly all members have the
// same; with a list of queues in each they may be as many as the members.
type offerSets struct {
	last  []session.Offer
	at    uint32
	known map[string]uint32 // by the list with lengths before its parts
	key   []byte
}

func (s *offerSets) place(offers []session.Offer) (at uint32, isNew bool) {
	if len(s.known) > 0 && session.EqualOffers(offers, s.last) {
		return s.at, false
	}
	s.key = s.key[:0]
	for _, o := range offers {
		s.key = binary.AppendUvarint(s.key, uint64(len(o.Strategy)))
		s.key = append(s.key, o.Strategy...)
		s.key = binary.AppendUvarint(s.key, uint64(len(o.Data)))
		s.key = append(s.key, o.Data...)
	}
	at, ok := s.known[string(s.key)]
	if !ok {
		at = uint32(len(s.known))
		s.known[string(s.key)] = at
	}
	s.last, s.at = offers, at
	return at, !ok
}

// toMembers decodes members of the view of a topic. Members that offer the same
// share one list, and what they own are parts of one; neither is to be changed.
func toMembers(topic string, m *tacitv1.ViewMembers) ([]session.Member, error) {
	n := len(m.GetClientIds())
	if n > MaxListed {
		return nil, rpcerr.Invalid("client_ids", "has %d entries: must be at most %d", n, MaxListed)
	}
	owned, err := toAllOwned(topic, m)
	if err != nil {
		return nil, err
	}
	for _, c := range []struct {
		field    string
		entries  int
		optional bool
	}{
		{"instances", len(m.GetInstances()), true},
		{"incarnation_counters", len(m.GetIncarnationCounters()), false},
		{"incarnation_randoms", len(m.GetIncarnationRandoms()), false},
		{"expected_digests", len(m.GetExpectedDigests()), false},
		{"offers_index", len(m.GetOffersIndex()), false},
		{"owned_counts", len(m.GetOwnedCounts()), true},
	} {
		if c.entries != n && (c.entries > 0 || !c.optional) {
			return nil, rpcerr.Invalid(c.field, "has %d entries: must be %d, one for each member", c.entries, n)
		}
	}
	offers, err := unlist("offers", m.GetOffers(), n, func(s *tacitv1.StrategyOffers) ([]session.Offer, error) {
		return unlist("offers", s.GetOffers(), MaxOffers, toOffer)
	})
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]session.Member, n)
	for i := range out {
		instance := ""
		if len(m.GetInstances()) > 0 {
			instance = m.GetInstances()[i]
		}
		id, instance, err := toIDs(m.GetClientIds()[i], instance)
		if err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("client_ids[%d]", i))
		}
		set := m.GetOffersIndex()[i]
		if int64(set) >= int64(len(offers)) {
			return nil, rpcerr.Invalid(fmt.Sprintf("offers_index[%d]", i), "%d: there are %d lists of offers", set, len(offers))
		}
		count := uint32(0)
		if len(m.GetOwnedCounts()) > 0 {
			count = m.GetOwnedCounts()[i]
		}
		if int64(count) > int64(len(owned)) {
			return nil, rpcerr.Invalid(fmt.Sprintf("owned_counts[%d]", i), "%d: %d queues are left", count, len(owned))
		}
		out[i] = session.Member{
			ClientID: id, Instance: instance, Offers: offers[set], Expected: session.Digest(m.GetExpectedDigests()[i]),
			Incarnation: session.Incarnation{Counter: m.GetIncarnationCounters()[i], Random: m.GetIncarnationRandoms()[i]},
		}
		if count > 0 {
			out[i].Owned, owned = owned[:count:count], owned[count:]
		}
	}
	if len(owned) > 0 {
		return nil, rpcerr.Invalid("owned_counts", "leave %d queues to nobody", len(owned))
	}
	return out, nil
}

// toAllOwned decodes what all members own, one after the other.
func toAllOwned(topic string, m *tacitv1.ViewMembers) ([]session.Owned, error) {
	n := len(m.GetOwnedQueueIds())
	if n > MaxListed {
		return nil, rpcerr.Invalid("owned_queue_ids", "has %d entries: must be at most %d", n, MaxListed)
	}
	for _, c := range []struct {
		field   string
		entries int
	}{
		{"owned_brokers_index", len(m.GetOwnedBrokersIndex())},
		{"owned_epoch_brokers", len(m.GetOwnedEpochBrokers())},
		{"owned_epoch_counters", len(m.GetOwnedEpochCounters())},
	} {
		if c.entries != n {
			return nil, rpcerr.Invalid(c.field, "has %d entries: must be %d, one for each owned queue", c.entries, n)
		}
	}
	brokers := m.GetOwnedBrokers()
	if len(brokers) > n {
		return nil, rpcerr.Invalid("owned_brokers", "has %d entries: must be at most %d", len(brokers), n)
	}
	for i, b := range brokers {
		if err := checkBroker(fmt.Sprintf("owned_brokers[%d]", i), b); err != nil {
			return nil, err
		}
	}
	out := make([]session.Owned, n)
	for i, id := range m.GetOwnedQueueIds() {
		if err := checkQueueID(id); err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("owned_queue_ids[%d]", i))
		}
		b := m.GetOwnedBrokersIndex()[i]
		if int64(b) >= int64(len(brokers)) {
			return nil, rpcerr.Invalid(fmt.Sprintf("owned_brokers_index[%d]", i), "%d: there are %d brokers", b, len(brokers))
		}
		out[i] = session.Owned{
			Queue: allocate.Queue{Topic: topic, Broker: brokers[b], ID: id},
			Epoch: session.Epoch{Broker: m.GetOwnedEpochBrokers()[i], Counter: m.GetOwnedEpochCounters()[i]},
		}
	}
	return out, nil
}
