package compare

import (
	"context"
	"strings"
	"sync"

	"google.golang.org/grpc/stats"
)

// frames counts what members and brokers send each other for the group's sake, at the
// brokers: the payloads of sessions and of coordination, as the simulation does.
// Messages, fetches and commits are not of it.
type frames struct {
	mu sync.Mutex
	w  Wire
}

type forGroup struct{}

// TagRPC marks the calls that count.
func (f *frames) TagRPC(ctx context.Context, info *stats.RPCTagInfo) context.Context {
	m := info.FullMethodName
	if strings.Contains(m, ".SessionService/") || strings.Contains(m, ".CoordinationService/") || strings.HasSuffix(m, ".OffsetService/Claim") {
		return context.WithValue(ctx, forGroup{}, true)
	}
	return ctx
}

// HandleRPC counts.
func (f *frames) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if ctx.Value(forGroup{}) == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch s := s.(type) {
	case *stats.InPayload:
		f.w.byMember(s.Length)
	case *stats.OutPayload:
		f.w.byBroker(s.Length)
	}
}

// TagConn does nothing.
func (f *frames) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (f *frames) HandleConn(context.Context, stats.ConnStats) {}

func (f *frames) wire() Wire {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.w
}
