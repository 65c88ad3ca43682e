package store_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// badDisk is a disk with places that cannot be read, which may fail as a whole.
type badDisk struct {
	vfs.FS

	mu     sync.Mutex
	bad    map[string][2]int64 // by name: from, to
	reads  bool                // fail
	writes bool
}

func (d *badDisk) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *badDisk) fails(name string, write bool, from, to int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.bad[name]
	if write && d.writes || !write && (d.reads || ok && from < r[1] && to > r[0]) {
		return fmt.Errorf("%s: %w", name, syscall.EIO)
	}
	return nil
}

func (d *badDisk) Create(name string) (vfs.File, error) {
	if err := d.fails(name, true, 0, 0); err != nil {
		return nil, err
	}
	f, err := d.FS.Create(name)
	return &badFile{f, d, name}, err
}

func (d *badDisk) Open(name string) (vfs.File, error) {
	f, err := d.FS.Open(name)
	return &badFile{f, d, name}, err
}

type badFile struct {
	vfs.File
	d    *badDisk
	name string
}

func (f *badFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.d.fails(f.name, false, off, off+int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *badFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.d.fails(f.name, true, off, off+int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *badFile) Sync() error {
	if err := f.d.fails(f.name, true, 0, 0); err != nil {
		return err
	}
	return f.File.Sync()
}

const logName = "d/log/0000000001.log"

// readPast reads a queue as a consumer does, again after errors, at most so often.
func readPast(t *testing.T, s *store.Store, q store.Queue, tries int) (got map[int64]string, failed int) {
	t.Helper()
	got = map[int64]string{}
	var res store.Result
	defer res.Release()
	var dec batch.Decoder
	for at := int64(0); ; {
		if err := s.Read(&res, q, at, 4096, nil); err != nil {
			if !errors.Is(err, syscall.EIO) {
				t.Fatal(err)
			}
			if failed++; failed >= tries {
				return got, failed
			}
			continue
		}
		for _, b := range res.Batches {
			h, err := batch.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			it, err := dec.Open(&h, nil)
			if err != nil {
				t.Fatal(err)
			}
			var r batch.Record
			for {
				ok, err := it.Next(&r)
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				got[r.Offset] = string(r.Value)
			}
		}
		if res.Next == at {
			return got, failed
		}
		at = res.Next
	}
}

// A place that the disk cannot read is damage like any other: reported once and
// skipped, while all that is intact is read.
func TestBadSectorIsReportedAndSkipped(t *testing.T) {
	d, ev := memDisks(), &events{}
	disk := &badDisk{FS: d.log, bad: map[string][2]int64{}}
	d.log = disk
	o := d.options(ev)
	o.UnreadableAfter = time.Nanosecond
	s := open(t, "d", o)
	putTopic(t, s, "T", 2)
	q, other := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
	for i := range 150 {
		appendBodies(t, s, q, body(i, 1000))
		appendBodies(t, s, other, body(i, 10))
	}
	disk.set(func() { disk.bad[logName] = [2]int64{20 << 10, 24 << 10} })
	for range 2 {
		got, _ := readPast(t, s, q, 10)
		if len(got) < 145 || len(got) == 150 { // a page holds a part of five
			t.Fatalf("%d messages of 150", len(got))
		}
		for o, b := range got {
			if b != body(int(o), 1000) {
				t.Fatalf("offset %d: %.20q", o, b)
			}
		}
		if got, _ := readPast(t, s, other, 10); len(got) < 145 {
			t.Fatalf("%d messages of the other queue", len(got))
		}
	}
	bad := ev.of(store.Damaged)
	if len(bad) == 0 || len(bad) > 10 || bad[0].File != logName || !errors.Is(bad[0].Err, syscall.EIO) {
		t.Fatalf("%+v", bad)
	}
	closeStore(t, s)
}

// A place counts as unreadable only after it has failed for a while.
func TestOneFailedReadSkipsNothing(t *testing.T) {
	d, ev := memDisks(), &events{}
	disk := &badDisk{FS: d.log, bad: map[string][2]int64{}}
	d.log = disk
	s := open(t, "d", d.options(ev))
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 150 {
		appendBodies(t, s, q, body(i, 1000))
	}
	disk.set(func() { disk.bad[logName] = [2]int64{20 << 10, 24 << 10} })
	got, failed := readPast(t, s, q, 50)
	if failed != 50 || len(got) == 0 || len(got) > 20 {
		t.Fatalf("%d messages, failed %d times", len(got), failed)
	}
	disk.set(func() { clear(disk.bad) })
	if got, _ := readPast(t, s, q, 1); len(got) != 150 || len(ev.of(store.Damaged)) != 0 {
		t.Fatalf("%d messages, %+v", len(got), ev.all)
	}
	closeStore(t, s)
}

// A disk that fails as a whole makes nobody skip what is intact, however long it takes.
func TestDiskThatFailsForAWhileMakesNobodySkip(t *testing.T) {
	for _, writes := range []bool{false, true} {
		for _, sector := range []bool{false, true} {
			t.Run(fmt.Sprintf("writes %v, a bad sector %v", writes, sector), func(t *testing.T) {
				d, ev := memDisks(), &events{}
				disk := &badDisk{FS: d.log, bad: map[string][2]int64{}}
				d.log = disk
				o := d.options(ev)
				o.UnreadableAfter = time.Nanosecond
				s := open(t, "d", o)
				putTopic(t, s, "T", 1)
				q := store.Queue{Topic: "T"}
				for i := range 150 { // three segments
					appendBodies(t, s, q, body(i, 1000))
				}
				store.Retain(s) // the indexes are written
				disk.set(func() {
					disk.reads, disk.writes = true, writes
					if sector {
						disk.bad[logName] = [2]int64{20 << 10, 24 << 10}
					}
				})
				if got, failed := readPast(t, s, q, 100); failed != 100 || len(got) != 0 {
					t.Fatalf("%d messages, failed %d times", len(got), failed)
				}
				if len(ev.all) != 0 {
					t.Fatalf("%+v", ev.all)
				}
				disk.set(func() { disk.reads, disk.writes = false, false })
				if got, _ := readPast(t, s, q, 10); !sector && len(got) != 150 || sector && (len(got) < 145 || len(got) == 150) {
					t.Fatalf("%d messages after it", len(got))
				}
				closeStore(t, s)
			})
		}
	}
}

// A bad sector keeps no store from being opened. No offset is given out again.
func TestBadSectorDoesNotKeepTheStoreClosed(t *testing.T) {
	for _, c := range []struct {
		name string
		from int64
		n    int
		want int
	}{
		{"first segment", 20 << 10, 100, 95},
		{"active segment", 20 << 10, 40, 35},
		{"end of the active segment", 40 << 10, 39, 34},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, ev := memDisks(), &events{}
			mem := d.log.(*vfs.Mem)
			o := d.options(ev)
			s := open(t, "d", o)
			putTopic(t, s, "T", 2)
			q := store.Queue{Topic: "T"}
			for i := range c.n {
				appendBodies(t, s, q, body(i, 1000))
			}
			killed := mem.Kill()
			closeStore(t, s)
			names, err := killed.List("d/log")
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range names {
				if strings.HasSuffix(n, ".index") { // as if it had not been written yet
					if err := killed.Remove("d/log/" + n); err != nil {
						t.Fatal(err)
					}
				}
			}
			disk := &badDisk{FS: killed, bad: map[string][2]int64{logName: {c.from, c.from + 4096}}}
			o.FS, o.UnreadableAfter = disk, time.Millisecond
			for round := range 3 {
				s = open(t, "d", o)
				got, _ := readPast(t, s, q, 10)
				if len(got) < c.want || len(got) >= c.n+round {
					t.Fatalf("round %d: %d messages, want %d", round, len(got), c.want)
				}
				a := appendBodies(t, s, q, "on"+strconv.Itoa(round))
				if a.Offset < int64(c.n) {
					t.Fatalf("offset %d is given out again", a.Offset)
				}
				c.want++
				if got, _ := readPast(t, s, q, 10); got[a.Offset] != "on"+strconv.Itoa(round) {
					t.Fatalf("round %d: the new message is not read", round)
				}
				closeStore(t, s)
			}
			bad := ev.of(store.Damaged)
			if len(bad) == 0 || bad[0].File != logName || !errors.Is(bad[0].Err, syscall.EIO) {
				t.Fatalf("%+v", bad)
			}
		})
	}
}

