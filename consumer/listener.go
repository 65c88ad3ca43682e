package consumer

import (
	"context"

	"github.com/tacitmq/tacit/allocate"
)

// Listener is told of queues that come and go, in order, on one goroutine. For
// every queue: assigned, then exactly one of revoked and lost, then perhaps
// assigned again. While a call blocks, nothing of newly assigned queues is handed
// out and queues on their way out wait, up to the drain limit.
type Listener interface {
	// OnAssigned comes before the first message of the queues.
	OnAssigned(ctx context.Context, queues []allocate.Queue)
	// OnRevoked comes when no handler of the queues runs any more, or the limit
	// for that has passed, and before they are released: the time to flush state.
	// The context ends when the drain limit does.
	OnRevoked(ctx context.Context, queues []allocate.Queue)
	// OnLost comes after queues were lost: somebody else may have them.
	OnLost(ctx context.Context, queues []allocate.Queue)
}

// ListenerFuncs is a Listener of functions, each of which may be nil.
type ListenerFuncs struct {
	Assigned, Revoked, Lost func(ctx context.Context, queues []allocate.Queue)
}

// OnAssigned calls Assigned.
func (l ListenerFuncs) OnAssigned(ctx context.Context, queues []allocate.Queue) {
	call(ctx, l.Assigned, queues)
}

// OnRevoked calls Revoked.
func (l ListenerFuncs) OnRevoked(ctx context.Context, queues []allocate.Queue) {
	call(ctx, l.Revoked, queues)
}

// OnLost calls Lost.
func (l ListenerFuncs) OnLost(ctx context.Context, queues []allocate.Queue) {
	call(ctx, l.Lost, queues)
}

func call(ctx context.Context, f func(context.Context, []allocate.Queue), queues []allocate.Queue) {
	if f != nil {
		f(ctx, queues)
	}
}
