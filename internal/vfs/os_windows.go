package vfs

import (
	"os"

	"golang.org/x/sys/windows"
)

// syncDir does nothing: NTFS journals directory changes, and directories cannot
// be flushed there.
func syncDir(string) error { return nil }

func free(dir string) (int64, error) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, &os.PathError{Op: "free space", Path: dir, Err: err}
	}
	var n uint64
	if err := windows.GetDiskFreeSpaceEx(name, &n, nil, nil); err != nil {
		return 0, &os.PathError{Op: "free space", Path: dir, Err: err}
	}
	return int64(n), nil
}
