package store_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/vfs"
)

// Who waits for room behind a disk that hangs waits no longer than its context.
func TestAppendThatWaitsForRoomEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := memDisks()
		var hangs atomic.Bool
		release := make(chan struct{})
		d.log = &vfs.Inject{FS: d.log, Fail: func(op vfs.Op, _ string) (int, error) {
			if op == vfs.OpSync && hangs.Load() {
				<-release
			}
			return 0, nil
		}}
		o := d.options(&events{})
		o.PendingBytes = 1000
		s := open(t, "d", o)
		putTopic(t, s, "T", 1)
		entry := store.Entry{Batch: encode(t, batch.Info{Topic: "T"}, body(0, 2000))}
		hangs.Store(true)
		first := make(chan error, 1)
		s.AppendAsync(ctx, entry, func(_ store.Appended, err error) { first <- err })
		synctest.Wait() // it is in the sync, and there is no room

		gone, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ended := make(chan error, 2)
		go func() { // ends with gone
			_, err := s.Append(gone, entry)
			ended <- err
		}()
		go s.AppendAsync(gone, entry, func(_ store.Appended, err error) { ended <- err }) // ends with gone
		patient := make(chan error, 1)
		go s.AppendAsync(ctx, entry, func(_ store.Appended, err error) { patient <- err }) // ends with the hang
		for range 2 {
			select {
			case err := <-ended:
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("ended with %v", err)
				}
			case <-time.After(time.Minute):
				t.Fatal("an append waits for room without regard to its context")
			}
		}
		close(release)
		if err := errors.Join(<-first, <-patient); err != nil {
			t.Error(err)
		}
		if _, end, _ := s.Bounds(store.Queue{Topic: "T"}); end != 2 {
			t.Errorf("%d messages are stored, want 2", end)
		}
		closeStore(t, s)
	})
}
