// Package session holds the words that a consumer group member and a broker
// exchange on their session stream, as plain Go values.
//
// The pure cores on both sides ([consumer/rebalance], [broker/group],
// [broker/lease]) speak these values; the shells turn them into protobuf and
// back, and the simulation carries them as they are. Nothing here does I/O or
// reads a clock.
//
// A session is the live stream of one member (group + client id) to one broker.
// Frames of one direction arrive in the order they were sent or not at all.
package session

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Mode is how a group hands queues over. It belongs to the group: a member that
// comes with another one is refused.
type Mode uint8

const (
	// Exclusive gives each queue to one lease holder at a time. The default.
	Exclusive Mode = iota
	// Immediate is RocketMQ's concurrent hand-over: no leases, no waiting, and
	// for a while a queue may have two owners.
	Immediate
	// Broadcasting members each consume every queue: no share, no lease.
	Broadcasting
)

func (m Mode) String() string {
	switch m {
	case Exclusive:
		return "exclusive"
	case Immediate:
		return "immediate"
	case Broadcasting:
		return "broadcasting"
	}
	return fmt.Sprintf("mode(%d)", uint8(m))
}

// Digest is a 64-bit digest of a list; see [InputsDigest], [OwnersDigest] and
// [MembersDigest]. It is a wire contract.
type Digest uint64

// Incarnation tells the lives of one client id apart. It is ordered, and never
// taken from a clock: Counter is 1 for a new process and one above the
// incarnation it replaces for a static member; Random breaks ties.
type Incarnation struct {
	Counter uint64
	Random  uint64
}

// Compare orders incarnations; a greater one is newer.
func (i Incarnation) Compare(o Incarnation) int {
	return cmp.Or(cmp.Compare(i.Counter, o.Counter), cmp.Compare(i.Random, o.Random))
}

// Epoch is the fencing token of a lease: the broker's epoch, then a counter
// within it. The zero Epoch is no lease.
type Epoch struct {
	Broker  uint64
	Counter uint64
}

// Compare orders epochs; later grants of one queue compare greater.
func (e Epoch) Compare(o Epoch) int {
	return cmp.Or(cmp.Compare(e.Broker, o.Broker), cmp.Compare(e.Counter, o.Counter))
}

// IsZero reports whether e is no lease.
func (e Epoch) IsZero() bool { return e == Epoch{} }

func (e Epoch) String() string { return fmt.Sprintf("%d.%d", e.Broker, e.Counter) }

// Version orders the views of one (group, topic) at one broker. Versions of
// different brokers are not comparable.
type Version struct {
	Broker  string
	Epoch   uint64 // the broker's epoch
	Counter uint64
}

// IsZero reports whether v is no version.
func (v Version) IsZero() bool { return v == Version{} }

// After reports whether v was made later than o by the same broker.
func (v Version) After(o Version) bool {
	return v.Broker == o.Broker && (v.Epoch > o.Epoch || v.Epoch == o.Epoch && v.Counter > o.Counter)
}

func (v Version) String() string { return fmt.Sprintf("%s/%d.%d", v.Broker, v.Epoch, v.Counter) }

// Subscription is a member's interest in one topic.
type Subscription struct {
	Topic string
	// Filter is "*" or tags joined by "||" in sorted order. All members of a
	// group have the same filter for a topic; another one is refused.
	Filter string
}

// Offer names an allocate strategy a member supports, with the member's data
// for it (a zone, a fixed list).
type Offer struct {
	Strategy string
	Data     []byte
}

// EqualOffers reports whether a pass sees no difference between two lists.
func EqualOffers(a, b []Offer) bool {
	return slices.EqualFunc(a, b, func(a, b Offer) bool { return a.Strategy == b.Strategy && bytes.Equal(a.Data, b.Data) })
}

// Owned is a queue a member owns and the epoch of its lease (zero in an
// Immediate group).
type Owned struct {
	Queue allocate.Queue
	Epoch Epoch
}

// ViewRef names the view a member last used, so that a broker that restarted
// knows whom to expect.
type ViewRef struct {
	Topic   string
	Version Version
	Members Digest
}

// Grant is a lease given to a member.
type Grant struct {
	Queue allocate.Queue
	Epoch Epoch
	// Offset is where the group's progress stands: the next offset to read.
	// It is meaningful only if HasOffset; otherwise the group never committed
	// on this queue.
	Offset    int64
	HasOffset bool
	// Kept says that the epoch is the one the member named in its hello: its
	// process queue stays valid.
	Kept bool
}

// Release gives a lease back with the progress reached under it.
type Release struct {
	Queue     allocate.Queue
	Epoch     Epoch
	Offset    int64
	HasOffset bool
}

