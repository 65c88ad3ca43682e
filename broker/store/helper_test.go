package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	pebblefs "github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
	"github.com/tacitmq/tacit/message"
)

// disks are the two file systems of a store.
type disks struct {
	log   vfs.FS
	state store.StateFS
}

func memDisks() disks { return disks{vfs.NewMem(), pebblefs.NewCrashableMem()} }

// events collects reports.
type events struct {
	mu  sync.Mutex
	all []store.Event
}

func (e *events) report(ev store.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) of(k store.Kind) (out []store.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == k {
			out = append(out, ev)
		}
	}
	return out
}

func (d disks) options(ev *events) store.Options {
	return store.Options{
		FS: d.log, StateFS: d.state, SegmentBytes: 64 << 10, MaxBatchBytes: 16 << 10,
		CacheBytes: 1, MinFreeBytes: 1, Report: ev.report, RetainInterval: time.Hour,
	}
}

func open(t testing.TB, dir string, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t testing.TB, s *store.Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func putTopic(t testing.TB, s *store.Store, name string, queues int32) {
	t.Helper()
	if err := s.PutTopic(store.Topic{Name: name, Queues: queues}); err != nil {
		t.Fatal(err)
	}
}

// encode makes a batch with the given bodies.
func encode(t testing.TB, info batch.Info, bodies ...string) []byte {
	t.Helper()
	ms := make([]message.Message, len(bodies))
	for i, b := range bodies {
		ms[i].Body = []byte(b)
	}
	return encodeMessages(t, info, ms...)
}

func encodeMessages(t testing.TB, info batch.Info, ms ...message.Message) []byte {
	t.Helper()
	var enc batch.Encoder
	for i := range ms {
		enc.Append(&ms[i])
	}
	b, err := enc.Finish(nil, info)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func appendBodies(t testing.TB, s *store.Store, q store.Queue, bodies ...string) store.Appended {
	t.Helper()
	a, err := s.Append(context.Background(), store.Entry{Batch: encode(t, batch.Info{Topic: q.Topic, Queue: q.ID}, bodies...)})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// readAll returns the bodies of q from offset on, by offset.
func readAll(t testing.TB, s *store.Store, q store.Queue, offset int64, filter ...uint64) map[int64]string {
	t.Helper()
	out := map[int64]string{}
	var res store.Result
	defer res.Release()
	var dec batch.Decoder
	for {
		if err := s.Read(&res, q, offset, 4096, filter); err != nil {
			t.Fatalf("read %v at %d: %v", q, offset, err)
		}
		for _, b := range res.Batches {
			h, err := batch.Parse(b)
			if err != nil {
				t.Fatal(err)
			}
			if err := batch.Verify(b, &h); err != nil {
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
				if _, dup := out[r.Offset]; dup {
					t.Fatalf("offset %d of %v twice", r.Offset, q)
				}
				if r.Offset >= offset {
					out[r.Offset] = string(r.Value)
				}
			}
		}
		if res.Next == offset {
			if len(res.Batches) > 0 {
				t.Fatalf("read %v at %d: no progress", q, offset)
			}
			return out
		}
		if res.Next < offset {
			t.Fatalf("read %v: next %d after %d", q, res.Next, offset)
		}
		offset = res.Next
	}
}

func wantBodies(t testing.TB, got map[int64]string, first int64, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d messages, want %d: %v", len(got), len(want), got)
	}
	for i, w := range want {
		if g := got[first+int64(i)]; g != w {
			t.Fatalf("offset %d: %.40q, want %.40q", first+int64(i), g, w)
		}
	}
}

func body(i, size int) string { return fmt.Sprintf("%0*d", size, i) }
