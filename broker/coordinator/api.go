package coordinator

import (
	"errors"
	"fmt"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/allocate/assignor"
	"github.com/tacitmq/tacit/coordination"
)

// Event is something that happened.
//
//sumtype:decl
type Event interface{ event() }

type (
	// Wake says that the time of the last WakeAt has come.
	Wake struct{}
	// Request is a member's request. No two requests with an answer to come have
	// the same ID.
	Request struct {
		ID      uint64
		Request coordination.Request
	}
	// Cancelled says that nobody can hear the answer to a request any more. The
	// member stays.
	Cancelled struct{ ID uint64 }
	// Persisted says that a Persist, and every one before it, is on disk, or with
	// Failed that it is not and will not be.
	Persisted struct {
		ID     uint64
		Failed bool
	}
	// Topics replaces what is known of topics. Every topic that is watched must be in
	// it, with no queues if it does not exist: a group whose topics are not all known
	// gets no new assignment. Others may be in it, and spare a group that comes to
	// watch them the time until the next Topics.
	Topics struct{ Queues map[string][]allocate.Queue }
	// Hosting says which brokers are alive, this one among them or not. Before the
	// first, every request is answered NotAvailable.
	Hosting struct{ Brokers []string }
)

func (Wake) event()      {}
func (Request) event()   {}
func (Cancelled) event() {}
func (Persisted) event() {}
func (Topics) event()    {}
func (Hosting) event()   {}

// Effect is something the shell must do.
//
//sumtype:decl
type Effect interface{ effect() }

type (
	// WakeAt asks for a Wake at that time; it replaces an earlier WakeAt.
	WakeAt struct{ At time.Time }
	// Answer answers the request with the ID.
	Answer struct {
		ID     uint64
		Answer coordination.Answer
	}
	// Persist asks to store and to delete records, in the order of the effects, and
	// to answer Persisted.
	Persist struct {
		ID     uint64
		Put    []Record
		Delete []Key
	}
	// Watch names all topics whose queues must be told with Topics, sorted. It
	// replaces an earlier Watch.
	Watch struct{ Topics []string }
	// Happened is worth a line in the log.
	Happened struct {
		Group      string
		What       What
		Reason     string // for people
		Member     string // member id, if it concerns one
		Generation coordination.Generation
		Members    int
	}
)

func (WakeAt) effect()   {}
func (Answer) effect()   {}
func (Persist) effect()  {}
func (Watch) effect()    {}
func (Happened) effect() {}

// What is the kind of a Happened.
type What string

// The kinds.
const (
	Preparing     What = "preparing to rebalance" // classic: gathering begins
	Gathered      What = "gathered"               // classic: joins answered
	Stabilized    What = "stabilized"             // classic: plan stored, syncs answered
	BecameEmpty   What = "became empty"
	MemberJoined  What = "member joined"
	MemberReplace What = "static member replaced"
	MemberLeft    What = "member left"
	MemberFailed  What = "member failed"
	EpochBumped   What = "bumped group epoch" // consumer protocol
	Assigned      What = "computed target assignment"
	AssignFailed  What = "assignor failed"
	Resuming      What = "resuming"   // the first member told of a generation made elsewhere
	Resumed       What = "resumed"    // the window for that ended
	Unloaded      What = "unloaded"   // another broker coordinates
	Forgotten     What = "forgotten"  // empty for long
	NotStored     What = "not stored" // records were lost
)

// Config is what a Coordinator is made of. See [Default].
type Config struct {
	// Broker is the name of this broker.
	Broker string
	// BrokerEpoch is the least incarnation of a group that begins here.
	BrokerEpoch uint64
	// NewID returns the random part of a member id; it never returns the same twice.
	NewID func() string
	// InitialDelay is how long the first gathering of a group waits for more members,
	// again after each that came. 0: it does not.
	InitialDelay time.Duration
	// MinSessionTimeout and MaxSessionTimeout bound what classic members ask for.
	MinSessionTimeout, MaxSessionTimeout time.Duration
	// PendingJoinTimeout is after how long a parked new member is dropped.
	PendingJoinTimeout time.Duration
	// MaxSize is the greatest number of members of a group, 0: no limit.
	MaxSize int
	// ConsumerSession and ConsumerInterval are session timeout and heartbeat
	// interval of the consumer protocol.
	ConsumerSession, ConsumerInterval time.Duration
	// AssignmentInterval is the least time between two targets of a group. 0: a
	// target is computed at once.
	AssignmentInterval time.Duration
	// KeepEmpty is after how long a group without members is forgotten.
	KeepEmpty time.Duration
	// Assignors are the server-side assignors, the default first.
	Assignors []assignor.Assignor
}

// MaxRebalanceTimeout bounds what members ask for.
const MaxRebalanceTimeout = 24 * time.Hour

// Default returns the settings of Kafka. Broker, BrokerEpoch and NewID are to be set.
func Default() Config {
	return Config{
		InitialDelay:       coordination.InitialDelay,
		MinSessionTimeout:  coordination.MinSessionTimeout,
		MaxSessionTimeout:  coordination.MaxSessionTimeout,
		PendingJoinTimeout: coordination.PendingJoinTimeout,
		ConsumerSession:    coordination.ConsumerSession,
		ConsumerInterval:   coordination.ConsumerInterval,
		AssignmentInterval: time.Second,
		KeepEmpty:          time.Hour,
		Assignors:          []assignor.Assignor{assignor.Uniform(), assignor.ServerRange()},
	}
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Broker == "" {
		bad("broker: no name")
	}
	if c.NewID == nil {
		bad("new id: no function")
	}
	if c.InitialDelay < 0 || c.AssignmentInterval < 0 || c.MaxSize < 0 {
		bad("initial delay %v, assignment interval %v, max size %d: below 0", c.InitialDelay, c.AssignmentInterval, c.MaxSize)
	}
	if c.MinSessionTimeout <= 0 || c.MaxSessionTimeout < c.MinSessionTimeout {
		bad("session timeouts from %v to %v: not a range above 0", c.MinSessionTimeout, c.MaxSessionTimeout)
	}
	if c.PendingJoinTimeout <= 0 || c.ConsumerSession <= 0 || c.ConsumerInterval <= 0 || c.KeepEmpty <= 0 {
		bad("pending join timeout %v, consumer session %v and interval %v, keep empty %v: not above 0",
			c.PendingJoinTimeout, c.ConsumerSession, c.ConsumerInterval, c.KeepEmpty)
	}
	if len(c.Assignors) == 0 {
		bad("assignors: none")
	}
	return errors.Join(errs...)
}
