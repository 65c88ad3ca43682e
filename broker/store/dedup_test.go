package store

import (
	"errors"
	"testing"
)

// What a restart loads finds the last batches of every producer again, and never
// takes an older one, which may be stored, for a new one.
func TestSavedWindowsFindTheLastBatchesOfEveryProducer(t *testing.T) {
	const producers, batches = 20_000, 100
	q := newQueue(Queue{Topic: "T"})
	d := newDedup()
	offset := int64(0)
	for seq := range uint64(batches) {
		for p := range uint64(producers) {
			d.add(windowKey{p, q}, 1, sequence{seq: seq, offset: offset, time: 1_000_000 + offset, count: 1})
			offset++
		}
		d.keep()
	}
	saved := d.encodeWindows(map[*queue]uint32{q: 0})
	if len(saved) > 2*savedWindows {
		t.Fatalf("%d bytes", len(saved))
	}
	fresh := newDedup()
	if err := fresh.loadWindows(saved, []*queue{q}); err != nil {
		t.Fatal(err)
	}
	whole := 0
	for p := range uint64(producers) {
		found := 0
		for seq := range uint64(batches) {
			a, dup, err := fresh.check(windowKey{p, q}, 1, seq, 1)
			switch {
			case dup && a.Offset != int64(seq)*producers+int64(p):
				t.Fatalf("producer %d sequence %d: %+v", p, seq, a)
			case !dup && !errors.Is(err, ErrSequenceExpired):
				t.Fatalf("producer %d sequence %d: %v", p, seq, err)
			case dup:
				found++
			case found > 0:
				t.Fatalf("producer %d: a hole at %d", p, seq)
			}
		}
		if found < savedBatches {
			t.Fatalf("producer %d: %d batches found", p, found)
		}
		if found == windowBatches {
			whole++
		}
		if _, dup, err := fresh.check(windowKey{p, q}, 1, batches, 1); dup || err != nil {
			t.Fatal(dup, err)
		}
	}
	if whole < 5_000 {
		t.Fatalf("%d windows are whole", whole)
	}
}
