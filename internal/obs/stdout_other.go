//go:build !unix

package obs

import (
	"errors"
	"syscall"
)

// stdoutClosed is not needed here: writing to what is closed fails.
func stdoutClosed() bool { return false }

// Errors of Windows: ERROR_BROKEN_PIPE and ERROR_NO_DATA.
const (
	brokenPipe = syscall.Errno(109)
	noData     = syscall.Errno(232)
)

func readerGone(err error) bool { return errors.Is(err, brokenPipe) || errors.Is(err, noData) }
