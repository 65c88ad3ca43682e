package consumer

import (
	"errors"

	"github.com/tacitmq/tacit/internal/rpcerr"
)

// Errors of this package, to be tested with errors.Is.
var (
	// ErrClosed: the consumer is closed, or was run before.
	ErrClosed = errors.New("consumer is closed")
	// ErrNotAssigned: the queue is not this consumer's.
	ErrNotAssigned = errors.New("queue is not assigned")
)

// Errors of brokers and name servers, to be tested with errors.Is.
var (
	ErrTopicNotFound     = rpcerr.ErrTopicNotFound
	ErrModeMismatch      = rpcerr.ErrModeMismatch
	ErrStrategyMismatch  = rpcerr.ErrStrategyMismatch
	ErrFilterMismatch    = rpcerr.ErrFilterMismatch
	ErrDuplicateClientID = rpcerr.ErrDuplicateClientID
	ErrFenced            = rpcerr.ErrFenced
	ErrUnreachable       = rpcerr.ErrUnreachable
	ErrStaleEpoch        = rpcerr.ErrStaleEpoch
	ErrLeaseHeld         = rpcerr.ErrLeaseHeld
)