// Member is one entry of a view.
type Member struct {
	ClientID    string
	Instance    string // static member id, or empty
	Incarnation Incarnation
	Offers      []Offer // in order of preference
	Owned       []Owned // sorted by queue
	// Expected is the digest of the whole ownership the member's last pass
	// computed, zero before its first pass.
	Expected Digest
}

// View is what every member computes from: who subscribes to a topic of the
// group, what each holds, and the queues, at one version.
type View struct {
	Topic   string
	Version Version
	Queues  []allocate.Queue // sorted
	Members []Member         // sorted by client id
	Inputs  Digest           // InputsDigest of the above
	Owners  Digest           // OwnersDigest of the above
}

// Silence says which broker has not answered a member's heartbeats for one
// session timeout; Unreachable once it is two.
type Silence struct {
	Broker      string
	Unreachable bool
}

// ToBroker is a frame that a member sends.
//
//sumtype:decl
type ToBroker interface{ toBroker() }

type (
	// Hello opens a session; it is always the first frame. A hello of the same
	// incarnation is the whole truth: leases it does not name are freed.
	Hello struct {
		Group       string
		ClientID    string
		Instance    string // static member id, or empty
		Incarnation Incarnation
		Mode        Mode
		// SessionTimeout asked for; the Welcome carries the effective one.
		SessionTimeout time.Duration
		Subscriptions  []Subscription
		Offers         []Offer
		Held           []Owned // leases of this broker's queues, with epochs
		Views          []ViewRef
		Silent         []Silence
		Leaving        bool
	}
	// Heartbeat keeps the session alive; the answer echoes Seq.
	Heartbeat struct{ Seq uint64 }
	// Subscribe replaces the member's subscriptions.
	Subscribe struct{ Subscriptions []Subscription }
	// Reach replaces the list of brokers this member cannot hear.
	Reach struct{ Silent []Silence }
	// Report tells the view broker what the member owns of one topic.
	Report struct {
		Topic string
		// Full replaces all that was reported of the topic before; otherwise
		// Owned is added and NotOwned is taken away.
		Full     bool
		Owned    []Owned
		NotOwned []allocate.Queue
		Expected Digest // whole expected ownership of the last pass
		Draining bool   // a queue of the topic is being drained
	}
	// FetchView asks for the view of a topic.
	FetchView struct {
		Topic string
		Seq   uint64
	}
	// Acquire asks for leases. Idempotent within a session. ViewBroker is the
	// broker whose view the asker uses.
	Acquire struct {
		Queues     []allocate.Queue
		ViewBroker string
	}
	// Withdraw takes requests back; each is answered by Withdrawn or by the
	// grant already under way.
	Withdraw struct{ Queues []allocate.Queue }
	// Released gives leases back.
	Released struct{ Leases []Release }
	// MemberList answers AskMembers with the client ids of the named view.
	MemberList struct {
		Topic   string
		Members Digest
		IDs     []string
	}
	// Leaving takes the member out of all views; its leases stay until they
	// are released.
	Leaving struct{}
	// Goodbye ends the session; everything still held is free at once.
	Goodbye struct{}
)

func (Hello) toBroker()      {}
func (Heartbeat) toBroker()  {}
func (Subscribe) toBroker()  {}
func (Reach) toBroker()      {}
func (Report) toBroker()     {}
func (FetchView) toBroker()  {}
func (Acquire) toBroker()    {}
func (Withdraw) toBroker()   {}
func (Released) toBroker()   {}
func (MemberList) toBroker() {}
func (Leaving) toBroker()    {}
func (Goodbye) toBroker()    {}

// ToMember is a frame that a broker sends.
//
//sumtype:decl
type ToMember interface{ toMember() }

// Reason says why a broker ends or refuses a session or a request.
type Reason uint8

const (
	// ReasonModeMismatch: the group has another hand-over mode.
	ReasonModeMismatch Reason = iota + 1
	// ReasonStrategyMismatch: no strategy in common with the present members.
	ReasonStrategyMismatch
	// ReasonFilterMismatch: the group filters this topic differently.
	ReasonFilterMismatch
	// ReasonDuplicateClientID: a live member with this client id and a smaller
	// incarnation exists.
	ReasonDuplicateClientID
	// ReasonFenced: a newer incarnation of this static member took over.
	ReasonFenced
	// ReasonStaticExists: a live or remembered incarnation of this static
	// member exists; say hello again with its counter + 1 to inherit.
	ReasonStaticExists
	// ReasonExpired: the session timed out; say hello again.
	ReasonExpired
	// ReasonBadRequest: the frame is out of protocol or of limits.
	ReasonBadRequest
	// ReasonShutdown: the broker is going down.
	ReasonShutdown
	// ReasonUnknownQueue: no such queue on this broker.
	ReasonUnknownQueue
	// ReasonReplaced: a newer session of the same incarnation came.
	ReasonReplaced
)

