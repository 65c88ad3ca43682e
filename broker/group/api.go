package group

import (
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/session"
)

// SessionID numbers the session streams a broker ever opened; the shell makes it.
type SessionID uint64

// Event is something that happened at a broker.
//
//sumtype:decl
type Event interface{ event() }

type (
	// Wake says that the time of the last WakeAt has come.
	Wake struct{}
	// Received carries a frame of a member. The first frame of a session is
	// its Hello.
	Received struct {
		Session SessionID
		Frame   session.ToBroker
	}
	// Closed says that a session's stream has ended. ByPeer: the peer closed the
	// connection, so its leases are free at once; otherwise they stay until the
	// session timeout.
	Closed struct {
		Session SessionID
		ByPeer  bool
	}
	// Routes replaces what is known of the topics this broker hosts: all
	// brokers that host each and all its readable queues.
	//
	// Partial: no name server that is ready has been heard since the start, so
	// brokers may be missing. A view that members knew before is not served from
	// such routes: it would take the queues of the missing brokers from everybody.
	Routes struct {
		Topics  []Topic
		Partial bool
	}
	// LocalQueues replaces the queues this broker itself stores; leases are
	// granted for these only.
	LocalQueues struct{ Queues []allocate.Queue }
	// Persisted says that a Persist effect is on disk.
	Persisted struct{ ID uint64 }
	// Commit asks to move a group's committed offset under a lease. Client is
	// for LitePullConsumer.Assign, which has no lease (zero Epoch): accepted only
	// while nobody holds the queue's lease.
	Commit struct {
		Req    uint64
		Key    lease.Key
		Epoch  session.Epoch
		Offset int64
	}
	// Claim asks to make a member of a coordinated group the claimant of a queue; see
	// [lease.Table.Claim].
	Claim struct {
		Req        uint64
		Key        lease.Key
		Member     string // member id
		Generation session.Epoch
	}
	// Reset is an operator's change of a committed offset: refused while held
	// unless Force, which takes the lease away.
	Reset struct {
		Req    uint64
		Key    lease.Key
		Offset int64
		Force  bool
	}
)

// Topic is the merged route of a topic this broker hosts.
type Topic struct {
	Name    string
	Brokers []string
	Queues  []allocate.Queue
}

func (Wake) event()        {}
func (Received) event()    {}
func (Closed) event()      {}
func (Routes) event()      {}
func (LocalQueues) event() {}
func (Persisted) event()   {}
func (Commit) event()      {}
func (Claim) event()       {}
func (Reset) event()       {}

// Effect is something the broker's shell must do.
//
//sumtype:decl
type Effect interface{ effect() }

type (
	// WakeAt asks for a Wake at that time; it replaces an earlier WakeAt.
	WakeAt struct{ At time.Time }
	// Send sends a frame to a member. For each Grant without Kept in it the shell
	// fills in the committed offset as stored at that moment.
	Send struct {
		Session SessionID
		Frame   session.ToMember
	}
	// CloseSession ends a session's stream after what was sent to it.
	CloseSession struct{ Session SessionID }
	// Persist asks to store lease records and offsets, in the order of the
	// effects, and to answer Persisted when they are on disk. Stored offsets
	// move forward only, except those in Resets.
	Persist struct {
		ID      uint64
		Records []lease.Record
		Offsets []lease.Offset
		Resets  []lease.Offset
	}
	// Answer answers a Commit, Claim or Reset. Err is nil once it is on disk.
	Answer struct {
		Req uint64
		Err error
	}
)

func (WakeAt) effect()       {}
func (Send) effect()         {}
func (CloseSession) effect() {}
func (Persist) effect()      {}
func (Answer) effect()       {}