// A disk that fails as a whole when the store is opened is an error, and nothing is
// lost by it.
func TestOpenOfADiskThatFailsLosesNothing(t *testing.T) {
	for _, writes := range []bool{false, true} {
		d, ev := memDisks(), &events{}
		mem := d.log.(*vfs.Mem)
		o := d.options(ev)
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		for i := range 150 {
			appendBodies(t, s, q, body(i, 1000))
		}
		killed := mem.Kill()
		closeStore(t, s)
		disk := &badDisk{FS: killed, reads: true, writes: writes}
		o.FS, o.UnreadableAfter = disk, time.Millisecond
		for range 3 {
			if _, err := store.Open("d", o); !errors.Is(err, syscall.EIO) {
				t.Fatalf("%v", err)
			}
		}
		disk.set(func() { disk.reads, disk.writes = false, false })
		s = open(t, "d", o)
		if got := readAll(t, s, q, 0); len(got) != 150 {
			t.Fatalf("%d messages", len(got))
		}
		if bad := ev.of(store.Damaged); len(bad) != 0 {
			t.Fatalf("%+v", bad)
		}
		closeStore(t, s)
	}
}

// An index that cannot be read is made again from the messages.
func TestIndexOnABadSectorIsMadeAgain(t *testing.T) {
	for _, later := range []bool{false, true} {
		d, ev := memDisks(), &events{}
		disk := &badDisk{FS: d.log, bad: map[string][2]int64{}}
		d.log = disk
		o := d.options(ev)
		o.UnreadableAfter = time.Millisecond
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		for i := range 150 {
			appendBodies(t, s, q, body(i, 1000))
		}
		closeStore(t, s)
		spoil := func() {
			for i := range 3 {
				disk.bad[fmt.Sprintf("d/log/%010d.index", i+1)] = [2]int64{100, 1 << 20}
			}
		}
		if !later {
			disk.set(spoil)
		}
		s = open(t, "d", o)
		disk.set(spoil)
		if got := readAll(t, s, q, 0); len(got) != 150 {
			t.Fatalf("%d messages", len(got))
		}
		if a := appendBodies(t, s, q, "on"); a.Offset != 150 {
			t.Fatalf("goes on at %d", a.Offset)
		}
		disk.set(func() { clear(disk.bad) })
		closeStore(t, s)
		if bad := ev.of(store.Damaged); len(bad) != 0 || len(ev.of(store.IndexRebuilt)) == 0 {
			t.Fatalf("%+v", ev.all)
		}
	}
}

