// Package trail is what the consumers and producers of the end-to-end runs leave
// on disk: one JSON object a line, each written by one system call, so that a
// process that is killed has left all that it did.
package trail

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// Commit is one line of the input.
type Commit struct {
	SHA        string `json:"sha"`
	Time       int64  `json:"ts"` // Unix seconds
	Component  string `json:"component"`
	Files      int64  `json:"files"`
	Insertions int64  `json:"insertions"`
	Deletions  int64  `json:"deletions"`
}

// Kind of an entry.
type Kind string

// The kinds.
const (
	Handled  Kind = "handled"  // a commit was handled
	Assigned Kind = "assigned" // a queue came
	Revoked  Kind = "revoked"  // a queue is given up
	Lost     Kind = "lost"     // a queue was lost
	Stored   Kind = "stored"   // a commit was sent and acknowledged
)

// Entry is one thing that happened to one queue.
type Entry struct {
	Kind   Kind           `json:"kind"`
	Queue  allocate.Queue `json:"queue"`
	Offset int64          `json:"offset,omitempty"`
	// Begin and End of the handler; of other kinds both are when it happened.
	Begin time.Time `json:"begin"`
	End   time.Time `json:"end"`
	// Attempt is how often the message was sent back before.
	Attempt int32 `json:"attempt,omitempty"`
	// Repeat: the broker had the message from an attempt whose answer was lost.
	Repeat bool    `json:"repeat,omitempty"`
	Commit *Commit `json:"commit,omitempty"`
}

// Writer appends entries to a file. Safe for concurrent use.
type Writer struct{ file *os.File }

// Create opens a file for entries.
func Create(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open trail: %w", err)
	}
	return &Writer{f}, nil
}

// Write appends entries with one call.
func (w *Writer) Write(entries ...Entry) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	for i := range entries {
		if err := enc.Encode(&entries[i]); err != nil {
			return fmt.Errorf("encode entry: %w", err)
		}
	}
	if _, err := w.file.Write(buf.Bytes()); err != nil {
		return fmt.Errorf("write trail: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Reader follows a file that another process writes.
type Reader struct {
	path string
	at   int64
	rest []byte
}

// Follow returns a reader of a file, which may not exist yet.
func Follow(path string) *Reader { return &Reader{path: path} }

// Next returns the entries that were added since it was called last.
func (r *Reader) Next() ([]Entry, error) {
	f, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("open trail: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	more, err := io.ReadAll(io.NewSectionReader(f, r.at, 1<<40))
	if err != nil {
		return nil, fmt.Errorf("read trail: %w", err)
	}
	r.at += int64(len(more))
	r.rest = append(r.rest, more...)
	var out []Entry
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte{'\n'})
		if !whole {
			return out, nil
		}
		r.rest = rest
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return out, fmt.Errorf("trail %s: %w", r.path, err)
		}
		out = append(out, e)
	}
}
