package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Errors of commits, resets and checks, to be tested with errors.Is.
var (
	// ErrStaleEpoch says that the epoch is not that of the present lease.
	ErrStaleEpoch = errors.New("lease epoch is not the current one")
	// ErrLeaseHeld says that somebody holds the lease, which the request does
	// not allow for.
	ErrLeaseHeld = errors.New("queue is leased to a member")
	// ErrUnknownQueue says that this broker does not store the queue.
	ErrUnknownQueue = errors.New("unknown queue")
	// ErrNotMember says that no member of the group is known to have held the
	// queue here.
	ErrNotMember = errors.New("no member of the group holds a lease of the queue")
	// ErrNegativeOffset says that an offset is below zero.
	ErrNegativeOffset = errors.New("negative offset")
)

// Outdated is a refusal that names the epoch which a claim must exceed. It wraps
// ErrStaleEpoch.
type Outdated struct {
	Seen session.Epoch
	Err  error
}

func (o *Outdated) Error() string { return fmt.Sprintf("%v: %v is known", o.Err, o.Seen) }

// Unwrap returns what is wrong.
func (o *Outdated) Unwrap() error { return o.Err }

// Key names what a lease is for.
type Key struct {
	Group string
	Queue allocate.Queue
}

// Record is the stored last lease of a (group, queue).
type Record struct {
	Key
	Epoch       session.Epoch
	Holder      string // client id; empty if the lease was given back
	Instance    string
	Incarnation session.Incarnation
	// Claimed says that Holder is the member id of a coordinated group's member, whose
	// claim it is, and that the two others are empty.
	Claimed bool
	// TimeoutMillis is the holder's session timeout.
	TimeoutMillis int64
}

// Offset is a committed offset to store with a lease change or a commit.
type Offset struct {
	Key
	Offset int64
}

// Config is what a Table is made of.
type Config struct {
	// BrokerEpoch is the first part of every epoch granted. It must be greater
	// than in every life of the broker before; a table whose stored records
	// tell otherwise counts on from them.
	BrokerEpoch uint64
	// Broken switches rules off, for tests that prove the checker sees it.
	Broken Broken
}

// Broken switches single rules off, so that tests can show that the simulation
// notices. The zero value is the correct table.
type Broken struct {
	// NoCommitEpochCheck accepts commits under any epoch.
	NoCommitEpochCheck bool
	// GrantBeforeRelease grants a held queue to the next asker at once.
	GrantBeforeRelease bool
	// ReleaseWithoutEpoch lets any release free a queue, whoever holds it now.
	ReleaseWithoutEpoch bool
}

// Life identifies a holder: one incarnation of a member.
type Life struct {
	Group       string
	ClientID    string
	Instance    string // static member id, or empty
	Incarnation session.Incarnation
	Timeout     time.Duration // the session timeout, stored with its leases
}

// Out is what must be done after the calls since the last Flush.
type Out struct {
	// PersistID is not 0 if something is to be stored; Persisted is to be
	// called with it once it is on disk. Batches must reach the disk in order.
	PersistID uint64
	Records   []Record
	Offsets   []Offset // move forward only
	Resets    []Offset // may move back
	// Welcomes are the answers to Attach and Inherit that may leave now.
	Welcomes []Welcome
	Mail     []Mail
	Answers  []Answer
	// Idle are queues that lost their holder while nobody waits.
	Idle []Key
}

// Welcome is what a session holds after its hello. It may leave now: everything
// in it is on disk.
type Welcome struct {
	Session uint64
	Grants  []session.Grant // sorted by queue
}

// Mail is what a session must be told, in this order.
type Mail struct {
	Session   uint64
	Lost      []session.LeaseLost
	Withdrawn []session.Withdrawn
	Granted   []session.Grant
	Wanted    []session.LeaseWanted
}

// Answer ends a commit, claim or reset. Err is nil once it is on disk.
type Answer struct {
	Req uint64
	Err error
}

// Stats counts what a table did since it was made.
type Stats struct {
	Acquires       uint64 // queues asked for
	Grants         uint64 // queues granted with a new epoch
	Kept           uint64 // queues given back after a reconnect, epoch unchanged
	Inherited      uint64 // queues taken over by a newer incarnation
	Releases       uint64 // queues released by their holders
	StaleReleases  uint64 // releases ignored because of their epoch
	Withdrawals    uint64 // requests taken back
	Wanted         uint64 // queues that holders were told others wait for
	Dropped        uint64 // leases that ended with their holder
	Commits        uint64 // commits accepted
	CommitsRefused uint64
	Resets         uint64
	Claims         uint64 // queues claimed
	ClaimsRefused  uint64
}
