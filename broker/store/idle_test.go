package store_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// The last index that knows an idle queue may be that of a dropped segment: its
// offsets go on all the same, whatever became of the other indexes.
func TestOffsetsOfIdleQueuesGoOnWhenIndexesAreMissing(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		d, ev := memDisks(), &events{}
		mem := d.log.(*vfs.Mem)
		var bad atomic.Bool
		d.log = &vfs.Inject{FS: mem, Fail: func(op vfs.Op, name string) (int, error) {
			if bad.Load() && op == vfs.OpCreate && strings.Contains(name, ".index") {
				return 0, vfs.ErrFull
			}
			return 0, nil
		}}
		o := d.options(ev)
		o.RetainBytes = 150 << 10
		s := open(t, "d", o)
		putTopic(t, s, "T", 2)
		busy, idle := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
		for i := range 20 {
			appendBodies(t, s, idle, strconv.Itoa(i))
		}
		for range 70 {
			appendBodies(t, s, busy, body(0, 1000))
		}
		store.Retain(s) // indexes the first segment
		bad.Store(!damaged)
		for range 250 {
			appendBodies(t, s, busy, body(0, 1000))
		}
		store.Retain(s)
		if lo, hi, _ := s.Bounds(idle); lo != 20 || hi != 20 {
			t.Fatalf("the idle queue holds %d to %d: its segment was not dropped", lo, hi)
		}
		d.log = mem.Kill()
		_ = s.Close() // the index cannot be written
		if damaged {
			names, err := d.log.List("d/log")
			if err != nil {
				t.Fatal(err)
			}
			spoiled := 0
			for _, n := range names {
				base, ok := strings.CutSuffix(n, ".index")
				if !ok {
					continue
				}
				if _, err := d.log.Open("d/log/" + base + ".log"); err != nil {
					continue // of a dropped segment
				}
				f, err := d.log.Open("d/log/" + n)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := f.WriteAt(make([]byte, 64), 0); err != nil {
					t.Fatal(err)
				}
				spoiled++
			}
			if spoiled == 0 {
				t.Fatal("no index")
			}
		}
		s = open(t, "d", d.options(ev))
		if lo, hi, _ := s.Bounds(idle); lo != 20 || hi != 20 {
			t.Fatalf("damaged %v: the idle queue goes on at %d, %d", damaged, lo, hi)
		}
		closeStore(t, s)
	}
}

// A segment that cannot be dropped stays as it is until it can.
func TestSegmentThatCannotBeDroppedStays(t *testing.T) {
	d, ev := memDisks(), &events{}
	var bad atomic.Bool
	d.log = &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, name string) (int, error) {
		if bad.Load() && op == vfs.OpRename && strings.Contains(name, "spare-") {
			return 0, vfs.ErrFull
		}
		return 0, nil
	}}
	o := d.options(ev)
	o.RetainBytes = 100 << 10
	bad.Store(true)
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 200 {
		appendBodies(t, s, q, body(i, 1000))
	}
	store.Retain(s)
	if n := len(readAll(t, s, q, 0)); n != 200 {
		t.Fatalf("%d messages", n)
	}
	bad.Store(false)
	store.Retain(s)
	lo, _, _ := s.Bounds(q)
	if lo == 0 || len(ev.of(store.SegmentDropped)) == 0 {
		t.Fatal("nothing dropped")
	}
	closeStore(t, s)
	s = open(t, "d", o)
	if again, _, _ := s.Bounds(q); again != lo {
		t.Fatalf("begins at %d, began at %d", again, lo)
	}
	closeStore(t, s)
}

// The disk is called full only while appends are refused.
func TestDiskIsNotFullWhileAppendsWork(t *testing.T) {
	d, ev := memDisks(), &events{}
	var bad atomic.Bool
	d.log = &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, name string) (int, error) {
		if bad.Load() && op == vfs.OpCreate && strings.HasSuffix(name, ".log") {
			return 0, vfs.ErrFull
		}
		return 0, nil
	}}
	o := d.options(ev)
	o.RetainBytes = 60 << 10
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 80 {
		appendBodies(t, s, q, body(i, 1000))
	}
	bad.Store(true)
	for {
		if _, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, body(0, 1000))}); err != nil {
			break
		}
	}
	store.Retain(s) // gives a file to write again
	appendBodies(t, s, q, body(0, 1000))
	if low, back := len(ev.of(store.SpaceLow)), len(ev.of(store.SpaceBack)); low != 1 || back != 1 {
		t.Fatalf("low %d times, back %d times", low, back)
	}
	closeStore(t, s)
}

// A segment file that is gone is reported, though a start needs only its index. If it
// was the last one no offset of its messages is given out again.
func TestSegmentFileThatIsGoneIsReported(t *testing.T) {
	for gone := 1; gone <= 3; gone++ {
		d, ev := memDisks(), &events{}
		s := open(t, "d", d.options(ev))
		putTopic(t, s, "T", 2)
		q, idle := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
		for i := range 150 {
			appendBodies(t, s, q, body(i, 1000))
		}
		appendBodies(t, s, idle, "in the last one")
		closeStore(t, s)
		name := fmt.Sprintf("d/log/%010d.log", gone)
		if err := d.log.Remove(name); err != nil {
			t.Fatal(err)
		}
		s = open(t, "d", d.options(ev))
		if bad := ev.of(store.Damaged); gone > 1 && (len(bad) != 1 || bad[0].File != name) {
			t.Errorf("segment %d is gone: %+v", gone, ev.all)
		}
		a, b := appendBodies(t, s, q, "on"), appendBodies(t, s, idle, "on")
		if a.Offset != 150 || b.Offset != 1 {
			t.Errorf("segment %d is gone: goes on at %d and %d", gone, a.Offset, b.Offset)
		}
		closeStore(t, s)
		said := len(ev.all)
		closeStore(t, open(t, "d", d.options(ev)))
		if len(ev.all) != said {
			t.Errorf("reported again: %+v", ev.all[said:])
		}
	}
}

// That a segment was left shows that another one was begun: if that is gone it is said,
// no offset of its messages is given out again, and nothing is written to the one that
// was left, whose index would not know.
func TestLeftSegmentIsNotTheLast(t *testing.T) {
	d, ev := memDisks(), &events{}
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	n := 0
	fill := func(segment string) {
		for {
			if names, _ := d.log.List("d/log"); slices.Contains(names, segment) {
				return
			}
			appendBodies(t, s, q, body(n, 5000))
			n++
		}
	}
	fill("0000000002.log")
	store.Retain(s) // writes the index of the first
	mem := d.log.(*vfs.Mem).Kill()
	closeStore(t, s)
	if err := mem.Remove("d/log/0000000002.log"); err != nil {
		t.Fatal(err)
	}
	d.log = mem
	s = open(t, "d", d.options(ev))
	a := appendBodies(t, s, q, "small")
	if bad := ev.of(store.Damaged); len(bad) != 1 || a.Offset < int64(n) {
		t.Errorf("of %d messages some are gone, goes on at %d: %+v", n, a.Offset, bad)
	}
	d.log = mem.Kill()
	closeStore(t, s)
	s = open(t, "d", d.options(ev))
	if got := readAll(t, s, q, 0); got[a.Offset] != "small" {
		t.Errorf("what was stored at %d is gone", a.Offset)
	}
	closeStore(t, s)
}
