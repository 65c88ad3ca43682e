package store_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

// Retention drops segments while somebody searches them: what is found is what is
// left, and nobody is told of closed files.
func TestSearchesGoOnWhileRetentionDropsSegments(t *testing.T) {
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.RetainBytes = 100 << 10
	s := open(t, "d", o)
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	q := store.Queue{Topic: "T"}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	search := func(f func() error) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	search(func() error { _, err := s.LookupKey("T", batch.Hash("none"), 10); return err })
	search(func() error { _, err := s.SearchByTime(q, 1); return err })
	for i := range 3000 {
		m := message.Message{Body: []byte(body(0, 1000)), Keys: []string{strconv.Itoa(i)}}
		if _, err := s.Append(ctx, store.Entry{Batch: encodeMessages(t, batch.Info{Topic: "T"}, m)}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	if len(ev.of(store.SegmentDropped)) == 0 {
		t.Fatal("nothing was dropped")
	}
	found, err := s.LookupKey("T", batch.Hash("2999"), 10)
	if err != nil || len(found) != 1 || found[0].Offset != 2999 {
		t.Fatal(found, err)
	}
}

// All keys of a large active segment are looked at.
func TestLookupFindsOldKeysOfTheActiveSegment(t *testing.T) {
	o := memDisks().options(&events{})
	o.SegmentBytes = 16 << 20
	s := open(t, "d", o)
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	const batches, keys = 2500, 10
	for i := range batches {
		var m message.Message
		for k := range keys {
			m.Keys = append(m.Keys, strconv.Itoa(i*keys+k))
		}
		s.AppendAsync(ctx, store.Entry{Batch: encodeMessages(t, batch.Info{Topic: "T"}, m)}, func(_ store.Appended, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := s.Append(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, "end")}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []int{0, keys, 8191, 8192, 8193, batches*keys - 1} {
		found, err := s.LookupKey("T", batch.Hash(strconv.Itoa(key)), 10)
		if err != nil || len(found) != 1 || found[0].Offset != int64(key/keys) {
			t.Errorf("key %d: %v %v", key, found, err)
		}
	}
}
