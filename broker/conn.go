package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/peer"
)

// A lease is free at once when its holder's connection was closed by the holder,
// and kept for the session timeout in every other case. gRPC tells a handler only
// that its stream is over, so the listener notes how each connection ended.

// listener notes how its connections end.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // passed through
	}
	return newConn(c), nil
}

type conn struct {
	net.Conn
	state atomic.Int32
}

const (
	connOpen int32 = iota
	// connPeerClosed: reading found the end of the connection or a reset.
	connPeerClosed
	// connBroken: it was closed here, or failed without a word of the peer.
	connBroken
)

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.note(err)
	return n, err //nolint:wrapcheck // passed through
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.note(err)
	return n, err //nolint:wrapcheck // passed through
}

func (c *conn) Close() error {
	c.state.CompareAndSwap(connOpen, connBroken)
	return c.Conn.Close() //nolint:wrapcheck // passed through
}

func (c *conn) note(err error) {
	switch {
	case err == nil:
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe), isReset(err):
		c.state.CompareAndSwap(connOpen, connPeerClosed)
	default:
		c.state.CompareAndSwap(connOpen, connBroken)
	}
}

// RemoteAddr carries the connection to handlers, who see the address alone.
func (c *conn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

type connAddr struct {
	net.Addr
	conn *conn
}

// closedByPeer reports whether a stream whose context is over was ended by the
// peer: it reset the stream, or closed or reset the connection.
func closedByPeer(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	a, ok := p.Addr.(connAddr)
	return ok && a.conn.state.Load() != connBroken
}
