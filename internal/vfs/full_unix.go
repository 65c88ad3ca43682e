//go:build unix

package vfs

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IsFull reports whether err means that the disk, or the quota, is full.
func IsFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, ErrFull)
}