func (r Reason) String() string {
	switch r {
	case ReasonModeMismatch:
		return "mode mismatch"
	case ReasonStrategyMismatch:
		return "strategy mismatch"
	case ReasonFilterMismatch:
		return "filter mismatch"
	case ReasonDuplicateClientID:
		return "duplicate client id"
	case ReasonFenced:
		return "fenced"
	case ReasonStaticExists:
		return "static member exists"
	case ReasonExpired:
		return "session expired"
	case ReasonBadRequest:
		return "bad request"
	case ReasonShutdown:
		return "shutdown"
	case ReasonUnknownQueue:
		return "unknown queue"
	case ReasonReplaced:
		return "replaced"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Final reports whether the member must stop: repeating the hello cannot help.
func (r Reason) Final() bool {
	switch r {
	case ReasonModeMismatch, ReasonStrategyMismatch, ReasonFilterMismatch, ReasonDuplicateClientID, ReasonFenced, ReasonBadRequest:
		return true
	case ReasonStaticExists, ReasonExpired, ReasonShutdown, ReasonUnknownQueue, ReasonReplaced:
	}
	return false
}

// ViewState is what a heartbeat answer says of one view.
type ViewState struct {
	Topic   string
	Version Version
	Inputs  Digest
	Owners  Digest
	// OwnersSettled says that Owners may be compared: reports have been still
	// and nobody drains, yet expectations differ. Otherwise only Inputs count.
	OwnersSettled bool
}

type (
	// Welcome accepts a hello.
	Welcome struct {
		Broker         string
		BrokerEpoch    uint64
		SessionTimeout time.Duration // effective, for both sides
		// Grants answers Hello.Held: what the member holds now, kept or anew;
		// for a new incarnation of a static member, what it inherits. Held
		// queues not named here are lost.
		Grants []Grant
		// Inherited is the ownership reported by the incarnation before.
		Inherited []Owned
	}
	// Refused ends the session. Incarnation is the other one, where there is one.
	Refused struct {
		Reason      Reason
		Text        string
		Incarnation Incarnation
	}
	// HeartbeatAck answers a Heartbeat with the state of the views of the
	// member's topics that this broker can serve.
	HeartbeatAck struct {
		Seq   uint64
		Views []ViewState
	}
	// ViewAnswer answers FetchView. Warming: the view cannot be served yet; its
	// readiness will be pushed as ViewReady.
	ViewAnswer struct {
		Seq     uint64
		Warming bool
		View    View
	}
	// ViewReady is pushed when a view stops warming.
	ViewReady struct {
		Topic   string
		Version Version
		Inputs  Digest
	}
	// GroupChanged is the CHANGE notice: all changes of one notice window.
	GroupChanged struct {
		Topic    string
		Version  Version
		Previous Version // the version this delta starts from
		Joined   []Member
		Left     []string // client ids
		Added    []allocate.Queue
		Removed  []allocate.Queue
		Inputs   Digest // after the change
		// OwnersBefore is the ownership digest before the first change of the
		// window: if it is the one a member expected, the group was settled
		// and nothing needs to be fetched.
		OwnersBefore Digest
	}
	// OwnersChanged is the quiet signal: reports are still, nobody drains and
	// expectations differ from this ownership.
	OwnersChanged struct {
		Topic   string
		Version Version
		Owners  Digest
	}
	// Nudge says that a queue of the topic has neither holder nor asker.
	Nudge struct {
		Topic string
		Queue allocate.Queue
	}
	// AskMembers asks for the member list behind a digest named in the hello.
	AskMembers struct {
		Topic   string
		Members Digest
	}
	// Granted carries leases, each stored before it is sent.
	Granted struct{ Grants []Grant }
	// LeaseWanted tells a holder that somebody waits for its queues; ViewBroker
	// is the broker whose view the asker uses.
	LeaseWanted struct {
		Queues     []allocate.Queue
		ViewBroker string
	}
	// Withdrawn answers Withdraw, and refuses an Acquire that cannot be
	// (Reason is then not zero).
	Withdrawn struct {
		Queues []allocate.Queue
		Reason Reason
	}
	// LeaseLost tells a member that a lease it may believe in is gone: the
	// queue was deleted or an operator reset its offsets. It answers with
	// Released under the epoch named; until then, or the end of its session,
	// nobody else is granted the queue.
	LeaseLost struct {
		Leases []Owned
		Reason Reason
	}
)

func (Welcome) toMember()       {}
func (Refused) toMember()       {}
func (HeartbeatAck) toMember()  {}
func (ViewAnswer) toMember()    {}
func (ViewReady) toMember()     {}
func (GroupChanged) toMember()  {}
func (OwnersChanged) toMember() {}
func (Nudge) toMember()         {}
func (AskMembers) toMember()    {}
func (Granted) toMember()       {}
func (LeaseWanted) toMember()   {}
func (Withdrawn) toMember()     {}
func (LeaseLost) toMember()     {}
