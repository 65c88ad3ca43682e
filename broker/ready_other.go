//go:build !unix

package broker

import "net"

// newConn wraps an accepted connection.
func newConn(c net.Conn) net.Conn { return &conn{Conn: c} }
