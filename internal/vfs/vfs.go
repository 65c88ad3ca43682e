// Package vfs is the small file system that the message log works on.
//
// [OS] is the real one. [Mem] forgets what was not synced when the power is cut,
// directory entries included. [Inject] wraps another and makes calls fail.
package vfs

import "io"

// FS is a file system. Names are slash-separated paths. Safe for concurrent use.
type FS interface {
	// Create makes an empty file, replacing one of that name.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Rename moves a file, replacing one of the new name.
	Rename(from, to string) error
	// Remove deletes a file.
	Remove(name string) error
	// MkdirAll makes a directory and its parents.
	MkdirAll(dir string) error
	// List returns the names of the files in dir, sorted.
	List(dir string) ([]string, error)
	// SyncDir makes creations, renames and removals in dir durable.
	SyncDir(dir string) error
	// Lock takes the named lock file until it is closed, and fails with
	// ErrLocked if someone else has it.
	Lock(name string) (io.Closer, error)
	// Free returns the number of bytes free on the disk that holds dir.
	Free(dir string) (int64, error)
}

// File is an open file. ReadAt and Prefetch may run beside everything else.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes what was written, and the size, durable.
	Sync() error
	// Truncate changes the size.
	Truncate(size int64) error
	// Size returns the size in bytes.
	Size() (int64, error)
	// Prefetch hints that a part will be read soon. It does not wait.
	Prefetch(off int64, n int)
	// Forget hints that a part, which is synced, is to be read from the disk next.
	Forget(off int64, n int)
}
