// Package allocate holds the strategies that share the message queues of a
// topic among the members of a consumer group.
//
// Every strategy is a pure function for all members at once: no I/O, no clock,
// no chance. Equal inputs give equal assignments on every machine and in every
// version, which is what lets a group agree without a coordinator.
//
// Strategies neither sort nor remove doubles; callers prepare an Input with
// [Input.Normalize] first. Strings are ordered by UTF-16 code unit, the order of
// Java's String.compareTo, so that mixed groups with Java clients agree; queue
// ids are ordered as integers.
package allocate

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
	// Data is opaque to everyone but the strategy it was announced for: a
	// zone, a fixed list of queues.
	Data []byte
	// Owned are the queues of the topic that the member holds now. Only
	// strategies that keep owners where they are (Sticky) look at it.
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

// Assignment maps client ids to their queues, sorted. A member without a queue
// may be absent.
type Assignment map[string][]Queue

// Strategy shares the queues of one topic among the members of a group.
//
// Allocate must be a pure function of in and must not keep or change it. An
// error leaves the caller's present assignment in force.
type Strategy interface {
	Name() string
	Allocate(in Input) (Assignment, error)
}
