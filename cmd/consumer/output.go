package main

import (
	"bytes"
	"io"
	"sync"
)

// keptOutput bounds what is kept of what a program prints until it ends, in bytes.
const keptOutput = 1 << 20

// output keeps what a program prints together until it ends. What is longer comes in
// several parts, of whole lines if it has lines.
type output struct {
	to io.Writer
	mu *sync.Mutex // one part at a time

	buf []byte
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.buf = append(o.buf, b...)
	if len(o.buf) < keptOutput {
		return len(b), nil
	}
	n := bytes.LastIndexByte(o.buf, '\n') + 1
	if n == 0 {
		n = len(o.buf)
	}
	if err := o.write(o.buf[:n]); err != nil {
		return 0, err
	}
	o.buf = append(o.buf[:0], o.buf[n:]...)
	return len(b), nil
}

// flush writes what is left.
func (o *output) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	return o.write(o.buf)
}

func (o *output) write(b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, err := o.to.Write(b)
	return err //nolint:wrapcheck // run says what was tried
}
