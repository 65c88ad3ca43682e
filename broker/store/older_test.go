package store_test

import (
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
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

// Whatever copy of the state a store is opened from, a topic that was deleted and made
// again has the messages of its present life, and no group's progress of another.
func TestNoLifeOfATopicCountsForALaterOne(t *testing.T) {
	for seed := range seeds(t, 100) {
		t.Run(strconv.Itoa(seed), func(t *testing.T) { runLives(t, uint64(seed)) })
	}
}

func runLives(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 35))
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.SegmentBytes = 16 << 10
	s := open(t, "d", o)
	topics := []string{"A", "B"}
	lives := map[string][]string{}
	commits := map[string]map[int64]bool{}
	n := 0
	born := func(topic string) {
		putTopic(t, s, topic, 2)
		lives[topic], commits[topic] = nil, map[int64]bool{}
	}
	for _, topic := range topics {
		born(topic)
	}
	clean := false
	for range 20 + rng.IntN(40) {
		topic := topics[rng.IntN(len(topics))]
		q := store.Queue{Topic: topic}
		clean = false
		switch k := rng.IntN(20); {
		case k < 7:
			n++
			b := body(n, 10+rng.IntN(1500))
			appendBodies(t, s, q, b)
			lives[topic] = append(lives[topic], b)
		case k < 11:
			end := int64(len(lives[topic]))
			if err := s.State().CommitOffset(ctx, "G", q, end); err != nil {
				t.Fatal(err)
			}
			commits[topic][end] = true
		case k < 14:
			if err := s.DeleteTopic(topic); err != nil {
				t.Fatal(err)
			}
			born(topic)
		case k < 15:
			store.Retain(s) // writes indexes
		case k < 17:
			if err := store.Checkpoint(s); err != nil {
				t.Fatal(err)
			}
		default:
			if rng.IntN(2) == 0 {
				d.log = d.log.(*vfs.Mem).Kill()
				o.FS = d.log
			}
			closeStore(t, s)
			s = open(t, "d", o)
			clean = true
		}
	}
	if !clean && rng.IntN(2) == 0 {
		d.log = d.log.(*vfs.Mem).Kill()
	}
	closeStore(t, s)
	if copies := d.copies(t); len(copies) > 0 {
		d.keepOnly(t, copies[rng.IntN(len(copies))])
	}
	o.FS = d.log
	for range 2 {
		s = open(t, "d", o)
		for _, topic := range topics {
			q := store.Queue{Topic: topic}
			if len(lives[topic]) == 0 { // the state alone knows that it was deleted
				continue
			}
			wantBodies(t, readAll(t, s, q, 0), 0, lives[topic]...)
			if at, ok := s.State().Offset("G", q); ok && at > 0 && !commits[topic][at] {
				t.Errorf("the group is at %d of %d in %s, and was never: %+v", at, len(lives[topic]), topic, ev.all)
			}
		}
		if rng.IntN(2) == 0 {
			o.FS = o.FS.(*vfs.Mem).Kill()
		}
		closeStore(t, s)
	}
}
