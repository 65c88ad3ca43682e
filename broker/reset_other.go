//go:build !windows

package broker

import (
	"errors"
	"syscall"
)

// isReset reports whether the peer reset the connection.
func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
