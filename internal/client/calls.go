package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// call runs f against a broker within the call timeout.
func (c *cluster) call(ctx context.Context, name, what string, f func(ctx context.Context, b *broker) error) error {
	b, err := c.find(name)
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.CallTimeout)
		defer cancel()
		err = f(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("%s at broker %s: %w", what, name, err)
	}
	return nil
}

func (c *cluster) FindOffset(ctx context.Context, q allocate.Queue, t time.Time) (out Bounds, err error) {
	err = c.call(ctx, q.Broker, "find offset", func(ctx context.Context, b *broker) error {
		req := &tacitv1.FindOffsetRequest{Queue: wire.Queue(q)}
		if !t.IsZero() {
			req.Time = timestamppb.New(t)
		}
		resp, err := b.data.FindOffset(ctx, req)
		out = Bounds{Offset: resp.GetOffset(), Min: resp.GetMinOffset(), Max: resp.GetMaxOffset()}
		return err
	})
	return out, err
}

func (c *cluster) Commit(ctx context.Context, name string, r CommitRequest) (out []error, err error) {
	req := &tacitv1.CommitRequest{Group: r.Group, ClientId: r.ClientID, Offsets: make([]*tacitv1.OffsetCommit, len(r.Offsets))}
	for i, o := range r.Offsets {
		req.Offsets[i] = &tacitv1.OffsetCommit{Queue: wire.Queue(o.Queue), Offset: o.Offset, Epoch: wire.Epoch(o.Epoch)}
	}
	err = c.call(ctx, name, "commit", func(ctx context.Context, b *broker) error {
		resp, err := b.offsets.Commit(ctx, req)
		if err != nil {
			return err
		}
		if n := len(resp.GetResults()); n != len(r.Offsets) {
			return fmt.Errorf("%w: %d results for %d offsets", rpcerr.ErrInternal, n, len(r.Offsets))
		}
		out = make([]error, len(r.Offsets))
		for i, res := range resp.GetResults() {
			out[i] = rpcerr.FromParts(codes.Code(res.GetCode()), res.GetReason(), res.GetMessage())
		}
		return nil
	})
	return out, err
}

func (c *cluster) Committed(ctx context.Context, name, group string, queues []allocate.Queue, at time.Time) (out Committed, err error) {
	req := &tacitv1.CommittedRequest{Group: group, Queues: make([]*tacitv1.MessageQueue, len(queues))}
	if !at.IsZero() {
		req.Time = timestamppb.New(at)
	}
	for i, q := range queues {
		req.Queues[i] = wire.Queue(q)
	}
	err = c.call(ctx, name, "read committed offsets", func(ctx context.Context, b *broker) error {
		resp, err := b.offsets.Committed(ctx, req)
		if err != nil {
			return err
		}
		out.Ever = resp.GetEverCommitted()
		out.Offsets = make([]CommittedOffset, len(resp.GetOffsets()))
		for i, o := range resp.GetOffsets() {
			out.Offsets[i] = CommittedOffset{
				Queue:  allocate.Queue{Topic: o.GetQueue().GetTopic(), Broker: o.GetQueue().GetBroker(), ID: o.GetQueue().GetQueueId()},
				Offset: o.GetOffset(), HasOffset: o.GetHasOffset(), Min: o.GetMinOffset(), Max: o.GetMaxOffset(),
				AtTime: o.GetTimeOffset(),
			}
		}
		return nil
	})
	return out, err
}

func (c *cluster) SendBack(ctx context.Context, r SendBackRequest) (out SendBackResult, err error) {
	req := &tacitv1.SendBackRequest{
		Group: r.Group, Queue: wire.Queue(r.Queue), Epoch: wire.Epoch(r.Epoch), Offset: r.Offset,
		DelayLevel: r.Level, MaxReconsumeTimes: r.MaxReconsumeTimes, ReconsumeTimes: r.ReconsumeTimes, Cause: r.Cause,
	}
	if r.Delay > 0 {
		req.Delay = durationpb.New(r.Delay)
	}
	err = c.call(ctx, r.Queue.Broker, "send back", func(ctx context.Context, b *broker) error {
		resp, err := b.offsets.SendBack(ctx, req)
		out = SendBackResult{
			DeadLetter: resp.GetDeadLetter(), ReconsumeTimes: resp.GetReconsumeTimes(), Duplicate: resp.GetDuplicate(), Delay: resp.GetDelay().AsDuration(),
		}
		return err
	})
	return out, err
}
