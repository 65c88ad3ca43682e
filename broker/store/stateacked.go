package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"sync/atomic"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"
)

// acked is a file beside Pebble with the number of the last group of updates that
// was acknowledged. Pebble takes damage at the end of its log for an unfinished
// write and drops what follows; the number tells that something is missing.
//
// It is written after the group is durable and synced a moment later, so that it
// never says more than is true: a kill finds the loss of any acknowledged update,
// a power cut that of all but the last second's.
//
// The file has two places, 4 KiB apart, written in turn: "TCA\x01", u64 number,
// u32 CRC32C of both, little-endian. The greater intact number counts.
type acked struct {
	file  pebblefs.File
	name  string
	dirty atomic.Bool
	bad   atomic.Bool // a failure was reported
	o     Options
}

const (
	ackedName  = "state.acked"
	ackedMagic = "TCA\x01"
	ackedBytes = 16
	ackedApart = 4096
)

// openAcked opens the file, or makes it, and returns the number. It is 0 if
// nothing is known, because the file is new or, which is reported, damaged.
func openAcked(dir string, o Options, exists bool) (a *acked, seq uint64, err error) {
	fs := o.StateFS
	a = &acked{name: fs.PathJoin(dir, ackedName), o: o}
	if !exists {
		if err := a.create(); err != nil {
			return nil, 0, err
		}
	}
	if a.file, err = fs.OpenReadWrite(a.name, pebblefs.WriteCategoryUnspecified); err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", a.name, err)
	}
	intact := false
	for place := range int64(2) {
		var b [ackedBytes]byte
		n, err := a.file.ReadAt(b[:], place*ackedApart)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, errors.Join(fmt.Errorf("read %s: %w", a.name, err), a.file.Close())
		}
		if got, ok := decodeAcked(b[:n]); ok {
			seq, intact = max(seq, got), true
		}
	}
	if !intact {
		o.Report(Event{Kind: Damaged, File: a.name, Err: ErrDamaged, Detail: "whether the state is complete is not known"})
	}
	return a, seq, nil
}

// create makes the file whole, so that a power cut leaves none that is not.
func (a *acked) create() error {
	fs, tmp := a.o.StateFS, a.name+".tmp"
	f, err := fs.Create(tmp, pebblefs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("create %s: %w", tmp, err)
	}
	b := encodeAcked(0)
	whole := make([]byte, ackedApart+ackedBytes)
	copy(whole, b[:])
	copy(whole[ackedApart:], b[:])
	_, err = f.Write(whole)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	if err := fs.Rename(tmp, a.name); err != nil {
		return fmt.Errorf("name %s: %w", a.name, err)
	}
	return nil
}

func encodeAcked(seq uint64) (b [ackedBytes]byte) {
	le := binary.LittleEndian
	copy(b[:], ackedMagic)
	le.PutUint64(b[4:], seq)
	le.PutUint32(b[12:], crc32.Checksum(b[:12], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func decodeAcked(b []byte) (seq uint64, ok bool) {
	if len(b) < ackedBytes {
		return 0, false
	}
	seq = binary.LittleEndian.Uint64(b[4:])
	want := encodeAcked(seq)
	return seq, string(b) == string(want[:])
}

// note says that the group of this number is durable.
func (a *acked) note(seq uint64) {
	b := encodeAcked(seq)
	_, err := a.file.WriteAt(b[:], int64(seq%2)*ackedApart)
	a.dirty.Store(true)
	a.reportOnce(err)
}

// sync makes durable what was noted.
func (a *acked) sync() {
	if a.dirty.Swap(false) {
		a.reportOnce(a.file.Sync())
	}
}

// reportOnce reports that a loss may not be found. The state itself is not
// concerned.
func (a *acked) reportOnce(err error) {
	if err != nil && !a.bad.Swap(true) {
		a.o.Report(Event{Kind: WriteFailed, File: a.name, Err: err})
	}
}

// reset sets the number, also backwards: a loss is accepted.
func (a *acked) reset(seq uint64) error {
	b := encodeAcked(seq)
	for place := range int64(2) {
		if _, err := a.file.WriteAt(b[:], place*ackedApart); err != nil {
			return fmt.Errorf("write %s: %w", a.name, err)
		}
	}
	if err := a.file.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", a.name, err)
	}
	return nil
}

func (a *acked) close() error {
	a.sync()
	if err := a.file.Close(); err != nil {
		return fmt.Errorf("close %s: %w", a.name, err)
	}
	return nil
}

// lostError says in one line why the state is not opened, and what to do. What was
// tried is reported as it is tried.
type lostError struct {
	text  string
	tried []error
}

func (e *lostError) Error() string   { return ErrStateLost.Error() + ": " + e.text }
func (e *lostError) Unwrap() []error { return append([]error{ErrStateLost}, e.tried...) }

// brief returns the beginning of what an error says: those of Pebble may have
// many lines.
func brief(err error) string {
	const most = 160
	s, _, _ := strings.Cut(err.Error(), "\n")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
