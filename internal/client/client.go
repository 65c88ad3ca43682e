// Package client is how consumers and producers reach brokers and name servers:
// one interface in plain Go types, [Cluster], and its implementation over gRPC.
//
// Nothing above this package knows what the wire is made of. All calls end
// within their timeout whatever the other side does: a broker that is dead,
// half-open or silent costs its callers an error, never a hang.
package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// Cluster is the one interface between the SDK and the brokers and name servers
// of a cluster. It is safe for concurrent use and shared by all consumers and
// producers of a process that have the same settings.
type Cluster interface {
	// Watch follows the routes of topics. changed is called after each change and
	// must not block; it may be called spuriously.
	Watch(changed func()) Watch
	// OpenSession opens a member's session stream to a broker. receive gets the
	// frames in order, on one goroutine; when it blocks, the stream waits.
	OpenSession(ctx context.Context, broker string, receive func(session.ToMember)) (Session, error)

	// Produce sends a batch; call.Done gets the outcome, perhaps before Produce
	// returns.
	Produce(call *ProduceCall)
	// Fetch asks for batches; call.Done gets the outcome, perhaps before Fetch
	// returns. The call may be used again once Done was called or CancelFetch
	// returned true.
	Fetch(call *FetchCall)
	// CancelFetch takes a call back. True: Done will not be called. False: it has
	// been or is being called.
	CancelFetch(call *FetchCall) bool
	// Follow decides, while Done gets a result that is Following, whether the call goes
	// on. It reports false if it has failed, which Done is told next.
	Follow(call *FetchCall, on bool) bool

	// FindOffset returns the first offset of the queue stored at or after t. The
	// zero time asks for the bounds only.
	FindOffset(ctx context.Context, q allocate.Queue, t time.Time) (Bounds, error)
	// Commit stores offsets at one broker. The results are in the order of the
	// request; the error is that of the call as a whole.
	Commit(ctx context.Context, broker string, req CommitRequest) ([]error, error)
	// Committed returns what a group has stored at one broker. With a time that is
	// not zero it also finds the first offset of each queue stored at or after it.
	Committed(ctx context.Context, broker, group string, queues []allocate.Queue, at time.Time) (Committed, error)
	// SendBack gives a message back to its broker, to be retried later.
	SendBack(ctx context.Context, req SendBackRequest) (SendBackResult, error)

	// Close gives this reference to the cluster back. The last one ends its
	// connections.
	Close()
}

// Watch is somebody's interest in the routes of some topics.
type Watch interface {
	// SetTopics replaces the topics.
	SetTopics(topics []string)
	// Routes returns what is known of the topics, sorted by name. A topic that
	// no name server has told of yet is missing; one that does not exist has no
	// hosts.
	Routes() []route.Topic
	// Refresh asks the name servers again now. Rate limited.
	Refresh()
	// Ready returns nil once a name server has answered; otherwise what keeps
	// them, which wraps ErrUnreachable. It does not wait.
	Ready() error
	// Close ends the interest. changed is not called after it returns.
	Close()
}

// Session is a member's open session stream to a broker.
type Session interface {
	// Send sends a frame after those before it. It does not block; a stream that
	// cannot keep up ends.
	Send(frame session.ToBroker)
	// Wait waits for the end of the stream and returns why it ended. receive is
	// not called after it has returned.
	Wait() error
	// Close ends the stream. With flush, what was sent before is still written,
	// for at most a second.
	Close(flush bool)
}

// ProduceCall is one batch on its way to a broker.
type ProduceCall struct {
	Broker  string
	Batch   []byte        // must not change before Done
	Timeout time.Duration // 0: the client's call timeout
	// Done gets the outcome, once. It must not block. After an error it is not
	// known whether the batch is stored, unless the error is one of the broker's.
	Done func(ProduceResult, error)
}

// ProduceResult says where a batch is stored.
type ProduceResult struct {
	Offset    int64 // of its first message
	StoreTime time.Time
	Duplicate bool // it was stored before
}

// FetchCall is one request for batches. Its fields must not change between Fetch
// and Done or CancelFetch.
type FetchCall struct {
	Queue    allocate.Queue
	Group    string
	Epoch    session.Epoch // of the lease; zero without one
	Offset   int64
	MaxBytes int
	Wait     time.Duration // long poll
	Tags     []uint64      // hashes of the wanted tags; none: everything
	// Follow lets the broker go on after an answer with all there is, as with a fetch
	// from FetchResult.Next. Whoever is told so decides with Cluster.Follow before Done
	// returns; otherwise the call is over.
	Follow bool
	// Done gets the outcome, once; again after each that is Following. It must not block.
	Done func(FetchResult, error)

	pipe atomic.Pointer[pipe] // where it waits
	id   atomic.Uint64        // its number there
}

// FetchResult holds batches as stored. With an offset out of range, Min and Max
// are set beside the error.
type FetchResult struct {
	// Batches lie one after another. Memory is theirs until Free; without it the
	// garbage collector takes it.
	Batches []byte
	// Next is where to go on, also when batches were filtered out.
	Next int64
	Bounds
	// Following says that the call goes on: Done will be called again.
	Following bool

	resp *rawcodec.FetchResponse
}

// Free gives the memory of Batches back, which nothing may refer to any more.
func (r *FetchResult) Free() {
	if r.resp != nil {
		r.resp.Free()
		r.resp, r.Batches = nil, nil
	}
}

// Bounds of a queue, and an offset in it.
type Bounds struct {
	Offset   int64 // what was asked for, if anything
	Min, Max int64 // Max is one past the last readable message
}

// CommitRequest holds offsets of one broker's queues.
type CommitRequest struct {
	Group, ClientID string
	Offsets         []OffsetCommit
}

// OffsetCommit is a group's progress on one queue: the next offset to read.
type OffsetCommit struct {
	Queue  allocate.Queue
	Offset int64
	Epoch  session.Epoch // zero without a lease
}

// Committed is what a group has stored at a broker.
type Committed struct {
	Offsets []CommittedOffset
	// Ever says that the group has a stored offset for one of the topics asked
	// for at this broker, on any queue.
	Ever bool
}

// CommittedOffset is a group's stored progress on one queue.
type CommittedOffset struct {
	Queue     allocate.Queue
	Offset    int64
	HasOffset bool
	Min, Max  int64
	AtTime    int64 // Max if nothing is as new as the time asked for
}

// SendBackRequest gives one message back.
type SendBackRequest struct {
	Group  string
	Queue  allocate.Queue
	Epoch  session.Epoch
	Offset int64
	// Level is a delay level, 1 to 18, or -1 for a dead letter at once; Delay a
	// time instead. With neither the broker chooses by attempt.
	Level int32
	Delay time.Duration
	// MaxReconsumeTimes is after how many attempts the message becomes a dead
	// letter. 0: the broker's default.
	MaxReconsumeTimes int32
	// ReconsumeTimes counts repeats in place, which the broker does not know of.
	ReconsumeTimes int32
	Cause          string
}

// SendBackResult says what became of a message that was sent back.
type SendBackResult struct {
	DeadLetter     bool
	ReconsumeTimes int32
	Duplicate      bool
	Delay          time.Duration // until it is handed out again
}
