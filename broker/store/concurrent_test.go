package store_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
)

// Writers, followers that wait to be woken, readers of old messages, searches and
// retention at once; every follower sees every message of its queue in order.
func TestFollowersMissNothingUnderLoad(t *testing.T) { eachDurability(t, runFollowers) }

// eachDurability runs a test with appends that the committer does, and with ones that
// who brings them does when it may.
func eachDurability(t *testing.T, run func(t *testing.T, d store.Durability)) {
	for _, d := range []store.Durability{store.Fsync, store.Interval, store.None} {
		t.Run(fmt.Sprint(d), func(t *testing.T) { run(t, d) })
	}
}

func runFollowers(t *testing.T, durability store.Durability) {
	const queues, perQueue = 4, 300
	d, ev := memDisks(), &events{}
	o := d.options(ev)
	o.CacheBytes = 256 << 10
	o.Durability, o.SyncInterval = durability, time.Millisecond
	s := open(t, "d", o)
	putTopic(t, s, "T", queues)
	var wg sync.WaitGroup
	for id := range int32(queues) {
		q := store.Queue{Topic: "T", ID: id}
		wg.Go(func() {
			for i := range perQueue {
				b := encode(t, batch.Info{Topic: "T", Queue: id}, body(i, 200))
				if _, err := s.Append(ctx, store.Entry{Batch: b}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() { follow(t, s, q, perQueue) })
	}
	var done atomic.Bool
	var side sync.WaitGroup
	side.Go(func() {
		for !done.Load() {
			q := store.Queue{Topic: "T"}
			_, _ = s.SearchByTime(q, 1)
			_, _ = s.LookupKey("T", 1, 3)
			s.Snapshot()
			store.Retain(s)
			readAll(t, s, q, 0)
		}
	})
	wg.Wait()
	done.Store(true)
	side.Wait()
	closeStore(t, s)
	if len(ev.all) > 0 {
		t.Fatalf("%+v", ev.all)
	}
}

func follow(t *testing.T, s *store.Store, q store.Queue, n int) {
	wake := make(chan struct{}, 1)
	w := store.Waiter{Wake: func(bool) { wake <- struct{}{} }}
	var res store.Result
	defer res.Release()
	for offset := int64(0); offset < int64(n); {
		ready, err := s.Arm(&w, q, offset)
		if err != nil {
			t.Error(err)
			return
		}
		if !ready {
			<-wake
		}
		if err := s.Read(&res, q, offset, 1<<20, nil); err != nil {
			t.Error(err)
			return
		}
		if len(res.Batches) == 0 {
			t.Errorf("%v: woken at %d for nothing", q, offset)
			return
		}
		for _, b := range res.Batches {
			h, err := batch.Parse(b)
			if err == nil {
				err = batch.Verify(b, &h)
			}
			if err != nil || h.Stamp.BaseOffset != offset {
				t.Errorf("%v: offset %d, want %d: %v", q, h.Stamp.BaseOffset, offset, err)
				return
			}
			offset = h.NextOffset()
		}
	}
}

func TestWaitersAreWokenWhenTheirQueueOrTheStoreGoes(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	putTopic(t, s, "T", 1)
	putTopic(t, s, "U", 1)
	woken := make(chan string, 10)
	waiter := func(name string) *store.Waiter { return &store.Waiter{Wake: func(bool) { woken <- name }} }
	tw, uw, off := waiter("T"), waiter("U"), waiter("off")
	for w, topic := range map[*store.Waiter]string{tw: "T", uw: "U", off: "U"} {
		if ready, err := s.Arm(w, store.Queue{Topic: topic}, 0); ready || err != nil {
			t.Fatal(ready, err)
		}
	}
	s.Disarm(off)
	if err := s.DeleteTopic("T"); err != nil {
		t.Fatal(err)
	}
	if got := <-woken; got != "T" {
		t.Fatal(got)
	}
	if _, err := s.Arm(tw, store.Queue{Topic: "T"}, 0); !errors.Is(err, store.ErrNoQueue) {
		t.Fatal(err)
	}
	closeStore(t, s)
	if got := <-woken; got != "U" || len(woken) > 0 {
		t.Fatal(got)
	}
	if _, err := s.Arm(uw, store.Queue{Topic: "U"}, 0); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
}

func TestAppendsAfterCloseAreRefused(t *testing.T) {
	s := open(t, "d", memDisks().options(&events{}))
	putTopic(t, s, "T", 1)
	b := encode(t, batch.Info{Topic: "T"}, "x")
	closeStore(t, s)
	closeStore(t, s)
	if _, err := s.Append(ctx, store.Entry{Batch: b}); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
	u := s.State().NewUpdate()
	u.Put("s", "k", nil)
	if err := s.State().Apply(ctx, u); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
}

func TestAppendsOfOneGoroutineKeepTheirOrder(t *testing.T) { eachDurability(t, runOrder) }

func runOrder(t *testing.T, durability store.Durability) {
	o := memDisks().options(&events{})
	o.Durability = durability
	s := open(t, "d", o)
	defer closeStore(t, s)
	putTopic(t, s, "T", 2)
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := map[int32]int64{}
	for i := range 1000 {
		id := int32(i % 2)
		wg.Add(1)
		s.AppendAsync(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T", Queue: id}, fmt.Sprint(i))}, func(a store.Appended, err error) {
			defer wg.Done()
			mu.Lock()
			defer mu.Unlock()
			if err != nil || a.Offset != next[id] {
				t.Errorf("queue %d: offset %d, want %d (%v)", id, a.Offset, next[id], err)
			}
			next[id]++
		})
	}
	wg.Wait()
	for o, b := range readAll(t, s, store.Queue{Topic: "T", ID: 1}, 0) {
		if b != fmt.Sprint(2*o+1) {
			t.Fatalf("offset %d: %s", o, b)
		}
	}
}

func TestCanceledAppendIsWithdrawnOrAnswered(t *testing.T) { eachDurability(t, runCanceled) }

func runCanceled(t *testing.T, durability store.Durability) {
	o := memDisks().options(&events{})
	o.Durability = durability
	s := open(t, "d", o)
	defer closeStore(t, s)
	putTopic(t, s, "T", 1)
	var stored atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				c, cancel := context.WithCancel(ctx)
				go cancel() //nolint:gosec // ends at once
				_, err := s.Append(c, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, "x")})
				switch {
				case err == nil:
					stored.Add(1)
				case !errors.Is(err, context.Canceled):
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, end, _ := s.Bounds(store.Queue{Topic: "T"}); end != stored.Load() {
		t.Fatalf("%d stored, %d answered", end, stored.Load())
	}
}

// A store that is closed while many bring batches answers each, and has what it took.
func TestCloseAmongAppendsAnswersEach(t *testing.T) { eachDurability(t, runClose) }

func runClose(t *testing.T, durability store.Durability) {
	for range 20 {
		d := memDisks()
		o := d.options(&events{})
		o.Durability = durability
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		var stored atomic.Int64
		b := encode(t, batch.Info{Topic: "T"}, "x")
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for {
					answer := make(chan error, 1)
					if i%2 == 0 {
						_, err := s.Append(ctx, store.Entry{Batch: b})
						answer <- err
					} else {
						s.AppendAsync(ctx, store.Entry{Batch: b}, func(_ store.Appended, err error) { answer <- err })
					}
					if err := <-answer; err != nil {
						if !errors.Is(err, store.ErrClosed) {
							t.Error(err)
						}
						return
					}
					stored.Add(1)
				}
			})
		}
		for stored.Load() < 20 {
			runtime.Gosched()
		}
		closeStore(t, s)
		wg.Wait()
		s = open(t, "d", d.options(&events{}))
		if _, end, _ := s.Bounds(store.Queue{Topic: "T"}); end != stored.Load() {
			t.Errorf("%d stored, %d answered", end, stored.Load())
		}
		closeStore(t, s)
	}
}

// A batch that comes while nothing else does is stored by whoever brings it; with
// fsync the disk is waited for elsewhere.
func TestLoneBatchIsStoredBeforeAppendAsyncReturns(t *testing.T) {
	for _, d := range []store.Durability{store.None, store.Fsync} {
		o := memDisks().options(&events{})
		o.Durability = d
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		q := store.Queue{Topic: "T"}
		const n = 200
		here := 0
		for i := range n {
			done := make(chan error, 1)
			s.AppendAsync(ctx, store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, body(i, 8))}, func(_ store.Appended, err error) { done <- err })
			if len(done) > 0 {
				here++
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		}
		if got := readAll(t, s, q, 0); len(got) != n {
			t.Errorf("%v: %d of %d messages are stored", d, len(got), n)
		}
		if d == store.None && here < 16 { // of more the committer makes groups
			t.Errorf("%d of %d batches were stored at once", here, n)
		}
		closeStore(t, s)
	}
}
