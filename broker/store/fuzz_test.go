package store

import (
	"bytes"
	"errors"
	"io/fs"
	"testing"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
	"github.com/tacitmq/tacit/message"
)

// segmentOf writes batches as the log does.
func segmentOf(f testing.TB, id uint32, groups ...int) []byte {
	var enc batch.Encoder
	var b []byte
	offset := int64(0)
	for _, n := range groups {
		group := len(b)
		for range n {
			enc.Append(&message.Message{Body: []byte("body"), Tag: "t", Keys: []string{"k"}})
			at := len(b)
			var err error
			if b, err = enc.Finish(b, batch.Info{Topic: "T"}); err != nil {
				f.Fatal(err)
			}
			batch.PutStamp(b[at:], batch.Stamp{BaseOffset: offset, Segment: id, Position: uint32(at), Group: uint32(group)})
			offset++
		}
	}
	return append(b, make([]byte, 64)...)
}

func memFile(t testing.TB, name string, b []byte) (*vfs.Mem, vfs.File) {
	t.Helper()
	m := vfs.NewMem()
	f, err := m.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return m, f
}

// FuzzScan lets recovery read a segment that holds anything. What it takes for a
// batch must be one, in its place; damage and the end are within the file.
func FuzzScan(f *testing.F) {
	whole := segmentOf(f, 3, 1, 3, 2)
	f.Add(whole)
	f.Add(whole[:len(whole)-100])
	f.Add(append(segmentOf(f, 3, 2), segmentOf(f, 2, 4)...))
	damaged := bytes.Clone(whole)
	damaged[150] ^= 1
	f.Add(damaged)
	f.Fuzz(func(t *testing.T, b []byte) {
		_, file := memFile(t, "s", b)
		var covered int64
		c := scanner{file: file, name: "s", id: 3, size: int64(len(b)), report: func(e Event) {
			if e.Position < covered || e.Position > int64(len(b)) || e.Kind == Damaged && e.Bytes <= 0 {
				t.Fatalf("%+v", e)
			}
			if e.Kind == Damaged {
				covered = e.Position + e.Bytes
			}
		}}
		end, torn, err := c.scan(0, func(pos int64, h *batch.Header) {
			if pos != covered {
				t.Fatalf("batch at %d, expected at %d", pos, covered)
			}
			p, err := batch.Parse(b[pos:])
			if err != nil || batch.Verify(b[pos:], &p) != nil || p.Stamp.Segment != 3 || int64(p.Stamp.Position) != pos || p.Length != h.Length {
				t.Fatalf("at %d: %+v %v", pos, p, err)
			}
			covered = pos + int64(h.Length)
		})
		if err != nil || end != covered {
			t.Fatalf("ends at %d, covered %d: %v", end, covered, err)
		}
		if torn && end >= int64(len(b)) {
			t.Fatal("torn, but nothing is left")
		}
	})
}

// FuzzIndex opens an index file that holds anything.
func FuzzIndex(f *testing.F) {
	q := newQueue(Queue{Topic: "T", ID: 3})
	d := newDedup()
	d.add(windowKey{7, q}, 1, sequence{seq: 1, offset: 2, time: 3, count: 4})
	d.addOrigin(9, Appended{Offset: 1, StoreTime: 2})
	x := sealing{
		end: 100, last: 5,
		queues: []queueState{{id: Queue{Topic: "gone"}, dead: true, span: span{next: 50}}, {queue: q, id: q.id, span: span{base: 1, next: 9, entries: []entry{{0, 1, 2, 3}, {4, 5, 6, 7}}}}},
		keys:   []keyEntry{{hash: 1, queue: q, offset: 1}, {hash: 0, queue: q, offset: 5}}, windows: d.encodeWindows(map[*queue]uint32{q: 1}),
	}
	whole := x.encode(nil, 1)
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, _ := memFile(t, "x", b)
		x, err := openIndex(m, "x", 1)
		if err != nil {
			if !errors.Is(err, errIndex) && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return
		}
		states, err := x.queues()
		if err != nil {
			return
		}
		queues := make([]*queue, len(states))
		for i := range states {
			queues[i] = newQueue(states[i].id)
			if _, err := x.load(&states[i].span); err != nil && !errors.Is(err, errIndex) {
				t.Fatal(err)
			}
		}
		d := newDedup()
		_ = d.loadWindows(x.wins, queues)
		if err := x.lookup(1, func(uint32, uint32) {}); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzWindows reads windows that hold anything: the checksum of an index is no
// defence against an index written by somebody else.
func FuzzWindows(f *testing.F) {
	q := newQueue(Queue{Topic: "T"})
	d := newDedup()
	d.add(windowKey{7, q}, 1, sequence{seq: 1, offset: 2, time: 3, count: 4})
	d.addOrigin(9, Appended{Offset: 1, StoreTime: 2})
	f.Add(d.encodeWindows(map[*queue]uint32{q: 0}))
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDedup()
		if err := d.loadWindows(b, []*queue{q, nil}); err != nil && !errors.Is(err, errIndex) {
			t.Fatal(err)
		}
	})
}
