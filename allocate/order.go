package allocate

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// CompareStrings compares a and b by UTF-16 code units, as Java's
// String.compareTo does: -1, 0 or 1. It does not allocate.
//
// For valid UTF-8 that is the order of the bytes, but that characters above
// U+FFFF (first byte F0 and up), whose first unit is a surrogate, come before
// U+E000 to U+FFFF (first byte EE or EF). The same rule orders invalid UTF-8.
func CompareStrings(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xee && y >= 0xee && (x >= 0xf0) != (y >= 0xf0) {
			x, y = y, x
		}
		if x < y {
			return -1
		}
		return 1
	}
	return cmp.Compare(len(a), len(b))
}

// Compare orders queues by topic, then broker, both as CompareStrings does, then
// by id as a number.
func (q Queue) Compare(o Queue) int {
	// Equal strings are mostly one string in memory, which == sees at once.
	if q.Topic != o.Topic {
		return CompareStrings(q.Topic, o.Topic)
	}
	if q.Broker != o.Broker {
		return CompareStrings(q.Broker, o.Broker)
	}
	return cmp.Compare(q.ID, o.ID)
}

// Normalize returns in as strategies want it: queues and members sorted, no
// queue and no client id twice, no blank client id. Inputs that differ only in
// order and doubles give equal results. It leaves in as it is; parts that are in
// order already are shared with in and not copied.
//
// Entries of one client id become one: what either owns is owned, and of two
// different Data the greater one in byte order counts.
func (in Input) Normalize() Input {
	if !normalQueues(in.Queues) {
		in.Queues = sortQueues(in.Queues)
	}
	if !normalMembers(in.Members) {
		in.Members = normalizeMembers(in.Members)
	}
	return in
}

// Member returns the index in in.Members of the member with the client id, by
// binary search in normalized members.
func (in Input) Member(clientID string) (i int, ok bool) {
	return slices.BinarySearchFunc(in.Members, clientID, func(m Member, id string) int {
		return CompareStrings(m.ClientID, id)
	})
}

func normalQueues(queues []Queue) bool {
	for i := 1; i < len(queues); i++ {
		if queues[i-1].Compare(queues[i]) >= 0 {
			return false
		}
	}
	return true
}

// sortQueues returns the queues sorted and without doubles. There are few brokers
// and many queues, so it sorts the names of brokers and then plain numbers.
func sortQueues(queues []Queue) []Queue {
	type name struct{ topic, broker string }
	var names []name
	known := map[name]uint32{} // index in names
	place := make([]uint32, len(queues))
	for i, q := range queues {
		n := name{q.Topic, q.Broker}
		at, ok := known[n]
		if !ok {
			at = uint32(len(names))
			known[n] = at
			names = append(names, n)
		}
		place[i] = at
	}
	slices.SortFunc(names, func(a, b name) int {
		return cmp.Or(CompareStrings(a.topic, b.topic), CompareStrings(a.broker, b.broker))
	})
	rank := make([]uint64, len(names))
	for i, n := range names {
		rank[known[n]] = uint64(i)
	}
	const sign = 1 << 31 // flipped, an int32 sorts as a uint32
	keys := make([]uint64, len(queues))
	for i, q := range queues {
		keys[i] = rank[place[i]]<<32 | uint64(uint32(q.ID)^sign)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	out := make([]Queue, len(keys))
	for i, key := range keys {
		n := names[key>>32]
		out[i] = Queue{n.topic, n.broker, int32(uint32(key) ^ sign)}
	}
	return out
}

func normalMembers(members []Member) bool {
	for i, m := range members {
		if blank(m.ClientID) || i > 0 && CompareStrings(members[i-1].ClientID, m.ClientID) >= 0 {
			return false
		}
	}
	return true
}

func normalizeMembers(members []Member) []Member {
	out := make([]Member, 0, len(members))
	for _, m := range members {
		if !blank(m.ClientID) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b Member) int { return CompareStrings(a.ClientID, b.ClientID) })
	last := 0
	for i := 1; i < len(out); i++ {
		if out[i].ClientID != out[last].ClientID {
			last++
			out[last] = out[i]
			continue
		}
		out[last] = mergeMembers(out[last], out[i])
	}
	if len(out) > 0 {
		out = out[:last+1]
	}
	return out
}

func mergeMembers(a, b Member) Member {
	if bytes.Compare(a.Data, b.Data) < 0 {
		a.Data = b.Data
	}
	a.Owned = slices.Concat(a.Owned, b.Owned)
	slices.SortFunc(a.Owned, Queue.Compare)
	a.Owned = slices.Compact(a.Owned)
	return a
}

func blank(clientID string) bool { return strings.TrimSpace(clientID) == "" }
