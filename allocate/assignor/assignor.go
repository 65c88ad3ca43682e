// Package assignor holds the assignors of the coordinated model: one member of a
// group, or its coordinator, decides for all members and all their topics at
// once who reads which message queue.
//
// Five follow the assignors of Apache Kafka whose names they have, so that the
// two can be compared: [Range], [RoundRobin], [Sticky] and [CooperativeSticky] of
// its clients, [Uniform] (and [ServerRange]) of its group coordinator. What they
// call partition n of a topic is the n-th queue of the topic in the order of
// [allocate.Queue.Compare].
//
// All are pure functions: no I/O, no clock, no chance. Equal inputs, in whatever
// order their lists are, give equal assignments. Where Kafka's answer depends on
// the order of a hash table, members are taken by id.
//
// Promises for every input that is no error:
//
//   - Every member has a key in the answer, each list is sorted.
//   - A queue of a topic that somebody subscribes to has exactly one owner, who
//     subscribes to the topic. CooperativeSticky alone leaves queues out that must
//     be given up first.
//   - The input is neither kept nor changed.
//
// Who the members are, and that a claim is no lie, is left to the caller.
package assignor

import (
	"errors"
	"fmt"

	"github.com/tacitmq/tacit/allocate"
)

// Names of the assignors, as members and configurations write them.
const (
	NameRange             = "range"
	NameRoundRobin        = "roundrobin"
	NameSticky            = "sticky"
	NameCooperativeSticky = "cooperative-sticky"
	NameUniform           = "uniform"
)

// Errors of this package, to be tested with errors.Is.
var (
	// ErrInput says that no coordinator can have sent such an input. The error
	// around it names the field and the value.
	ErrInput = errors.New("malformed assignor input")
	// ErrUnknownAssignor says that no assignor has the name.
	ErrUnknownAssignor = errors.New("unknown assignor")
)

// NoGeneration is the generation of a claim whose generation is not known. Such a
// claim counts, below every other.
const NoGeneration = -1

// Member is one member of a group as an assignor sees it.
type Member struct {
	// ID is the member id, unique in the group and not empty.
	ID string
	// Instance is the id that survives restarts, "" for a dynamic member.
	Instance string
	// Rack is where the member runs, "" if it did not say.
	Rack string
	// Topics are the topics it subscribes to, in any order. Those that are not in
	// Input.Topics are ignored.
	Topics []string
	// Owned are the queues that the member says it owned when it joined, in any
	// order. Unknown queues are ignored. For Uniform it is its target assignment.
	Owned []allocate.Queue
	// Generation is the generation in which it got them, or [NoGeneration]. Of two
	// claims the higher generation counts; in one generation neither does.
	Generation int64
}

// Input is what an assignor decides about.
type Input struct {
	// Members are the members of the group, in any order.
	Members []Member
	// Topics holds the queues of each topic, without doubles and in any order:
	// partition n is the n-th of the sorted list.
	Topics map[string][]allocate.Queue
	// Racks holds, for each topic and each of its queues in sorted order, the racks
	// where its replicas are; nil, or without a topic, if that is not known. Range,
	// Sticky and CooperativeSticky prefer members in these racks as far as balance
	// allows.
	//
	// With CooperativeSticky they are for the first of the rebalances that a change
	// takes. Given in the following ones as well, a queue that cannot be near its
	// owner may move on each time, and some groups never settle.
	Racks map[string][][]string
}

// Assignor decides who reads which queue.
//
// Name is one of the names above. Assign returns the queues of each member, or an
// error that wraps [ErrInput]: a member id that is empty or there twice, a queue
// that is there twice or under another topic's name, more or fewer lists of racks
// than queues. Lists may lie one behind the other in one array, each capped at
// its length.
type Assignor interface {
	Name() string
	Assign(in Input) (map[string][]allocate.Queue, error)
}

// Names returns the names of all assignors, sorted.
func Names() []string {
	return []string{NameCooperativeSticky, NameRange, NameRoundRobin, NameSticky, NameUniform}
}

// ByName returns the assignor with the name, for "range" that of the clients, or
// [ErrUnknownAssignor].
func ByName(name string) (Assignor, error) {
	switch name {
	case NameRange:
		return Range(), nil
	case NameRoundRobin:
		return RoundRobin(), nil
	case NameSticky:
		return Sticky(), nil
	case NameCooperativeSticky:
		return CooperativeSticky(), nil
	case NameUniform:
		return Uniform(), nil
	}
	return nil, fmt.Errorf("%q: %w", name, ErrUnknownAssignor)
}

// Cooperative reports whether the assignor with the name supports the cooperative
// protocol, in which members keep what they own while they join. All support the
// eager one; a member uses the cooperative one if all of its assignors do.
// Uniform is used with neither: the coordinator itself hands queues over.
func Cooperative(name string) bool { return name == NameCooperativeSticky }
