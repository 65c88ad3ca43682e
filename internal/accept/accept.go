// Package accept makes servers say when they cannot take connections.
//
// Without file descriptors a server that goes on with what it has looks well, and its
// clients only find that nobody answers; gRPC tries again and says nothing.
package accept

import (
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
)

// every is how often a failure that lasts is said.
const every = time.Minute

// Logged returns a listener that accepts as l does. It logs the first failure, then at
// most one a minute with how many there were since, and that connections are accepted
// again. What is not temporary ends the server, which says so itself.
func Logged(l net.Listener, log *zap.Logger) net.Listener { return &listener{Listener: l, log: log} }

type listener struct {
	net.Listener
	log *zap.Logger

	mu     sync.Mutex
	said   bool      // that it fails, and not yet that it is over
	since  int       // failures not said yet
	saidAt time.Time // zero before the first
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.note(err)
	return c, err //nolint:wrapcheck // gRPC asks whether it is temporary
}

func (l *listener) note(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		if l.said {
			l.said = false
			l.log.Info("connections are accepted again", zap.Stringer("address", l.Addr()))
		}
		return
	}
	if e, ok := err.(interface{ Temporary() bool }); !ok || !e.Temporary() { // as gRPC asks
		return
	}
	l.since++
	if now := time.Now(); l.saidAt.IsZero() || now.Sub(l.saidAt) >= every {
		l.log.Error("connection cannot be accepted", zap.Stringer("address", l.Addr()), zap.Int("failures", l.since), limit(err), zap.Error(err))
		l.said, l.saidAt, l.since = true, now, 0
	}
}
