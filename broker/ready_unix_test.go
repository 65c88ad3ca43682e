//go:build unix

package broker

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/mem"
)

// countingPool counts the buffers that are out.
type countingPool struct {
	mem.BufferPool
	out, taken atomic.Int32
}

func (p *countingPool) Get(n int) *[]byte {
	p.out.Add(1)
	p.taken.Add(1)
	b := make([]byte, n)
	return &b
}

func (p *countingPool) Put(*[]byte) { p.out.Add(-1) }

// pair is a TCP connection: the broker's end, as gRPC gets it, and the peer's.
func pair(t *testing.T) (*readyConn, *net.TCPConn) {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	peer, err := new(net.Dialer).DialContext(t.Context(), "tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = peer.Close() })
	c, err := listener{lis}.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	rc, ok := c.(*readyConn)
	if !ok {
		t.Fatalf("accepted a %T: gRPC will hold a read buffer for it", c)
	}
	return rc, peer.(*net.TCPConn) //nolint:forcetypeassert // dialled tcp
}

const readSize = 64 << 10

// take reads want bytes as gRPC does.
func take(t *testing.T, c *readyConn, pool mem.BufferPool, want int) (out []byte) {
	t.Helper()
	for len(out) < want {
		b, n, err := c.ReadOnReady(readSize, pool)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, (*b)[:n]...)
		pool.Put(b)
	}
	return out
}

func TestConnectionsHoldNoReadBufferWhileTheyAreIdle(t *testing.T) {
	c, peer := pair(t)
	pool := new(countingPool)
	for _, size := range []int{20, firstRead - 1, firstRead, 300_000, 20} {
		sent := bytes.Repeat([]byte("abcdefg"), size)[:size]
		wrote := make(chan error, 1)
		go func() { // waited for below
			_, err := peer.Write(sent)
			wrote <- err
		}()
		if got := take(t, c, pool, size); !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came as %d others", size, len(got))
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
	}
	// Idle now: a read that waits has no buffer.
	taken := pool.taken.Load()
	read := make(chan error, 1)
	go func() { // waited for below
		b, _, err := c.ReadOnReady(readSize, pool)
		if err == nil {
			pool.Put(b)
		}
		read <- err
	}()
	if _, err := peer.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if n := pool.taken.Load() - taken; n != 1 {
		t.Errorf("%d buffers taken for one small read", n)
	}
	if n := pool.out.Load(); n != 0 {
		t.Errorf("%d buffers are out", n)
	}
}

func TestReadingWhenReadyTellsHowAConnectionEnded(t *testing.T) {
	for name, tc := range map[string]struct {
		end  func(c *readyConn, peer *net.TCPConn)
		want int32
	}{
		"peer closes": {func(_ *readyConn, peer *net.TCPConn) { _ = peer.Close() }, connPeerClosed},
		"peer resets": {func(_ *readyConn, peer *net.TCPConn) { _ = peer.SetLinger(0); _ = peer.Close() }, connPeerClosed},
		"closed here": {func(c *readyConn, _ *net.TCPConn) { _ = c.Close() }, connBroken},
	} {
		t.Run(name, func(t *testing.T) {
			c, peer := pair(t)
			pool := new(countingPool)
			tc.end(c, peer)
			_, _, err := c.ReadOnReady(readSize, pool)
			if err == nil {
				t.Fatal("read something")
			}
			if name == "peer closes" && !errors.Is(err, io.EOF) {
				t.Errorf("got %v", err)
			}
			if got := c.state.Load(); got != tc.want {
				t.Errorf("state %d after %v, want %d", got, err, tc.want)
			}
			if n := pool.out.Load(); n != 0 {
				t.Errorf("%d buffers are out", n)
			}
		})
	}
}