// Where idle queues go on may be on a bad sector: they go on further up. A disk that
// does not answer at all is no such case.
func TestIdleQueueWithoutAnIndexThatCanBeReadUsesNoOffsetAgain(t *testing.T) {
	d, ev := memDisks(), &events{}
	disk := &badDisk{FS: d.log, bad: map[string][2]int64{}}
	d.log = disk
	o := d.options(ev)
	o.RetainBytes, o.UnreadableAfter = 150<<10, time.Millisecond
	s := open(t, "d", o)
	putTopic(t, s, "T", 2)
	busy, idle := store.Queue{Topic: "T"}, store.Queue{Topic: "T", ID: 1}
	for i := range 20 {
		appendBodies(t, s, idle, strconv.Itoa(i))
	}
	for range 320 {
		appendBodies(t, s, busy, body(0, 1000))
		store.Retain(s)
	}
	closeStore(t, s)
	names, err := disk.List("d/log")
	if err != nil {
		t.Fatal(err)
	}
	disk.set(func() {
		for _, n := range names {
			if strings.HasSuffix(n, ".index") {
				disk.bad["d/log/"+n] = [2]int64{0, 1 << 20}
			}
		}
		disk.reads = true
	})
	if _, err := store.Open("d", o); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	disk.set(func() { disk.reads = false })
	s = open(t, "d", o)
	if _, end, _ := s.Bounds(idle); end < 20 {
		t.Fatalf("the idle queue goes on at %d", end)
	}
	if lo, end, _ := s.Bounds(busy); end < 320 || lo >= 320 {
		t.Fatalf("the busy queue holds %d to %d", lo, end)
	}
	closeStore(t, s)
}

// A start that reads the index of a dropped segment only at the second attempt takes
// it over once: its queues are not taken for ones that were deleted and made again.
func TestIndexThatIsReadAtTheSecondAttemptForgetsNoGroup(t *testing.T) {
	d, ev := memDisks(), &events{}
	var fails atomic.Int64
	d.log = &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpRead && strings.HasSuffix(name, "0000000001.index") && fails.Add(-1) >= 0 {
			return 0, syscall.EIO
		}
		return 0, nil
	}}
	o := d.options(ev)
	o.RetainBytes, o.UnreadableAfter = 100<<10, time.Millisecond
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 120 { // the first segment is dropped, and the second not
		appendBodies(t, s, q, body(i, 1000))
	}
	store.Retain(s)
	if n := len(ev.of(store.SegmentDropped)); n != 1 {
		t.Fatalf("%d segments were dropped", n)
	}
	if err := s.State().CommitOffset(ctx, "G", q, 110); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	fails.Store(1)
	s = open(t, "d", o)
	if at, ok := s.State().Offset("G", q); !ok || at != 110 || fails.Load() >= 0 {
		t.Errorf("the group is at %d %v: %+v", at, ok, ev.all)
	}
	if a := appendBodies(t, s, q, "on"); a.Offset != 120 {
		t.Errorf("goes on at %d", a.Offset)
	}
	closeStore(t, s)
}
