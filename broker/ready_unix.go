//go:build unix

package broker

import (
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// firstRead bytes are read before a buffer is taken: what an idle member sends
// fits in. A buffer taken before the read would be held while other connections
// have their turn, and the answers of thousands of members to one notice, which
// come at once, would take one each.
const firstRead = 512

// readyConn is a conn that takes memory to read into only when there is something
// to read. gRPC looks for ReadOnReady and then lets idle connections share read
// buffers; without it each holds one of its own, however long it is idle.
type readyConn struct {
	*conn
	raw   syscall.RawConn
	first [firstRead]byte
	bulk  bool // the last read found more than that
	// What one ReadOnReady asks for and finds. gRPC has one reader for each
	// connection; kept here so that a read allocates nothing.
	try  func(fd uintptr) bool
	size int
	pool mem.BufferPool
	buf  *[]byte
	n    int
	err  error
}

// newConn wraps an accepted connection. What lies above it, TLS for one, must not
// be read past, so only connections that are files themselves, or say so with
// SyscallConn, are read when they are ready.
func newConn(c net.Conn) net.Conn {
	plain := &conn{Conn: c}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return plain
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return plain
	}
	r := &readyConn{conn: plain, raw: raw}
	r.try = r.tryRead
	return r
}

// ReadOnReady waits until there is something to read, takes a buffer of the given
// size from the pool and reads into it. The caller puts it back.
func (c *readyConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	c.size, c.pool = size, pool
	err := c.raw.Read(c.try)
	buf, n := c.buf, c.n
	if err == nil {
		err = c.err
	}
	c.pool, c.buf, c.n, c.err = nil, nil, 0, nil
	if err == nil && n == 0 && size > 0 {
		err = io.EOF
	}
	c.note(err)
	if err != nil {
		if buf != nil {
			pool.Put(buf)
		}
		return nil, 0, err //nolint:wrapcheck // passed through
	}
	return buf, n, nil
}

// tryRead reports whether waiting is over.
func (c *readyConn) tryRead(fd uintptr) bool {
	small := !c.bulk && c.size > firstRead
	into := c.first[:]
	if !small {
		c.buf = c.pool.Get(c.size)
		into = *c.buf
	}
	n, err := syscall.Read(int(fd), into)
	for errors.Is(err, syscall.EINTR) {
		n, err = syscall.Read(int(fd), into)
	}
	if err == nil {
		c.n, c.bulk = n, n >= firstRead
		if small && n > 0 {
			c.buf = c.pool.Get(c.size)
			copy(*c.buf, into[:n])
		}
		return true
	}
	if c.buf != nil {
		c.pool.Put(c.buf)
		c.buf = nil
	}
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EWOULDBLOCK) {
		return false
	}
	c.err = err
	return true
}
