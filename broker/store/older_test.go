package store_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
)

// copies returns the names of the copies of the state, oldest first.
func (d disks) copies(t *testing.T) []string {
	t.Helper()
	names, err := d.state.List("d")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, "state-") })
	slices.Sort(names)
	return names
}

// keepOnly removes the live state and all copies but one.
func (d disks) keepOnly(t *testing.T, kept string) {
	t.Helper()
	for _, n := range append(d.copies(t), "state") {
		if n == kept {
			continue
		}
		if err := d.state.RemoveAll(filepath.Join("d", n)); err != nil {
			t.Fatal(err)
		}
	}
}

// The ids of scheduled batches come from the state, which may be older than the
// log, and the log knows delivered ones by their ids.
func TestScheduledBatchesAreStoredAfterTheStateWasOlderThanTheLog(t *testing.T) {
	for _, lost := range []bool{false, true} {
		d, ev := memDisks(), &events{}
		o := d.options(ev)
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		deliver := func(body string) {
			t.Helper()
			u := s.State().NewUpdate()
			b := encode(t, batch.Info{Topic: "T"}, body)
			id := u.Schedule(1, b)
			if err := s.State().Apply(ctx, u); err != nil {
				t.Fatal(err)
			}
			if a, err := s.Append(ctx, store.Entry{Batch: b, Origin: id}); err != nil || a.Duplicate {
				t.Fatalf("%s: %+v %v", body, a, err)
			}
			u.Unschedule(id, 1)
			if err := s.State().Apply(ctx, u); err != nil {
				t.Fatal(err)
			}
		}
		deliver("0")
		closeStore(t, s) // makes a copy
		older := d.copies(t)[0]
		s = open(t, "d", o)
		deliver("1")
		deliver("2")
		closeStore(t, s)
		if lost {
			older, o.AcceptStateLoss = "", true
		}
		d.keepOnly(t, older)
		s = open(t, "d", o)
		if n := len(ev.of(store.StateRestored)) + len(ev.of(store.StateEmpty)); n != 1 {
			t.Fatalf("%+v", ev.all)
		}
		deliver("3")
		deliver("4")
		wantBodies(t, readAll(t, s, store.Queue{Topic: "T"}, 0), 0, "0", "1", "2", "3", "4")
		closeStore(t, s)
	}
}
