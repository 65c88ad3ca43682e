package allocate

import (
	"fmt"
)

// Share runs s as every member of a group must run it to agree with the others:
// on the normalized input, and with an answer that is safe to act on. Queues that
// are not in the input and owners that are no members are dropped, of several
// owners the smallest client id stays, and each list is sorted. That is needed
// for [Config] and strategies from elsewhere; it costs next to nothing for the
// others.
//
// An error leaves the caller's present assignment in force.
func Share(s Strategy, in Input) (Assignment, error) {
	in = in.Normalize()
	out, err := s.Allocate(in)
	if err != nil {
		return nil, fmt.Errorf("allocate topic %q by %s: %w", in.Topic, s.Name(), err)
	}
	if disjoint(s) {
		return out, nil
	}
	owner := make([]int32, len(in.Queues))
	for i := range owner {
		owner[i] = nobody
	}
	index := NewIndex(in.Queues)
	for i, m := range in.Members { // ascending, so that the smallest client id comes first
		for _, q := range out[m.ClientID] {
			at, ok := index.Find(q)
			if ok && owner[at] == nobody {
				owner[at] = int32(i)
			}
		}
	}
	return in.assignment(owner), nil
}

// disjoint reports whether s is known to give sorted parts of a normalized input.
func disjoint(s Strategy) bool {
	switch s.(type) {
	case Averagely, AveragelyByCircle, *MachineRoom, ConsistentHash, Rendezvous, Sticky:
		return true
	}
	return false
}
