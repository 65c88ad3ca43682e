package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
)

// ErrFull is what Mem and Inject return for a full disk.
var ErrFull = errors.New("disk is full")

// sector is the unit that a power cut leaves written or unwritten.
const sector = 512

// Mem is a file system in memory that knows what has been made durable. Files
// need Sync, directory entries SyncDir; MkdirAll is durable at once. The zero
// value is not usable; see NewMem.
type Mem struct {
	mu    sync.Mutex
	names map[string]*node // as a running process sees it
	disk  map[string]*node // directory entries that are durable
	ops   []dirOp          // changes of entries since
	locks map[string]bool
	limit int64 // size of the disk, 0 = no limit
}

type dirOp struct {
	dir      string
	from, to string // rename; only to: creation; only from: removal
	node     *node
}

// node is the content of a file: what is durable, and writes since.
type node struct {
	data   []byte
	synced []byte
	writes []write
}

type write struct {
	off   int64
	n     int
	trunc bool // the size became off
}

// NewMem returns an empty file system.
func NewMem() *Mem {
	return &Mem{names: map[string]*node{}, disk: map[string]*node{}, locks: map[string]bool{}}
}

// SetLimit sets the size of the disk in bytes; 0 means no limit.
func (m *Mem) SetLimit(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limit = n
}

// PowerCut returns the file system as it is found after the power went out now:
// what was synced is there; of each write since, each sector may or may not be;
// of the changes of directory entries since, a first part is. m stays as it is.
func (m *Mem) PowerCut(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := NewMem()
	after.limit = m.limit
	names := maps.Clone(m.disk)
	for _, op := range m.ops[:rng.IntN(len(m.ops)+1)] {
		op.apply(names)
	}
	// In order of names, so that equal seeds give equal outcomes.
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	for _, name := range sorted {
		data := names[name].afterCut(rng)
		n := &node{data: data, synced: slices.Clone(data)}
		after.names[name], after.disk[name] = n, n
	}
	return after
}

// Kill returns the file system as it is found after the process was killed: all
// that was written is there.
func (m *Mem) Kill() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := NewMem()
	after.limit = m.limit
	for name, n := range m.names {
		c := &node{data: slices.Clone(n.data), synced: slices.Clone(n.data)}
		after.names[name], after.disk[name] = c, c
	}
	return after
}

func (n *node) afterCut(rng *rand.Rand) []byte {
	data := slices.Clone(n.synced)
	if rng.IntN(4) == 0 {
		return data // nothing of it was written
	}
	for _, w := range n.writes {
		if w.trunc {
			if rng.IntN(2) == 0 {
				data = resize(data, int(w.off))
			}
			continue
		}
		all := rng.IntN(2) == 0
		for at := w.off; at < w.off+int64(w.n); {
			end := min((at/sector+1)*sector, w.off+int64(w.n), int64(len(n.data)))
			if end <= at {
				break
			}
			if all || rng.IntN(2) == 0 {
				if int64(len(data)) < end {
					data = resize(data, int(end))
				}
				copy(data[at:end], n.data[at:end])
			}
			at = end
		}
	}
	return data
}

func resize(b []byte, n int) []byte {
	if n <= len(b) {
		return b[:n]
	}
	if n <= cap(b) {
		clear(b[len(b):n])
		return b[:n]
	}
	return append(b, make([]byte, n-len(b))...)
}

func (op dirOp) apply(names map[string]*node) {
	if op.from != "" {
		delete(names, op.from)
	}
	if op.to != "" {
		names[op.to] = op.node
	}
}

func (m *Mem) do(op dirOp) {
	op.apply(m.names)
	m.ops = append(m.ops, op)
}

func (m *Mem) used() int64 {
	var sum int64
	for _, n := range m.names {
		sum += int64(len(n.data))
	}
	return sum
}

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := &node{}
	m.do(dirOp{dir: path.Dir(name), to: name, node: n})
	return &memFile{fs: m, name: name, node: n}, nil
}

