package allocate

import (
	"fmt"
	"slices"
	"strings"
)

// MachineRoom shares only the queues of the listed rooms, among all members. The
// room of a queue is part of its broker's name, room@rest. Queues of other rooms
// and of brokers with another form of name are consumed by nobody.
//
// One set of rooms holds for the whole group, and members are not bound to a
// room: see [MachineRoomNearby] for that. The zero MachineRoom has no set and
// fails as soon as a broker's name has a room.
type MachineRoom struct {
	rooms []string // sorted, without doubles
}

// NewMachineRoom returns a MachineRoom for the rooms, of which there must be one
// at least: [ErrNoRooms].
func NewMachineRoom(rooms ...string) (*MachineRoom, error) {
	if len(rooms) == 0 {
		return nil, fmt.Errorf("machine room: %w", ErrNoRooms)
	}
	return newMachineRoom(rooms), nil
}

func newMachineRoom(rooms []string) *MachineRoom {
	rooms = slices.Clone(rooms)
	slices.Sort(rooms)
	return &MachineRoom{rooms: slices.Compact(rooms)}
}

// Name returns "machine-room(a,b)" with the rooms in byte order.
func (s *MachineRoom) Name() string { return formatName(nameMachineRoom, escapeAll(s.rooms)...) }

// Allocate shares the queues of the rooms: member i of m gets the i-th block of
// k/m of k queues and, for i < k mod m, the queue i of the remainder at the end.
func (s *MachineRoom) Allocate(in Input) (Assignment, error) {
	if err := in.check(); err != nil {
		return nil, err
	}
	kept := make([]Queue, 0, len(in.Queues))
	for _, q := range in.Queues {
		room, ok := roomOf(q.Broker)
		if !ok {
			continue
		}
		if s.rooms == nil {
			return nil, fmt.Errorf("broker %q: %w", q.Broker, ErrNoRooms)
		}
		if _, ok := slices.BinarySearch(s.rooms, room); ok {
			kept = append(kept, q)
		}
	}
	k, m := len(kept), len(in.Members)
	each, more := k/m, k%m
	lists := make([]Queue, 0, k)
	out := make(Assignment, min(k, m))
	for i := range min(k, m) {
		id := in.Members[i].ClientID
		if _, ok := out[id]; ok {
			continue
		}
		from := len(lists)
		lists = append(lists, kept[i*each:(i+1)*each]...)
		if i < more {
			lists = append(lists, kept[i+each*m])
		}
		out[id] = lists[from:len(lists):len(lists)]
	}
	return out, nil
}

// roomOf splits a broker's name as Java's String.split("@") would and returns
// the first of exactly two parts: empty parts at the end do not count.
func roomOf(broker string) (room string, ok bool) {
	room, rest, ok := strings.Cut(strings.TrimRight(broker, "@"), "@")
	return room, ok && !strings.Contains(rest, "@")
}
