package store_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// A file that is written again holds many batches of its earlier life behind the
// end of the log; a start after a crash reads it a few times, not once for each.
func TestRecoveryOfARecycledSegmentReadsItAFewTimes(t *testing.T) {
	d, ev := memDisks(), &events{}
	mem := d.log.(*vfs.Mem)
	o := d.options(ev)
	o.SegmentBytes, o.RetainBytes = 4<<20, 1
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	b := encode(t, batch.Info{Topic: "T"}, body(0, 100))
	for range 13 { // three segments and a quarter, each a MiB at a time
		var wg sync.WaitGroup
		for range 1 << 20 / len(b) {
			wg.Add(1)
			s.AppendAsync(ctx, store.Entry{Batch: b}, func(_ store.Appended, err error) {
				defer wg.Done()
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		store.Retain(s)
	}
	_, want, _ := s.Bounds(store.Queue{Topic: "T"})
	var reads atomic.Int64
	o.FS = &vfs.Inject{FS: mem.Kill(), Fail: func(op vfs.Op, name string) (int, error) {
		if op == vfs.OpRead && strings.HasSuffix(name, ".log") {
			reads.Add(1)
		}
		return 0, nil
	}}
	closeStore(t, s)
	s = open(t, "d", o)
	n := reads.Load()
	if _, end, _ := s.Bounds(store.Queue{Topic: "T"}); end != want {
		t.Fatalf("ends at %d, ended at %d", end, want)
	}
	closeStore(t, s)
	if n == 0 || n > 100 {
		t.Fatalf("%d reads", n)
	}
}

// All of a segment that was left had been acknowledged: damage at its end is
// called damage, and stays for somebody to look at.
func TestDamagedEndOfALeftSegmentIsNotATornTail(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	s := open(t, "d", o)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	for i := range 100 {
		appendBodies(t, s, q, body(i, 1000))
	}
	mem := d.log.(*vfs.Mem).Kill()
	closeStore(t, s)
	d.log = mem
	names, err := mem.List("d/log")
	if err != nil {
		t.Fatal(err)
	}
	var name string
	for _, n := range names {
		if strings.HasSuffix(n, ".index") {
			if err := mem.Remove("d/log/" + n); err != nil {
				t.Fatal(err)
			}
		} else if name == "" {
			name = "d/log/" + n
		}
	}
	f, err := mem.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	log := make([]byte, size)
	if _, err := f.ReadAt(log, 0); err != nil {
		t.Fatal(err)
	}
	last, end, messages := 0, 0, 0
	for {
		n, err := batch.Length(log[end:])
		if err != nil {
			break
		}
		last, end, messages = end, end+n, messages+1
	}
	if _, err := f.WriteAt([]byte{log[end-1] ^ 1}, int64(end-1)); err != nil {
		t.Fatal(err)
	}
	s = open(t, "d", d.options(ev))
	got := readAll(t, s, q, 0)
	closeStore(t, s)
	if _, ok := got[int64(messages-1)]; ok || len(got) != 99 {
		t.Fatalf("%d messages", len(got))
	}
	bad := ev.of(store.Damaged)
	if len(bad) != 1 || bad[0].File != name || bad[0].Position != int64(last) || len(ev.of(store.TornTail)) > 0 {
		t.Fatalf("%+v", ev.all)
	}
	if kept, err := f.Size(); err != nil || kept != size {
		t.Fatalf("cut from %d to %d bytes, %v", size, kept, err)
	}
}