// Open implements FS.
func (m *Mem) Open(name string) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[name]
	if n == nil {
		return nil, missing("open", name)
	}
	return &memFile{fs: m, name: name, node: n}, nil
}

// Rename implements FS.
func (m *Mem) Rename(from, to string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.names[from]
	if n == nil {
		return missing("rename", from)
	}
	m.do(dirOp{dir: path.Dir(to), from: from, to: to, node: n})
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names[name] == nil {
		return missing("remove", name)
	}
	m.do(dirOp{dir: path.Dir(name), from: name})
	return nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(string) error { return nil }

// List implements FS.
func (m *Mem) List(dir string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name := range m.names {
		if rest, ok := strings.CutPrefix(name, dir+"/"); ok && !strings.Contains(rest, "/") {
			names = append(names, rest)
		}
	}
	slices.Sort(names)
	return names, nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.ops[:0]
	for _, op := range m.ops {
		if op.dir == dir {
			op.apply(m.disk)
		} else {
			left = append(left, op)
		}
	}
	m.ops = left
	return nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks[name] {
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	m.locks[name] = true
	return &memLock{m, name}, nil
}

type memLock struct {
	fs   *Mem
	name string
}

func (l *memLock) Close() error {
	l.fs.mu.Lock()
	defer l.fs.mu.Unlock()
	delete(l.fs.locks, l.name)
	return nil
}

// Free implements FS.
func (m *Mem) Free(string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit == 0 {
		return 1 << 40, nil
	}
	return max(0, m.limit-m.used()), nil
}

type memFile struct {
	fs     *Mem
	name   string
	node   *node
	closed bool
}

func (f *memFile) check(op string) error {
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.check("read"); err != nil {
		return 0, err
	}
	if len(p) == 0 {
		return 0, nil // as of a file of the operating system
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.check("write"); err != nil {
		return 0, err
	}
	var failed error
	if grow := off + int64(len(p)) - int64(len(f.node.data)); f.fs.limit > 0 && grow > 0 {
		if over := f.fs.used() + grow - f.fs.limit; over > 0 {
			// What fits is written, as a real disk does.
			p = p[:max(0, int64(len(p))-over)]
			failed = &fs.PathError{Op: "write", Path: f.name, Err: ErrFull}
		}
	}
	if len(p) > 0 {
		if end := int(off) + len(p); end > len(f.node.data) {
			f.node.data = resize(f.node.data, end)
		}
		copy(f.node.data[off:], p)
		f.node.writes = append(f.node.writes, write{off: off, n: len(p)})
	}
	return len(p), failed
}

func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.check("sync"); err != nil {
		return err
	}
	n := f.node
	for _, w := range n.writes {
		if w.trunc {
			n.synced = resize(n.synced, min(int(w.off), len(n.data)))
			continue
		}
		end := min(int(w.off)+w.n, len(n.data))
		if end <= int(w.off) {
			continue
		}
		if len(n.synced) < end {
			n.synced = resize(n.synced, end)
		}
		copy(n.synced[w.off:end], n.data[w.off:end])
	}
	n.synced = resize(n.synced, len(n.data))
	n.writes = n.writes[:0]
	return nil
}

// forget takes what was written since the last sync for synced, without it being so.
func (f *memFile) forget() {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.node.writes = f.node.writes[:0]
}

func (f *memFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.check("truncate"); err != nil {
		return err
	}
	f.node.data = resize(f.node.data, int(size))
	f.node.writes = append(f.node.writes, write{off: size, trunc: true})
	return nil
}

func (f *memFile) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.check("stat"); err != nil {
		return 0, err
	}
	return int64(len(f.node.data)), nil
}

func (f *memFile) Prefetch(int64, int) {}
func (f *memFile) Forget(int64, int)   {}

func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.check("close"); err != nil {
		return err
	}
	f.closed = true
	return nil
}
