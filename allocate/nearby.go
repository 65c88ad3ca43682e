package allocate

import (
	"fmt"
	"maps"
	"slices"
)

// MachineRoomNearby keeps consumption in the zone of the queue: the queues of a
// zone are shared, by an inner strategy, among the members that live there. The
// queues of a zone without members are shared among all members, zone by zone in
// ascending order.
//
// A member's zone is its data (see [EncodeZone]), followed by its data for the
// inner strategy. A broker's zone comes from a fixed map or from its name.
type MachineRoomNearby struct {
	inner Strategy
	zones map[string]string // nil: by name
}

// NewMachineRoomNearby returns a MachineRoomNearby that applies inner in each
// zone: [ErrNoInner] if it is nil. brokerZones maps brokers to zones; a broker
// that is not in it or mapped to "" has none, which is an error once it has a
// queue. If brokerZones is nil, the zone is the part of the broker's name before
// "@", as in room@rest.
func NewMachineRoomNearby(inner Strategy, brokerZones map[string]string) (*MachineRoomNearby, error) {
	if inner == nil {
		return nil, fmt.Errorf("machine room nearby: %w", ErrNoInner)
	}
	return &MachineRoomNearby{inner: inner, zones: maps.Clone(brokerZones)}, nil
}

// Name returns "machine-room-nearby" for Averagely within zones that come from
// the brokers' names, else "machine-room-nearby(inner)" or
// "machine-room-nearby(inner,broker=zone,…)" with the brokers in byte order. A
// map without entries is written as a single "=".
func (s *MachineRoomNearby) Name() string {
	if s.zones == nil {
		if _, ok := s.inner.(Averagely); ok {
			return nameNearby
		}
		return formatName(nameNearby, s.inner.Name())
	}
	args := make([]string, 0, 1+max(1, len(s.zones)))
	args = append(args, s.inner.Name())
	for _, broker := range slices.Sorted(maps.Keys(s.zones)) {
		args = append(args, escape(broker)+"="+escape(s.zones[broker]))
	}
	if len(s.zones) == 0 {
		args = append(args, "=")
	}
	return formatName(nameNearby, args...)
}

// Allocate shares in.Queues. Beyond the errors of the inner strategy it fails if
// the broker of a queue has no zone ([ErrNoBrokerZone]), then if a member has
// none ([ErrNoMemberZone]); both name the one concerned. A member's list begins
// with its own zone.
func (s *MachineRoomNearby) Allocate(in Input) (Assignment, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	queues := map[string][]Queue{}
	for _, q := range in.Queues {
		zone := s.zoneOf(q.Broker)
		if zone == "" {
			return nil, fmt.Errorf("broker %q: %w", q.Broker, ErrNoBrokerZone)
		}
		queues[zone] = append(queues[zone], q)
	}
	everybody := make([]Member, len(in.Members)) // with the data of the inner strategy
	members := map[string][]Member{}
	for i, m := range in.Members {
		zone, data, err := DecodeZone(m.Data)
		if err != nil || zone == "" {
			return nil, fmt.Errorf("member %q: %w", m.ClientID, ErrNoMemberZone)
		}
		m.Data = data
		everybody[i] = m
		members[zone] = append(members[zone], m)
	}
	zones := slices.SortedFunc(maps.Keys(queues), CompareStrings)
	out := Assignment{}
	for _, zone := range zones {
		if len(members[zone]) > 0 {
			if err := s.add(out, in, zone, queues[zone], members[zone]); err != nil {
				return nil, err
			}
		}
	}
	for _, zone := range zones {
		if len(members[zone]) == 0 {
			if err := s.add(out, in, zone, queues[zone], everybody); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (s *MachineRoomNearby) add(out Assignment, in Input, zone string, queues []Queue, members []Member) error {
	in.Queues, in.Members = queues, members
	part, err := s.inner.Allocate(in)
	if err != nil {
		return fmt.Errorf("zone %q: %s: %w", zone, s.inner.Name(), err)
	}
	for id, list := range part {
		out[id] = append(out[id], list...)
	}
	return nil
}

func (s *MachineRoomNearby) zoneOf(broker string) string {
	if s.zones != nil {
		return s.zones[broker]
	}
	zone, _ := roomOf(broker)
	return zone
}

func (s *MachineRoomNearby) checkData(data []byte) error {
	zone, inner, err := DecodeZone(data)
	if err != nil {
		return err
	}
	if zone == "" {
		return ErrNoMemberZone
	}
	return CheckData(s.inner, inner)
}
