package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// Claim holds queues for a member of a coordinated group. Each claim is on disk when it
// is answered, and the answer has where the group is.
func (s *Server) Claim(ctx context.Context, req *tacitv1.ClaimRequest) (*tacitv1.ClaimResponse, error) {
	if err := message.CheckGroup(req.GetGroup()); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	generation := wire.ToEpoch(req.GetGeneration())
	switch n := len(req.GetMemberId()); {
	case n == 0 || n > wire.MaxMemberID:
		return nil, rpcerr.Invalid("member_id", "of %d bytes: must be 1 to %d bytes", n, wire.MaxMemberID)
	case generation.IsZero():
		return nil, rpcerr.Invalid("generation", "is zero: only a member of a generation has queues")
	}
	if n := len(req.GetQueues()); n > maxOffsets {
		return nil, rpcerr.Invalid("queues", "has %d entries: must be at most %d", n, maxOffsets)
	}
	results := make([]*tacitv1.ClaimResult, len(req.GetQueues()))
	asked := make([]int, 0, len(results))
	queues := make([]allocate.Queue, len(results))
	for i, m := range req.GetQueues() {
		results[i] = &tacitv1.ClaimResult{Queue: m}
		q, err := s.ownQueue(m)
		if err != nil {
			s.setClaim(results[i], rpcerr.In(err, fmt.Sprintf("queues[%d]", i)))
			continue
		}
		queues[i] = q
		asked = append(asked, i)
	}
	errs, err := s.driver.ask(ctx, len(asked), func(n int, id uint64) group.Event {
		return group.Claim{
			Req: id, Key: lease.Key{Group: req.GetGroup(), Queue: queues[asked[n]]},
			Member: req.GetMemberId(), Generation: generation,
		}
	})
	if err != nil {
		return nil, err
	}
	state := s.store.State()
	for n, i := range asked {
		if errs[n] != nil {
			s.setClaim(results[i], errs[n])
			continue
		}
		results[i].Offset, results[i].HasOffset = state.Offset(req.GetGroup(), localQueue(queues[i]))
	}
	s.metrics.claims.Add(float64(len(results)))
	return &tacitv1.ClaimResponse{Results: results}, nil
}

func (s *Server) setClaim(r *tacitv1.ClaimResult, err error) {
	code, reason, text, known := rpcerr.Parts(err)
	if !known {
		s.logInternal("claim", err)
	}
	r.Code, r.Reason, r.Message = int32(code), reason, text //nolint:gosec // codes are small
	if outdated, ok := errors.AsType[*lease.Outdated](err); ok {
		r.Seen = wire.Epoch(outdated.Seen)
	}
	s.metrics.claimErrors.WithLabelValues(reason).Inc()
}
