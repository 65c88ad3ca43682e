package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// maxOffsets bounds the queues of one commit.
const maxOffsets = 1 << 16

// Commit stores offsets under their leases' epochs. Each is on disk when it is
// answered, and none moves back.
func (s *Server) Commit(ctx context.Context, req *tacitv1.CommitRequest) (*tacitv1.CommitResponse, error) {
	if err := message.CheckGroup(req.GetGroup()); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	if n := len(req.GetOffsets()); n > maxOffsets {
		return nil, rpcerr.Invalid("offsets", "has %d entries: must be at most %d", n, maxOffsets)
	}
	results := make([]*tacitv1.OffsetResult, len(req.GetOffsets()))
	asked := make([]int, 0, len(results))
	queues := make([]allocate.Queue, len(results))
	for i, o := range req.GetOffsets() {
		results[i] = &tacitv1.OffsetResult{Queue: o.GetQueue()}
		q, err := s.ownQueue(o.GetQueue())
		if err == nil {
			err = s.checkOffset(q, o.GetOffset())
		}
		if err == nil {
			err = s.kept.check(req.GetGroup(), q, wire.ToEpoch(o.GetEpoch()), o.GetOffset(), false)
		}
		if err != nil {
			s.setResult(results[i], rpcerr.In(err, fmt.Sprintf("offsets[%d]", i)))
			continue
		}
		queues[i] = q
		asked = append(asked, i)
	}
	errs, err := s.driver.ask(ctx, len(asked), func(n int, id uint64) group.Event {
		o := req.GetOffsets()[asked[n]]
		return group.Commit{
			Req: id, Key: lease.Key{Group: req.GetGroup(), Queue: queues[asked[n]]},
			Epoch: wire.ToEpoch(o.GetEpoch()), Offset: o.GetOffset(),
		}
	})
	if err != nil {
		return nil, err
	}
	for n, i := range asked {
		s.setResult(results[i], errs[n])
	}
	s.metrics.commits.Add(float64(len(asked)))
	return &tacitv1.CommitResponse{Results: results}, nil
}

func (s *Server) setResult(r *tacitv1.OffsetResult, err error) {
	if err == nil {
		return
	}
	code, reason, text, known := rpcerr.Parts(err)
	if !known {
		s.logInternal("commit", err)
	}
	r.Code, r.Reason, r.Message = int32(code), reason, text //nolint:gosec // codes are small
	s.metrics.commitErrors.WithLabelValues(reason).Inc()
}

// ownQueue decodes the name of a queue and checks that this broker has it.
func (s *Server) ownQueue(m *tacitv1.MessageQueue) (allocate.Queue, error) {
	if m != nil && m.GetBroker() == "" {
		m = &tacitv1.MessageQueue{Topic: m.GetTopic(), Broker: s.cfg.Name, QueueId: m.GetQueueId()}
	}
	q, err := wire.ToQueue(m)
	if err != nil {
		return q, err //nolint:wrapcheck // names the field
	}
	if q.Broker != s.cfg.Name {
		return q, fmt.Errorf("%w: queue of broker %q, this is %q", rpcerr.ErrQueueNotFound, q.Broker, s.cfg.Name)
	}
	t, err := s.topics.get(q.Topic)
	if err != nil {
		return q, err
	}
	if q.ID >= t.read {
		return q, fmt.Errorf("%w: topic %q has queues 0 to %d here, not %d", rpcerr.ErrQueueNotFound, t.name, t.read-1, q.ID)
	}
	return q, nil
}

// checkOffset refuses offsets that no reader of the queue can have reached.
func (s *Server) checkOffset(q allocate.Queue, offset int64) error {
	if offset < 0 {
		return rpcerr.Invalid("offset", "%d: must be 0 or greater", offset)
	}
	_, high, err := s.store.Bounds(localQueue(q))
	if err != nil {
		return fromStore(err)
	}
	if offset > high {
		return fmt.Errorf("%w: offset %d of topic %q queue %d, which ends at %d", rpcerr.ErrOffsetOutOfRange, offset, q.Topic, q.ID, high)
	}
	return nil
}

// Committed returns stored offsets. Queues of other brokers may be named: they
// count for ever_committed by their topic and are not answered.
func (s *Server) Committed(_ context.Context, req *tacitv1.CommittedRequest) (*tacitv1.CommittedResponse, error) {
	if err := message.CheckGroup(req.GetGroup()); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	if n := len(req.GetQueues()); n > maxOffsets {
		return nil, rpcerr.Invalid("queues", "has %d entries: must be at most %d", n, maxOffsets)
	}
	if t := req.GetTime(); t != nil {
		if err := t.CheckValid(); err != nil {
			return nil, rpcerr.Invalid("time", "is no time: %v", err)
		}
	}
	state := s.store.State()
	resp := &tacitv1.CommittedResponse{}
	if len(req.GetQueues()) == 0 {
		for q, offset := range state.Offsets(req.GetGroup()) {
			resp.EverCommitted = true
			low, high, err := s.store.Bounds(q)
			if err != nil {
				continue // deleted meanwhile
			}
			resp.Offsets = append(resp.Offsets, &tacitv1.CommittedOffset{
				Queue: s.protoQueue(q), Offset: offset, HasOffset: true, MinOffset: low, MaxOffset: high,
			})
		}
		slices.SortFunc(resp.GetOffsets(), func(a, b *tacitv1.CommittedOffset) int {
			return cmp.Or(strings.Compare(a.GetQueue().GetTopic(), b.GetQueue().GetTopic()), cmp.Compare(a.GetQueue().GetQueueId(), b.GetQueue().GetQueueId()))
		})
		return resp, nil
	}
	topics := make(map[string]bool)
	for i, m := range req.GetQueues() {
		topics[m.GetTopic()] = true
		if m.GetBroker() != "" && m.GetBroker() != s.cfg.Name {
			continue
		}
		q, err := s.ownQueue(m)
		if errors.Is(err, rpcerr.ErrTopicNotFound) {
			continue // never committed here
		}
		if err != nil {
			return nil, rpcerr.In(err, fmt.Sprintf("queues[%d]", i))
		}
		low, high, err := s.store.Bounds(localQueue(q))
		if err != nil {
			return nil, fmt.Errorf("bounds of topic %q queue %d: %w", q.Topic, q.ID, fromStore(err))
		}
		o := &tacitv1.CommittedOffset{Queue: wire.Queue(q), MinOffset: low, MaxOffset: high}
		o.Offset, o.HasOffset = state.Offset(req.GetGroup(), localQueue(q))
		if t := req.GetTime(); t != nil {
			if o.TimeOffset, err = s.store.SearchByTime(localQueue(q), t.AsTime().UnixMilli()); err != nil {
				return nil, fmt.Errorf("search topic %q queue %d by time: %w", q.Topic, q.ID, fromStore(err))
			}
		}
		resp.Offsets = append(resp.Offsets, o)
	}
	for q := range state.Offsets(req.GetGroup()) {
		if topics[q.Topic] {
			resp.EverCommitted = true
			break
		}
	}
	return resp, nil
}

func (s *Server) protoQueue(q store.Queue) *tacitv1.MessageQueue {
	return &tacitv1.MessageQueue{Topic: q.Topic, Broker: s.cfg.Name, QueueId: q.ID}
}
