// Package rpcerr is the one table of errors that cross the wire.
//
// A handler returns a plain error that wraps one of the sentinels below. The
// server interceptors turn it into a gRPC status with an
// errdetails.ErrorInfo{Reason, Domain: "tacit"}; the client interceptors give an
// error back that keeps the text and for which errors.Is holds with the same
// sentinel. What wraps no sentinel becomes INTERNAL without a word of its text,
// which goes to the server's log instead.
//
// Failures of one request of a stream travel as [tacitv1.DataError] or as the
// triple of code, reason and message; [Data], [FromData], [Parts] and [FromParts]
// translate those by the same table.
package rpcerr

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// Domain is the ErrorInfo domain of all reasons.
const Domain = "tacit"

// The errors that cross the wire. Text is added by wrapping them; test with
// errors.Is.
var (
	// ErrInvalidArgument: a field of a request is malformed or out of range. See
	// [FieldError] and [Invalid]. Never retry.
	ErrInvalidArgument = define(codes.InvalidArgument, "INVALID_ARGUMENT", "invalid argument")
	// ErrMessageTooLarge: a message or batch is over the size limit.
	ErrMessageTooLarge = define(codes.InvalidArgument, "MESSAGE_TOO_LARGE", "message too large")
	// ErrBadBatch: a batch is malformed or its checksum is wrong.
	ErrBadBatch = define(codes.InvalidArgument, "BAD_BATCH", "bad batch")
	// ErrOffsetOutOfRange: an offset is outside of what the queue holds.
	ErrOffsetOutOfRange = define(codes.OutOfRange, "OFFSET_OUT_OF_RANGE", "offset out of range")

	// ErrTopicNotFound: no such topic. Refresh the route, then report.
	ErrTopicNotFound = define(codes.NotFound, "TOPIC_NOT_FOUND", "topic not found")
	// ErrGroupNotFound: the consumer group is not known.
	ErrGroupNotFound = define(codes.NotFound, "GROUP_NOT_FOUND", "group not found")
	// ErrQueueNotFound: no such queue on this broker. Refresh the route.
	ErrQueueNotFound = define(codes.NotFound, "QUEUE_NOT_FOUND", "queue not found")
	// ErrMessageNotFound: no message at this offset or with this key.
	ErrMessageNotFound = define(codes.NotFound, "MESSAGE_NOT_FOUND", "message not found")

	// ErrTopicExists: a topic was to be created and exists.
	ErrTopicExists = define(codes.AlreadyExists, "TOPIC_EXISTS", "topic exists")
	// ErrDuplicateClientID: another live member has this client id.
	ErrDuplicateClientID = define(codes.AlreadyExists, "DUPLICATE_CLIENT_ID", "duplicate client id")
	// ErrStaticExists: an incarnation of this static member exists.
	ErrStaticExists = define(codes.AlreadyExists, "STATIC_EXISTS", "static member exists")

	// ErrNotMember: the client has no live session. Say hello first.
	ErrNotMember = define(codes.FailedPrecondition, "NOT_MEMBER", "not a live member of the group")
	// ErrLeaseHeld: somebody holds the queue's lease.
	ErrLeaseHeld = define(codes.FailedPrecondition, "LEASE_HELD", "lease is held")
	// ErrNotReadable: the topic's permission forbids reading.
	ErrNotReadable = define(codes.FailedPrecondition, "NOT_READABLE", "not readable")
	// ErrNotWritable: the topic's permission forbids writing.
	ErrNotWritable = define(codes.FailedPrecondition, "NOT_WRITABLE", "not writable")
	// ErrModeMismatch: the group has another hand-over mode.
	ErrModeMismatch = define(codes.FailedPrecondition, "MODE_MISMATCH", "hand-over mode differs from the group's")
	// ErrStrategyMismatch: no strategy in common with the present members.
	ErrStrategyMismatch = define(codes.FailedPrecondition, "STRATEGY_MISMATCH", "no allocate strategy in common with the group")
	// ErrFilterMismatch: the group filters this topic differently.
	ErrFilterMismatch = define(codes.FailedPrecondition, "FILTER_MISMATCH", "filter differs from the group's")
	// ErrFenced: a newer incarnation of this static member took over.
	ErrFenced = define(codes.FailedPrecondition, "FENCED", "fenced by a newer incarnation")
	// ErrProducerFenced: a producer with this id and a newer epoch exists.
	ErrProducerFenced = define(codes.FailedPrecondition, "PRODUCER_FENCED", "producer fenced by a newer epoch")
	// ErrSequenceExpired: a repeated batch is older than the window in which
	// repeats are detected; whether it is stored is not known.
	ErrSequenceExpired = define(codes.FailedPrecondition, "SEQUENCE_EXPIRED", "producer sequence is older than the window")
	// ErrGroupActive: members hold what was to be reset or deleted.
	ErrGroupActive = define(codes.FailedPrecondition, "GROUP_ACTIVE", "group is active")
	// ErrUnreadBacklog: queues to be removed hold unread messages.
	ErrUnreadBacklog = define(codes.FailedPrecondition, "UNREAD_BACKLOG", "queues hold unread messages")

	// ErrStaleEpoch: the lease epoch is not the current one. Fetch a new view.
	ErrStaleEpoch = define(codes.Aborted, "STALE_EPOCH", "stale lease epoch")
	// ErrSessionExpired: the session timed out. Say hello again.
	ErrSessionExpired = define(codes.Aborted, "SESSION_EXPIRED", "session expired")
	// ErrSessionReplaced: a newer session of the same incarnation came.
	ErrSessionReplaced = define(codes.Aborted, "SESSION_REPLACED", "session replaced")

	// ErrDiskFull: appends are refused until there is space; reads go on.
	ErrDiskFull = define(codes.ResourceExhausted, "DISK_FULL", "disk full")
	// ErrOverloaded: too much is waiting. Retry with backoff.
	ErrOverloaded = define(codes.ResourceExhausted, "OVERLOADED", "overloaded")
	// ErrLimitReached: a configured limit on the number of things is reached.
	ErrLimitReached = define(codes.ResourceExhausted, "LIMIT_REACHED", "limit reached")

	// ErrShuttingDown: the server is going down. Retry with backoff.
	ErrShuttingDown = define(codes.Unavailable, "SHUTTING_DOWN", "shutting down")
	// ErrWarming: the server started a moment ago and cannot tell yet. Keep what
	// you have and retry.
	ErrWarming = define(codes.Unavailable, "WARMING", "warming up")
	// ErrUnreachable: no server could be reached.
	ErrUnreachable = define(codes.Unavailable, "UNREACHABLE", "unreachable")

	// ErrDamaged: stored data failed its checksum.
	ErrDamaged = define(codes.DataLoss, "DAMAGED", "stored data is damaged")
	// ErrInternal: a bug of the server; its log has the text.
	ErrInternal = define(codes.Internal, "INTERNAL", "internal error")
)

