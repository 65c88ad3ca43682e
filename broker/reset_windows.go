package broker

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows"
)

// isReset reports whether the peer reset the connection.
func isReset(err error) bool {
	return errors.Is(err, windows.WSAECONNRESET) || errors.Is(err, syscall.ERROR_BROKEN_PIPE)
}
