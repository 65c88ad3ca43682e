package vfs

import "io"

// Op names a call that Inject can make fail.
type Op string

// Calls that are asked about.
const (
	OpCreate   Op = "create"
	OpOpen     Op = "open"
	OpRename   Op = "rename"
	OpRemove   Op = "remove"
	OpSyncDir  Op = "syncdir"
	OpRead     Op = "read"
	OpWrite    Op = "write"
	OpSync     Op = "sync"
	OpTruncate Op = "truncate"
)

// Inject makes calls of FS fail. A sync of a file of Mem that is made to fail forgets
// what was to be synced, as Linux does: it can still be read, a later sync succeeds,
// and a power cut takes it.
type Inject struct {
	FS
	// Fail is asked before each call on name and returns the error to fail
	// with, or nil. For a write that shall be cut short, n says how many of its
	// bytes are written before it fails. Called by many goroutines.
	Fail func(op Op, name string) (n int, err error)
}

// Create implements FS.
func (i *Inject) Create(name string) (File, error) {
	if _, err := i.Fail(OpCreate, name); err != nil {
		return nil, err
	}
	return i.wrap(name)(i.FS.Create(name))
}

// Open implements FS.
func (i *Inject) Open(name string) (File, error) {
	if _, err := i.Fail(OpOpen, name); err != nil {
		return nil, err
	}
	return i.wrap(name)(i.FS.Open(name))
}

func (i *Inject) wrap(name string) func(File, error) (File, error) {
	return func(f File, err error) (File, error) {
		if err != nil {
			return nil, err
		}
		return &injectFile{File: f, name: name, fs: i}, nil
	}
}

// Rename implements FS.
func (i *Inject) Rename(from, to string) error {
	if _, err := i.Fail(OpRename, to); err != nil {
		return err
	}
	return i.FS.Rename(from, to)
}

// Remove implements FS.
func (i *Inject) Remove(name string) error {
	if _, err := i.Fail(OpRemove, name); err != nil {
		return err
	}
	return i.FS.Remove(name)
}

// SyncDir implements FS.
func (i *Inject) SyncDir(dir string) error {
	if _, err := i.Fail(OpSyncDir, dir); err != nil {
		return err
	}
	return i.FS.SyncDir(dir)
}

// Lock implements FS.
func (i *Inject) Lock(name string) (io.Closer, error) { return i.FS.Lock(name) }

type injectFile struct {
	File
	name string
	fs   *Inject
}

func (f *injectFile) ReadAt(p []byte, off int64) (int, error) {
	if _, err := f.fs.Fail(OpRead, f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *injectFile) WriteAt(p []byte, off int64) (int, error) {
	if n, err := f.fs.Fail(OpWrite, f.name); err != nil {
		written, werr := f.File.WriteAt(p[:min(n, len(p))], off)
		if werr != nil {
			err = werr
		}
		return written, err
	}
	return f.File.WriteAt(p, off)
}

func (f *injectFile) Sync() error {
	if _, err := f.fs.Fail(OpSync, f.name); err != nil {
		if m, ok := f.File.(*memFile); ok {
			m.forget()
		}
		return err
	}
	return f.File.Sync()
}

func (f *injectFile) Truncate(size int64) error {
	if _, err := f.fs.Fail(OpTruncate, f.name); err != nil {
		return err
	}
	return f.File.Truncate(size)
}
