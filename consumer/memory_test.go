package consumer

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

// Limits are for memory: an answer counts with what it takes when it is decompressed, and no more of it is than fits.
func TestMemoryLimitsHoldForCompressedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, size = 60, 1 << 20
		f := newFake(t)
		f.topic(2, "a")
		for id := range int32(2) {
			for range n {
				f.putWith(queue("a", id), batch.Encoder{Compression: batch.Zstd}, &message.Message{Body: make([]byte, size)})
			}
		}
		var handled, most atomic.Int64
		m := runPush(t, f, "c1", handle(func(*message.Message) error {
			handled.Add(1)
			time.Sleep(100 * time.Millisecond)
			return nil
		}), WithConcurrency(2), WithQueueLimits(1000, 4<<20), WithTotalBytes(6<<20))
		for handled.Load() < 2*n {
			most.Store(max(most.Load(), m.Stats().CachedBytes))
			time.Sleep(10 * time.Millisecond)
		}
		m.stop()
		if most.Load() > 8<<20 || most.Load() < 2<<20 {
			t.Errorf("up to %d bytes were cached, limit %d", most.Load(), 6<<20)
		}
		for id := range int32(2) {
			if o := f.stored(queue("a", id)); o != n {
				t.Errorf("stored offset %d, want %d", o, n)
			}
		}
	})
}
