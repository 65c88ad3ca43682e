package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// syncData writes data and size, but not times: one journal write less.
func syncData(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err != unix.EINTR {
			if err != nil {
				return &os.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
			}
			return nil
		}
	}
}

func prefetch(f *os.File, off int64, n int) {
	_ = unix.Fadvise(int(f.Fd()), off, int64(n), unix.FADV_WILLNEED) // a hint; failing costs nothing
}

func forget(f *os.File, off int64, n int) {
	_ = unix.Fadvise(int(f.Fd()), off, int64(n), unix.FADV_DONTNEED) // a hint, too
}
