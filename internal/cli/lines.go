// Package cli is what commands share that send lines as messages.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
)

// readAhead bounds the bytes of lines that were read and not asked for.
const readAhead = 1 << 20

// Lines reads lines as long as a message may be. A reader that has nothing to say,
// as a terminal, keeps nobody who was told to stop.
type Lines struct {
	ready chan struct{} // capacity 1: there is something new
	have  [][]byte      // Next's

	mu    sync.Mutex
	room  sync.Cond
	lines [][]byte
	bytes int
	err   error // of the end
}

// ReadLines begins to read r, on a goroutine that ends with it: a read that is under
// way cannot be called off.
func ReadLines(r io.Reader) *Lines {
	l := &Lines{ready: make(chan struct{}, 1)}
	l.room.L = &l.mu
	go l.read(r)
	return l
}

func (l *Lines) read(r io.Reader) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 64<<10), message.MaxBodyBytes+1)
	n := 1
	for ; sc.Scan(); n++ {
		l.put(append([]byte(nil), sc.Bytes()...), nil)
	}
	switch err := sc.Err(); {
	case err == nil:
		l.put(nil, io.EOF)
	case errors.Is(err, bufio.ErrTooLong):
		l.put(nil, fmt.Errorf("line %d: has more than %s, which a message may have", n, obs.SizeText(message.MaxBodyBytes)))
	default:
		l.put(nil, fmt.Errorf("read line %d: %w", n, err))
	}
}

// put leaves a line, or the end, for Next.
func (l *Lines) put(line []byte, end error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for end == nil && l.bytes > readAhead {
		l.room.Wait()
	}
	if l.err = end; end == nil {
		l.lines = append(l.lines, line)
		l.bytes += len(line)
	}
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// Next returns the next line, which is the caller's, [io.EOF] after the last one, or
// [ErrStopped] when ctx ends.
func (l *Lines) Next(ctx context.Context) ([]byte, error) {
	for len(l.have) == 0 {
		if err := l.take(); err != nil {
			return nil, err
		}
		if len(l.have) > 0 {
			break
		}
		select {
		case <-l.ready:
		case <-ctx.Done():
			return nil, ErrStopped
		}
	}
	if ctx.Err() != nil {
		return nil, ErrStopped
	}
	line := l.have[0]
	l.have[0], l.have = nil, l.have[1:]
	return line, nil
}

// take fetches what was read. The error is that of the end, once nothing is left.
func (l *Lines) take() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) == 0 {
		return l.err
	}
	l.have, l.lines, l.bytes = l.lines, nil, 0
	l.room.Signal()
	return nil
}
