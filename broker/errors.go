package broker

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
)

// fromStore marks an error of the store with what it is on the wire.
func fromStore(err error) error {
	for _, m := range []struct{ is, sentinel error }{
		{store.ErrNoQueue, rpcerr.ErrQueueNotFound},
		{store.ErrBadBatch, rpcerr.ErrBadBatch},
		{store.ErrOffsetRange, rpcerr.ErrOffsetOutOfRange},
		{store.ErrNoSpace, rpcerr.ErrDiskFull},
		{store.ErrFenced, rpcerr.ErrProducerFenced},
		{store.ErrSequenceExpired, rpcerr.ErrSequenceExpired},
		{store.ErrDamaged, rpcerr.ErrDamaged},
		{store.ErrClosed, rpcerr.ErrShuttingDown},
	} {
		if errors.Is(err, m.is) {
			return rpcerr.With(m.sentinel, err)
		}
	}
	return err
}

// fromLease marks an error of the lease table with what it is on the wire.
func fromLease(err error) error {
	for _, m := range []struct{ is, sentinel error }{
		{lease.ErrStaleEpoch, rpcerr.ErrStaleEpoch},
		{lease.ErrLeaseHeld, rpcerr.ErrLeaseHeld},
		{lease.ErrUnknownQueue, rpcerr.ErrQueueNotFound},
		{lease.ErrNotMember, rpcerr.ErrNotMember},
		{lease.ErrNegativeOffset, rpcerr.ErrInvalidArgument},
	} {
		if errors.Is(err, m.is) {
			return rpcerr.With(m.sentinel, err)
		}
	}
	return err
}

// dataError is the failure of one request of a data stream. What is not an error
// of the wire is logged, since its text does not leave the broker.
func (s *Server) dataError(err error) *rawcodec.Error {
	code, reason, text, known := rpcerr.Parts(err)
	if !known && code == codes.Internal {
		s.logInternal("data stream", err)
	}
	return &rawcodec.Error{Code: int32(code), Reason: reason, Message: text} //nolint:gosec // codes are small
}
