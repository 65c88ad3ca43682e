package broker

import (
	"fmt"
	"runtime/debug"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/rpcerr"
)

// A bug that one stream's input brings to light must not end the service for all
// others; but nor may the service go on with state that a panic left half changed, a
// lock of the store held or a lease half granted. So what a stream's own goroutine
// does is guarded, and whatever it does on the way to state that all share defers
// shared. Of the two the inner one wins: shared lets no panic out.

// guard runs what serves one stream and returns a panic as an error, which is to end
// that stream. The text of the panic does not leave the broker.
func (s *Server) guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.log.Error("stream panicked and ends", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("serve stream: %w", rpcerr.ErrInternal)
		}
	}()
	return f()
}

// shared is deferred around work on state that all share. A panic there ends the
// process at once, whoever might recover it on the way, for nobody knows what state
// is left; a start recovers from what is stored. The goroutine that panicked goes no
// further, not even to what it deferred.
func shared() {
	if p := recover(); p != nil {
		text := fmt.Sprintf("broker: panic in shared state: %v\n\n%s", p, debug.Stack())
		go func() { panic(text) }() // nobody recovers here; the process ends
		select {}
	}
}