// table lists every sentinel, for the way back.
func table() []error {
	return []error{
		ErrInvalidArgument, ErrMessageTooLarge, ErrBadBatch, ErrOffsetOutOfRange,
		ErrTopicNotFound, ErrGroupNotFound, ErrQueueNotFound, ErrMessageNotFound,
		ErrTopicExists, ErrDuplicateClientID, ErrStaticExists,
		ErrNotMember, ErrLeaseHeld, ErrNotReadable, ErrNotWritable, ErrModeMismatch, ErrStrategyMismatch,
		ErrFilterMismatch, ErrFenced, ErrProducerFenced, ErrSequenceExpired, ErrGroupActive, ErrUnreadBacklog,
		ErrStaleEpoch, ErrSessionExpired, ErrSessionReplaced,
		ErrDiskFull, ErrOverloaded, ErrLimitReached,
		ErrShuttingDown, ErrWarming, ErrUnreachable,
		ErrDamaged, ErrInternal,
	}
}

// sentinel is one line of the table.
type sentinel struct {
	code   codes.Code
	reason string
	text   string
}

func define(code codes.Code, reason, text string) error {
	return &sentinel{code: code, reason: reason, text: text}
}

func (s *sentinel) Error() string { return s.text }

// FieldError says which field of a request is wrong, and how. It wraps
// [ErrInvalidArgument] and crosses the wire as such.
type FieldError struct {
	// Field is the path as in the API, as "topic" or "hello.subscriptions[2].filter".
	Field string
	// Text has the value and what is allowed.
	Text string
}

func (e *FieldError) Error() string { return e.Field + " " + e.Text }

// Unwrap makes errors.Is(err, ErrInvalidArgument) hold.
func (e *FieldError) Unwrap() error { return ErrInvalidArgument }

// Invalid returns a [FieldError]; the text follows the name of the field, as in
// Invalid("queue_id", "-1: must be 0 or greater").
func Invalid(field, format string, args ...any) error {
	return &FieldError{Field: field, Text: fmt.Sprintf(format, args...)}
}

// In prefixes the field of a [FieldError] or [message.LimitError] in err with
// the message or list it lies in: In(err, "hello") makes "topic" "hello.topic".
// Other errors and nil stay as they are.
func In(err error, outer string) error {
	if fe, ok := errors.AsType[*FieldError](err); ok {
		return &FieldError{Field: outer + "." + fe.Field, Text: fe.Text}
	}
	if le, ok := errors.AsType[*message.LimitError](err); ok {
		return &FieldError{Field: outer + "." + le.Field, Text: le.Value + ": must be " + le.Limit}
	}
	return err
}

// With makes err also match sentinel and keeps its text: for errors of packages
// that know nothing of the wire.
func With(sentinel, err error) error { return &marked{sentinel: sentinel, err: err} }

type marked struct{ sentinel, err error }

func (m *marked) Error() string   { return m.err.Error() }
func (m *marked) Unwrap() []error { return []error{m.sentinel, m.err} }

// Refusal is the error for a session that a broker refused or ended: the
// sentinel of the reason with the broker's text.
func Refusal(r session.Reason, text string) error {
	var s error
	switch r {
	case session.ReasonModeMismatch:
		s = ErrModeMismatch
	case session.ReasonStrategyMismatch:
		s = ErrStrategyMismatch
	case session.ReasonFilterMismatch:
		s = ErrFilterMismatch
	case session.ReasonDuplicateClientID:
		s = ErrDuplicateClientID
	case session.ReasonFenced:
		s = ErrFenced
	case session.ReasonStaticExists:
		s = ErrStaticExists
	case session.ReasonExpired:
		s = ErrSessionExpired
	case session.ReasonBadRequest:
		s = ErrInvalidArgument
	case session.ReasonShutdown:
		s = ErrShuttingDown
	case session.ReasonUnknownQueue:
		s = ErrQueueNotFound
	case session.ReasonReplaced:
		s = ErrSessionReplaced
	default:
		return fmt.Errorf("session refused: %s: %s", r, text)
	}
	if text == "" {
		return s
	}
	return fmt.Errorf("%w: %s", s, text)
}
