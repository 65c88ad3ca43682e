package store

import (
	"errors"
	"fmt"
	"io"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// scanner reads a segment without an index, from a position on.
//
// A batch counts only if its checksums hold and its stamp names this segment and
// this position: a recycled file holds the batches of its earlier life. Where
// there is no such batch, the log ends in this segment, or was damaged, or ends in
// a write that was cut off. It was damaged if a later batch says, by the position
// of its group, that this place had been acknowledged before.
type scanner struct {
	file vfs.File
	name string
	id   uint32
	size int64
	// left says that the segment was left for another one: all of it had been
	// acknowledged, so that what does not end as it should is damage.
	left   bool
	report func(Event)
	// bad reports whether a page whose reading failed is to be given up; again reads
	// it once more. nil: no page is, and the scan fails.
	bad func(again func() error) bool
	// damaged: something was lost, it is not known of which queues.
	damaged bool
	lost    []lostPages

	buf []byte
	at  int64 // position of buf
}

const scanBuffer = 1 << 20

// lostPages of a file cannot be read.
type lostPages struct {
	from, to int64
	err      error
}

// lostIn returns the first of them in a part of the file, or nil.
func (c *scanner) lostIn(from, to int64) *lostPages {
	for i := range c.lost {
		if l := &c.lost[i]; l.from < to && from < l.to {
			return l
		}
	}
	return nil
}

// fill reads into the buffer what the disk gives, page by page.
func (c *scanner) fill(pos int64) error {
	bad := func(again func() error) bool { return c.bad != nil && c.bad(again) }
	return readPages(c.file, c.buf, pos, bad, func(from, to int64, err error) {
		if c.lostIn(from, to) == nil {
			c.lost = append(c.lost, lostPages{from, to, err})
		}
	})
}

// bytes returns n bytes at pos, or fewer at the end of the file.
func (c *scanner) bytes(pos int64, n int) ([]byte, error) {
	n = int(min(int64(n), c.size-pos))
	if n <= 0 {
		return nil, nil
	}
	if pos >= c.at && pos+int64(n) <= c.at+int64(len(c.buf)) {
		return c.buf[pos-c.at:][:n], nil
	}
	want := int(min(int64(max(n, scanBuffer)), c.size-pos))
	if cap(c.buf) < want {
		c.buf = make([]byte, want)
	}
	c.buf, c.at = c.buf[:want], pos
	if got, err := c.file.ReadAt(c.buf, pos); err != nil && !errors.Is(err, io.EOF) {
		if c.fill(pos) != nil {
			c.buf = c.buf[:0]
			return nil, fmt.Errorf("read %s at %d: %w", c.name, pos, err)
		}
	} else if got < want {
		c.buf = c.buf[:got]
		n = min(n, got)
	}
	return c.buf[:n], nil
}

// rest returns what the buffer holds from pos on. It is filled again only when
// little is left: looking for batches goes through it in small steps.
func (c *scanner) rest(pos int64) ([]byte, error) {
	end := c.at + int64(len(c.buf))
	if pos >= c.at && (pos+batch.HeaderSize <= end || pos < end && end == c.size) {
		return c.buf[pos-c.at:], nil
	}
	return c.bytes(pos, scanBuffer)
}

// errNotHere: no batch of this segment begins here.
var errNotHere = errors.New("not a batch of this place")

// batch returns the batch at pos. The error is errNotHere, or that of reading.
func (c *scanner) batch(pos int64) (batch.Header, error) {
	b, err := c.bytes(pos, batch.HeaderSize)
	if err != nil {
		return batch.Header{}, err
	}
	n, err := batch.Length(b)
	if err != nil || int64(n) > c.size-pos {
		return batch.Header{}, errNotHere
	}
	if b, err = c.bytes(pos, n); err != nil {
		return batch.Header{}, err
	}
	h, err := batch.Parse(b)
	if err != nil || h.Stamp.Segment != c.id || int64(h.Stamp.Position) != pos || int64(h.Stamp.Group) > pos {
		return batch.Header{}, errNotHere
	}
	if err := batch.Verify(b, &h); err != nil {
		return batch.Header{}, errNotHere
	}
	return h, nil
}

// scan calls apply for each batch from pos on and returns where the log ends in
// this segment. torn says that an unfinished write follows there.
func (c *scanner) scan(pos int64, apply func(pos int64, h *batch.Header)) (end int64, torn bool, err error) {
	for {
		h, err := c.batch(pos)
		if err == nil {
			apply(pos, &h)
			pos += int64(h.Length)
			continue
		}
		if !errors.Is(err, errNotHere) {
			return pos, false, err
		}
		b, err := c.bytes(pos, 4)
		if err != nil {
			return pos, false, err
		}
		if len(b) < 4 {
			if len(b) > 0 && !allZero(b) { // cut within the first bytes of a batch
				return pos, c.badTail(pos), nil
			}
			return pos, false, nil
		}
		zeros := string(b) == "\x00\x00\x00\x00" // the usual end, unless an acknowledged batch follows
		next, damaged, err := c.resume(pos)
		if err != nil {
			return pos, false, err
		}
		if !damaged {
			if c.lostIn(pos, c.size) != nil {
				c.damage(pos, c.size)
				return pos, false, nil
			}
			if zeros || c.stale(pos) {
				return pos, false, nil
			}
			return pos, c.badTail(pos), nil
		}
		c.damage(pos, next)
		pos = next
	}
}

// damage reports that a part of the segment is lost.
func (c *scanner) damage(from, to int64) {
	c.damaged = true
	ev := Event{Kind: Damaged, File: c.name, Position: from, Bytes: to - from, Err: ErrDamaged}
	if l := c.lostIn(from, to); l != nil {
		ev.Err = fmt.Errorf("%w: %w", ErrDamaged, l.err)
	}
	c.report(ev)
}

// badTail reports what is behind the last batch, and whether it is an unfinished
// write.
func (c *scanner) badTail(pos int64) (torn bool) {
	if c.left {
		c.damage(pos, c.size)
		return false
	}
	c.report(Event{Kind: TornTail, File: c.name, Position: pos, Bytes: c.size - pos})
	return true
}

// stale reports whether a whole batch of the file's earlier life begins at pos.
func (c *scanner) stale(pos int64) bool {
	b, err := c.bytes(pos, batch.HeaderSize)
	if err != nil || len(b) < batch.HeaderSize {
		return false
	}
	if batch.VerifyStamp(b) != nil {
		return false
	}
	n, err := batch.Length(b)
	if err != nil || int64(n) > c.size-pos {
		return false
	}
	if b, err = c.bytes(pos, n); err != nil {
		return false
	}
	h, err := batch.Parse(b)
	return err == nil && h.Stamp.Segment < c.id && batch.VerifyBody(b, &h) == nil
}

// resume looks for batches behind pos. damaged reports that pos had been
// acknowledged, or may have been where it cannot be read; next is then the first batch behind it.
func (c *scanner) resume(pos int64) (next int64, damaged bool, err error) {
	first := int64(-1)
	for at := pos + 1; at < c.size; {
		b, err := c.rest(at)
		if err != nil {
			return 0, false, err
		}
		i := batch.Find(b)
		if i < 0 {
			// The mark may lie across the end of the buffer.
			at += int64(max(1, len(b)-3))
			continue
		}
		at += int64(i)
		h, err := c.batch(at)
		switch {
		case err == nil:
			if first < 0 {
				first = at
			}
			if int64(h.Stamp.Group) > pos {
				return first, true, nil
			}
			at += int64(h.Length)
		case errors.Is(err, errNotHere):
			at++
		default:
			return 0, false, err
		}
	}
	// A write that was cut off is no reason for what cannot be read.
	return first, first >= 0 && c.lostIn(pos, first) != nil, nil
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
