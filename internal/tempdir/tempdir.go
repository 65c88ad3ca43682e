// Package tempdir makes temporary directories for servers that may be killed.
//
// A process that ends as it should removes its directory. One that is killed
// cannot; the next one to make a directory with the same prefix removes what it
// left. A lock, which ends with its process whatever happens, tells a directory
// in use from one left behind.
package tempdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockName is the file in each directory whose lock its process holds.
const lockName = ".tacit-lock"

// attempts bounds how often a directory is made anew because another process
// took it for one left behind: only between its making and its locking.
const attempts = 10

// Dir is a temporary directory.
type Dir struct {
	Path string
	lock *flock.Flock
}

// New makes a directory in that for temporary files, with a name that begins with
// prefix, and removes those of the same prefix that killed processes left.
func New(prefix string) (*Dir, error) {
	for range attempts {
		path, err := os.MkdirTemp("", prefix)
		if err != nil {
			return nil, fmt.Errorf("make temporary directory: %w", err)
		}
		d := &Dir{Path: path, lock: flock.New(filepath.Join(path, lockName))}
		locked, err := d.lock.TryLock()
		if err == nil && locked && here(d.lock.Path()) {
			sweep(prefix, path)
			return d, nil
		}
		_ = d.lock.Close() // it was never ours
	}
	return nil, errors.New("make temporary directory: others remove it")
}

// Remove removes the directory with all in it.
func (d *Dir) Remove() error {
	err := d.lock.Close() // an open file cannot be removed everywhere
	if e := os.RemoveAll(d.Path); e != nil {
		err = errors.Join(err, fmt.Errorf("remove temporary directory: %w", e))
	}
	return err
}

func here(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// sweep removes directories whose processes are gone. What cannot be removed, such
// as another user's, stays.
func sweep(prefix, own string) {
	found, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return
	}
	for _, path := range found {
		info, err := os.Lstat(path)
		if path == own || err != nil || !info.IsDir() || !here(filepath.Join(path, lockName)) {
			continue
		}
		lock := flock.New(filepath.Join(path, lockName))
		if locked, err := lock.TryLock(); err == nil && locked {
			_ = (&Dir{Path: path, lock: lock}).Remove()
			continue
		}
		_ = lock.Close() // in use
	}
}
