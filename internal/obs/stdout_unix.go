//go:build unix

package obs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func stdoutClosed() bool {
	const stdout = 1
	var out, null unix.Stat_t
	if unix.Fstat(stdout, &out) != nil || unix.Stat(os.DevNull, &null) != nil {
		return false
	}
	flags, err := unix.FcntlInt(stdout, unix.F_GETFL, 0)
	return err == nil && out.Mode&unix.S_IFMT == unix.S_IFCHR && out.Rdev == null.Rdev && flags&unix.O_ACCMODE == unix.O_RDWR
}

func readerGone(err error) bool { return errors.Is(err, unix.EPIPE) }
