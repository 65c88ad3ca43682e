package nameserver

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/test/bufconn"
)

// starving has no file descriptor for its first connections.
type starving struct {
	net.Listener
	left atomic.Int32
}

type temporary struct{ error }

func (temporary) Temporary() bool { return true }

func (s *starving) Accept() (net.Conn, error) {
	if s.left.Add(-1) >= 0 {
		return nil, temporary{errors.New("too many open files")}
	}
	return s.Listener.Accept()
}

// A server that cannot take connections says so, and goes on when it can.
func TestServerWithoutFileDescriptorsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.ErrorLevel)
		lis := &starving{Listener: bufconn.Listen(1)}
		lis.left.Store(5)
		s, err := New(Default(), WithListener(lis), WithLogger(zap.New(core)))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }() // ended below
		time.Sleep(10 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if all := logs.FilterMessage("connection cannot be accepted").All(); len(all) != 1 || lis.left.Load() != -1 {
			t.Errorf("said %v, %d connections refused", all, 5-lis.left.Load())
		}
	})
}
