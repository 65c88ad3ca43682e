package nameserver

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/nameserver/route"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// Register keeps a broker registered while its messages come.
func (s *Server) Register(stream grpc.BidiStreamingServer[tacitv1.RegisterRequest, tacitv1.RegisterResponse]) error {
	s.mu.Lock()
	s.stream++
	id := s.stream
	s.mu.Unlock()
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()

	type received struct {
		m   *tacitv1.RegisterRequest
		err error
	}
	in := make(chan received)
	go func() { // ends when this handler returns, which ends the stream
		for {
			m, err := stream.Recv()
			select {
			case in <- received{m, err}:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		select {
		case <-s.closing:
			return rpcerr.ErrShuttingDown
		case r := <-in:
			if errors.Is(r.err, io.EOF) {
				return nil
			}
			if r.err != nil {
				return r.err
			}
			answer, err := s.register(id, r.m)
			if err != nil {
				s.metrics.registered("refused")
				s.log.Warn("registration refused", zap.String("broker", r.m.GetEntry().GetBroker()), zap.Error(err))
				return err
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

// register applies one message of a broker.
func (s *Server) register(stream uint64, m *tacitv1.RegisterRequest) (*tacitv1.RegisterResponse, error) {
	reg, err := toRegister(stream, m)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	result, err := s.table.Apply(now, reg)
	if limit, ok := errors.AsType[*route.ErrLimit](err); ok {
		return nil, rpcerr.With(rpcerr.ErrLimitReached, limit)
	} else if err != nil {
		return nil, err
	}
	s.note(reg, result)
	s.publish(now, result.Change)
	return &tacitv1.RegisterResponse{Seq: m.GetSeq(), NeedFull: result.NeedFull, SupersededByEpoch: result.SupersededBy}, nil
}

// note counts a registration and logs what an operator cares about.
func (s *Server) note(reg route.Register, result route.Result) {
	broker, address := zap.String("broker", reg.Entry.Name), zap.String("address", reg.Entry.Address)
	epoch := zap.Uint64("broker_epoch", reg.Entry.Stamp.Epoch)
	switch {
	case result.SupersededBy > 0:
		s.metrics.registered("superseded")
		s.log.Warn("broker is behind a registered one of its name", broker, address, epoch, zap.Uint64("registered_epoch", result.SupersededBy))
	case result.NeedFull:
		s.metrics.registered("need_full")
		s.log.Info("broker is asked for all its topics", broker, address, epoch)
	case reg.Leaving && result.Brokers:
		s.metrics.registered("left")
		s.log.Info("broker signed off", broker, address, epoch)
	case reg.Leaving:
		s.metrics.registered("late_leave")
		s.log.Info("late sign-off ignored", broker, address, epoch)
	case result.Brokers:
		s.metrics.registered("full")
		s.log.Info("broker registered", broker, address, epoch, zap.Int("topics", len(reg.Topics)))
	case reg.Full:
		s.metrics.registered("full")
	case len(reg.Topics) > 0 || len(reg.Removed) > 0:
		s.metrics.registered("delta")
		s.log.Debug("broker changed topics", broker, zap.Strings("topics", result.Topics))
	default:
		s.metrics.registered("heartbeat")
	}
}

// GetRoutes returns routes once.
func (s *Server) GetRoutes(_ context.Context, m *tacitv1.GetRoutesRequest) (*tacitv1.GetRoutesResponse, error) {
	topics, err := toTopics(m.GetTopics())
	if err != nil {
		return nil, err
	}
	snap := s.snapshot()
	out := &tacitv1.GetRoutesResponse{Warming: snap.Warming, Index: snap.Index}
	if len(topics) == 0 {
		out.Routes = wire.TopicRoutes(snap.All())
		out.Brokers = wire.BrokerEntries(snap.Brokers())
		return out, nil
	}
	out.Routes = wire.TopicRoutes(snap.Topics(topics))
	return out, nil
}

// WatchRoutes sends the routes asked for, then each change.
func (s *Server) WatchRoutes(m *tacitv1.WatchRoutesRequest, stream grpc.ServerStreamingServer[tacitv1.WatchRoutesResponse]) error {
	topics, err := toTopics(m.GetTopics())
	if err != nil {
		return err
	}
	if m.GetAll() {
		topics = nil
	}
	w, err := s.hub.add(topics, m.GetAll()) // before the first snapshot, so that nothing is missed
	if err != nil {
		return err
	}
	s.metrics.watches.Set(float64(s.hub.open()))
	defer func() {
		s.hub.remove(w)
		s.metrics.watches.Set(float64(s.hub.open()))
	}()

	snap := s.snapshot()
	first := &tacitv1.WatchRoutesResponse{Full: true, Warming: snap.Warming, Index: snap.Index}
	if w.all {
		first.Routes = wire.TopicRoutes(snap.All())
		first.Brokers = wire.BrokerEntries(snap.Brokers())
	} else {
		first.Routes = wire.TopicRoutes(snap.Topics(topics))
	}
	if err := stream.Send(first); err != nil {
		return err
	}
	for {
		select {
		case <-s.closing:
			return rpcerr.ErrShuttingDown
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		case <-w.wake:
		}
		dirty, brokers, marked := s.hub.take(w)
		if !marked {
			continue
		}
		snap := s.snapshot() // not older than what was marked
		delta := &tacitv1.WatchRoutesResponse{Warming: snap.Warming, Index: snap.Index, Routes: wire.TopicRoutes(snap.Topics(dirty))}
		if brokers {
			delta.Brokers = wire.BrokerEntries(snap.Brokers())
		}
		s.metrics.pushes.Inc()
		if err := stream.Send(delta); err != nil {
			return err
		}
	}
}

func (s *Server) snapshot() route.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.Snapshot(time.Now())
}

// unique removes doubles from names, which it sorts.
func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
