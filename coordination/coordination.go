// Package coordination holds the words that a consumer group member and the group's
// coordinator exchange in the coordinated model, as plain Go values: the group
// protocols of Kafka, classic and consumer (KIP-848).
//
// The pure cores on both sides ([broker/coordinator], [consumer/coordinated]) speak
// these values; the shells turn them into protobuf and back, and the simulation
// carries them as they are. Nothing here does I/O or reads a clock.
//
// A member has one stream to its coordinator. Every request is answered once, in any
// order: a join or sync may be parked for long. The end of a stream means nothing;
// members are told apart by their ids and found dead by their silence.
package coordination

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Generation numbers the assignments of a group, and fences the queues that they
// give out: Broker is chosen when the group begins and grows whenever it begins anew,
// Counter is Kafka's generation, or the epoch of a group or member in the consumer
// protocol. The zero Generation is that of somebody who has not joined.
type Generation = session.Epoch

// Subscription is what a member tells whoever assigns queues.
type Subscription struct {
	Topics []string // sorted
	// Owned are the queues the member has, or of an eager member, which gave them up
	// before it joined, had: a claim under Generation.
	Owned      []allocate.Queue // sorted
	Generation Generation
	Rack       string
}

// Equal reports whether an assignor sees no difference.
func (s Subscription) Equal(o Subscription) bool {
	return s.Generation == o.Generation && s.Rack == o.Rack && slices.Equal(s.Topics, o.Topics) && slices.Equal(s.Owned, o.Owned)
}

// Assignment is the part of one member.
type Assignment struct {
	MemberID string
	Queues   []allocate.Queue // sorted
}

// Joined is a member of a generation, as its leader is told of it.
type Joined struct {
	MemberID     string
	Instance     string
	Subscription Subscription
}

// Identity says who sends a request.
type Identity struct {
	Group      string
	MemberID   string // given by the coordinator; empty before
	Instance   string // static member id, or empty
	Generation Generation
}

// Request is what a member sends.
//
//sumtype:decl
type Request interface {
	request()
	// Who returns the sender.
	Who() Identity
}

type (
	// Join asks to be part of the next generation. It is parked until all members
	// have joined, or the rebalance timeout has passed. Generation says nothing.
	Join struct {
		Identity
		ClientID         string // the member id begins with it
		SessionTimeout   time.Duration
		RebalanceTimeout time.Duration
		Assignors        []string // most wanted first
		Subscription     Subscription
		Reason           string // why, for people
		// Exceed is a generation that some broker knows of the group: the next one is
		// greater. Zero if none was met.
		Exceed Generation
	}
	// Sync asks for the member's assignment; the leader's brings all of them. It is
	// parked until the leader's has come and is stored.
	Sync struct {
		Identity
		Assignments []Assignment
	}
	// Heartbeat keeps a member of the classic protocol alive.
	Heartbeat struct{ Identity }
	// Leave takes members out of the group at once: the sender, if none is named.
	Leave struct {
		Identity
		Members []Identity // by member id, or by instance id with an empty one
		Reason  string
	}
	// ConsumerHeartbeat is the one request of the consumer protocol. Generation is the
	// member's epoch: zero joins. What has not changed since the last one is left out.
	ConsumerHeartbeat struct {
		Identity
		ClientID         string
		Rack             string
		RebalanceTimeout time.Duration
		Topics           []string // nil: unchanged
		Assignor         string   // server-side assignor; empty: unchanged or the coordinator's
		// Owned are the queues the member has, if HasOwned.
		Owned    []allocate.Queue
		HasOwned bool
		Leaving  Leaving
		Exceed   Generation // see Join
	}
	// Resume tells a coordinator that knows nothing of the group, or less than the
	// sender, what the sender was told by the one before: with what its members say it
	// goes on where that ended.
	Resume struct {
		Identity
		ClientID         string
		SessionTimeout   time.Duration
		RebalanceTimeout time.Duration
		Assignors        []string // classic
		Assignor         string   // the generation's, or the server-side one
		Subscription     Subscription
		Leader           string // classic: member id
		Assigned         []allocate.Queue
		Consumer         bool // the consumer protocol
	}
)

// Leaving says whether, and how, a member of the consumer protocol leaves.
type Leaving uint8

const (
	// Stays is a member that does not leave.
	Stays Leaving = iota
	// Leaves for good; epoch -1 of KIP-848.
	Leaves
	// LeavesForAWhile keeps a static member's queues until its session timeout; epoch -2.
	LeavesForAWhile
)

// Who returns the sender.
func (i Identity) Who() Identity { return i }

func (Join) request()              {}
func (Sync) request()              {}
func (Heartbeat) request()         {}
func (Leave) request()             {}
func (ConsumerHeartbeat) request() {}
func (Resume) request()            {}

// Answer is what a coordinator answers. Unless Code is OK the other fields are empty,
// but for those that are named at a code.
//
//sumtype:decl
type Answer interface {
	answer()
	// Outcome returns the code and a text for people.
	Outcome() (Code, string)
}

// Result is part of every answer.
type Result struct {
	Code Code
	Text string
}

// Outcome returns the code and a text for people.
func (r Result) Outcome() (Code, string) { return r.Code, r.Text }

type (
	// JoinAnswer begins a generation. With MemberIDRequired it has the id.
	JoinAnswer struct {
		Result
		MemberID   string
		Generation Generation
		Assignor   string
		Leader     string   // member id
		Members    []Joined // the leader's answer only, sorted by member id
		// SkipAssignment tells a leader that came back that the assignment stays.
		SkipAssignment bool
	}
	// SyncAnswer has the sender's part.
	SyncAnswer struct {
		Result
		Queues []allocate.Queue
	}
	// HeartbeatAnswer answers a Heartbeat.
	HeartbeatAnswer struct{ Result }
	// LeaveAnswer has one result for each member named.
	LeaveAnswer struct {
		Result
		Members []Result
	}
	// ConsumerHeartbeatAnswer says what the member may use now.
	ConsumerHeartbeatAnswer struct {
		Result
		MemberID   string
		Generation Generation // the member's epoch
		Interval   time.Duration
		// Queues is the assignment, if HasQueues: only when it changed or the request
		// was a full one.
		Queues    []allocate.Queue
		HasQueues bool
	}
	// ResumeAnswer says from when on the member is known again.
	ResumeAnswer struct{ Result }
)

func (JoinAnswer) answer()              {}
func (SyncAnswer) answer()              {}
func (HeartbeatAnswer) answer()         {}
func (LeaveAnswer) answer()             {}
func (ConsumerHeartbeatAnswer) answer() {}
func (ResumeAnswer) answer()            {}

// Defaults of the group protocols, those of Kafka 3 and 4.
const (
	SessionTimeout      = 45 * time.Second
	HeartbeatInterval   = 3 * time.Second
	RebalanceTimeout    = 5 * time.Minute // max.poll.interval.ms
	InitialDelay        = 3 * time.Second
	MinSessionTimeout   = 6 * time.Second
	MaxSessionTimeout   = 30 * time.Minute
	PendingJoinTimeout  = 5 * time.Minute // a new member's parked join
	ConsumerSession     = 45 * time.Second
	ConsumerInterval    = 5 * time.Second
	MinConsumerInterval = 5 * time.Second
)
