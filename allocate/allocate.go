// Package allocate holds the strategies that share the message queues of a
// topic among the members of a consumer group.
//
// Every strategy is a pure function for all members at once: no I/O, no clock,
// no chance. Equal inputs give equal assignments on every machine and in every
// version, which is what lets a group agree without a coordinator.
//
// [Share] runs a strategy as a consumer does: it prepares the input, calls the
// strategy and makes the answer safe to act on. Called directly, strategies
// neither sort nor remove doubles; callers prepare the Input with
// [Input.Normalize] first. Strings are ordered by UTF-16 code unit, the order of
// Java's String.compareTo, so that mixed groups with Java clients agree; queue
// ids are ordered as integers.
//
// Six strategies give what Apache RocketMQ's classes of the same names give:
// [Averagely], [AveragelyByCircle], [Config], [MachineRoom], [ConsistentHash] and
// [MachineRoomNearby]. Two are Tacit's: [Sticky], the default, which moves as few
// queues as possible, and [Rendezvous], which comes close without knowing who
// holds what.
package allocate

import "errors"

// Errors of the strategies, to be tested with errors.Is.
var (
	// ErrNoQueues says that there is nothing to share. It is an error and not an
	// empty assignment, so that a topic whose route is missing for a moment takes
	// no queue from anybody.
	ErrNoQueues = errors.New("no queues")
	// ErrNoMembers says that there is nobody to share among.
	ErrNoMembers = errors.New("no members")
	// ErrNoBrokerZone says that a broker with queues has no zone.
	ErrNoBrokerZone = errors.New("broker without a zone")
	// ErrNoMemberZone says that a member announced no zone, or not readably.
	ErrNoMemberZone = errors.New("member without a zone")
	// ErrNoRooms says that a MachineRoom was made without rooms.
	ErrNoRooms = errors.New("no rooms given")
	// ErrVirtualNodes says that the number of virtual nodes is out of range.
	ErrVirtualNodes = errors.New("number of virtual nodes out of range")
	// ErrNoInner says that a MachineRoomNearby was made without the strategy that
	// it applies in each zone.
	ErrNoInner = errors.New("no inner strategy given")
	// ErrBadData says that the data of a member cannot be decoded.
	ErrBadData = errors.New("malformed member data")
	// ErrUnknownStrategy says that no strategy has the name.
	ErrUnknownStrategy = errors.New("unknown allocate strategy")
)

// Queue names one message queue of a topic: queue ids count from 0 on each
// broker that hosts the topic.
type Queue struct {
	Topic  string
	Broker string
	ID     int32
}

// Member is one member of a consumer group as a strategy sees it.
type Member struct {
	ClientID string
	// Data is opaque to everyone but the strategy it was announced for: a zone
	// (see [EncodeZone]), a fixed list of queues (see [EncodeQueues]).
	Data []byte
	// Owned are the queues of the topic that the member holds now, in any order.
	// Only strategies that keep owners where they are ([Sticky]) look at it.
	Owned []Queue
}

// Input is what a strategy shares out: the queues of one topic and the members
// that subscribe to it.
type Input struct {
	Group   string
	Topic   string
	Queues  []Queue
	Members []Member
}

// Assignment maps client ids to their queues. A member without a queue may be
// absent.
//
// The lists are sorted, as [Share] returns them; called directly, Config and
// MachineRoomNearby give the order of RocketMQ. Lists may lie one behind the
// other in one array, each capped at its length: appending to one copies it,
// changing an element in place is not allowed.
type Assignment map[string][]Queue

// Strategy shares the queues of one topic among the members of a group.
//
// Name identifies the strategy on the wire with everything that its answer
// depends on apart from the input: two strategies with one name must give equal
// assignments for equal inputs. See [ByName].
//
// Allocate must be a pure function of in and must not keep or change it. An
// error leaves the caller's present assignment in force.
type Strategy interface {
	Name() string
	Allocate(in Input) (Assignment, error)
}

// check is what all strategies but Config ask of an input, in this order.
func (in Input) check() error {
	switch {
	case len(in.Queues) == 0:
		return ErrNoQueues
	case len(in.Members) == 0:
		return ErrNoMembers
	}
	return nil
}

// assignment turns the owner of each queue, as an index into in.Members or
// nobody, into lists that keep the order of in.Queues and share one array.
func (in Input) assignment(owner []int32) Assignment {
	next := make([]int, len(in.Members)+1) // where the next queue of each member goes
	owners := 0
	for _, m := range owner {
		if m == nobody {
			continue
		}
		if next[m+1] == 0 {
			owners++
		}
		next[m+1]++
	}
	for m := range in.Members {
		next[m+1] += next[m]
	}
	lists := make([]Queue, next[len(in.Members)])
	for q, m := range owner {
		if m != nobody {
			lists[next[m]] = in.Queues[q]
			next[m]++
		}
	}
	out := make(Assignment, owners)
	from := 0
	for m, to := range next[:len(in.Members)] { // by now the end of each list
		if to > from {
			out[in.Members[m].ClientID] = lists[from:to:to]
		}
		from = to
	}
	return out
}

const nobody = -1
