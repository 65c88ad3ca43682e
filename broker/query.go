package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// FindOffset returns the first offset of a queue that was stored at or after a
// time; without a time the lowest.
func (s *Server) FindOffset(_ context.Context, req *tacitv1.FindOffsetRequest) (*tacitv1.FindOffsetResponse, error) {
	q, err := s.ownQueue(req.GetQueue())
	if err != nil {
		return nil, err
	}
	low, high, err := s.store.Bounds(localQueue(q))
	if err != nil {
		return nil, fromStore(err)
	}
	resp := &tacitv1.FindOffsetResponse{Offset: low, MinOffset: low, MaxOffset: high}
	if req.GetTime() == nil {
		return resp, nil
	}
	if err := req.GetTime().CheckValid(); err != nil {
		return nil, rpcerr.Invalid("time", "is no time: %v", err)
	}
	if resp.Offset, err = s.store.SearchByTime(localQueue(q), req.GetTime().AsTime().UnixMilli()); err != nil {
		return nil, fmt.Errorf("search topic %q queue %d by time: %w", q.Topic, q.ID, fromStore(err))
	}
	return resp, nil
}

const (
	defaultQuery = 32
	maxQuery     = 64
	// maxQueryBytes bounds the answer.
	maxQueryBytes = 16 << 20
)

// QueryMessages returns the newest batches of a topic that may hold a key.
func (s *Server) QueryMessages(_ context.Context, req *tacitv1.QueryMessagesRequest) (*tacitv1.QueryMessagesResponse, error) {
	if err := message.CheckTopic(req.GetTopic()); err != nil {
		return nil, err //nolint:wrapcheck // says all
	}
	if n := len(req.GetKey()); n == 0 || n > message.MaxKeyLength {
		return nil, rpcerr.Invalid("key", "of %d bytes: must be 1 to %d bytes", n, message.MaxKeyLength)
	}
	most := int(req.GetMax())
	switch {
	case most == 0:
		most = defaultQuery
	case most < 0 || most > maxQuery:
		return nil, rpcerr.Invalid("max", "%d: must be 1 to %d", most, maxQuery)
	}
	from, to := int64(0), time.Now().Add(time.Hour).UnixMilli()
	if t := req.GetFrom(); t != nil {
		from = t.AsTime().UnixMilli()
	}
	if t := req.GetTo(); t != nil {
		to = t.AsTime().UnixMilli()
	}
	if _, err := s.topics.get(req.GetTopic()); err != nil {
		return nil, err
	}
	hash := batch.Hash(req.GetKey())
	look := most
	if req.GetFrom() != nil || req.GetTo() != nil {
		look = 64 * most // newer ones may be out of the time asked for
	}
	places, err := s.store.LookupKey(req.GetTopic(), hash, look)
	if err != nil {
		return nil, fmt.Errorf("look up key in topic %q: %w", req.GetTopic(), fromStore(err))
	}
	resp := &tacitv1.QueryMessagesResponse{}
	total := 0
	for _, p := range places {
		if p.Time < from || p.Time > to {
			continue
		}
		b, err := s.readBatch(p, hash)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		if total += len(b); total > maxQueryBytes && len(resp.GetBatches()) > 0 {
			break
		}
		if resp.Batches = append(resp.Batches, b); len(resp.GetBatches()) == most {
			break
		}
	}
	return resp, nil
}

// readBatch returns a copy of the batch at p, nil if it has gone or lacks the key.
func (s *Server) readBatch(p store.Location, key uint64) ([]byte, error) {
	var res store.Result
	defer res.Release()
	if err := s.store.Read(&res, p.Queue, p.Offset, 1, nil); err != nil || len(res.Batches) == 0 {
		return nil, nil // retention was faster
	}
	b := res.Batches[0]
	h, err := batch.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("read topic %q queue %d offset %d: %w: %w", p.Queue.Topic, p.Queue.ID, p.Offset, rpcerr.ErrDamaged, err)
	}
	if h.Flags&batch.FlagManyKeys == 0 {
		found := false
		for i := range h.Keys() {
			found = found || h.Key(i) == key
		}
		if !found {
			return nil, nil
		}
	}
	return slices.Clone(b), nil
}
