package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/cluster"
	"github.com/tacitmq/tacit/message"
)

// Many idle consumers of one process share connections and cost few goroutines and little memory each.
func TestF_SCL_02_IdleConsumersAreCheap(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many consumers")
	}
	const n = 100
	c := start(t, cluster.Config{})
	topic(t, c, "T", 1)
	measure := func() (goroutines int, bytes uint64) {
		runtime.GC()
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		return runtime.NumGoroutine(), ms.HeapAlloc + ms.StackInuse
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	errs := make(chan error, n+1)
	var all []*consumer.PushConsumer
	begin := func(group string) {
		pc, err := consumer.New(c.NameServers(), group, consumer.Each(func(context.Context, *message.Message) error { return nil }),
			consumer.WithTopic("T", "*"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pc)
		wg.Go(func() { errs <- pc.Run(ctx) })
	}
	settled := func() bool {
		for _, pc := range all {
			if len(pc.Stats().Queues) == 0 {
				return false
			}
		}
		return true
	}
	begin("first") // what all share
	until(t, 20*time.Second, "the first has its queue", settled)
	g0, b0 := measure()
	for i := range n {
		begin(fmt.Sprint("group", i))
	}
	until(t, 30*time.Second, "every one has its queue", settled)
	g1, b1 := measure()
	per, bytes := float64(g1-g0)/n, float64(int64(b1)-int64(b0))/n
	t.Logf("%.1f goroutines and %.0f KiB for each consumer, with the broker's side", per, bytes/1024)
	// The broker is in this process: it takes some for each session itself.
	if per > 12 || bytes > 300<<10 {
		t.Errorf("%.1f goroutines and %.0f bytes for each consumer", per, bytes)
	}
	cancel()
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
