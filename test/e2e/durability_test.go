//go:build e2e && unix

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/producer"
)

// Rounds of kill -9 under load, E2E_KILLS many: each message that was
// acknowledged before is at its offset after the restart, and those of the
// producer that keeps its queues are stored once.
func TestAcknowledgedMessagesSurviveKills(t *testing.T) {
	const (
		queues = 4
		keyed  = uint64(1) // ids of the producer that selects by key
		free   = uint64(1) << 40
	)
	rounds, chance := number(t, "E2E_KILLS", 10), seeded(t)
	c := newCluster(t, []string{"broker-a"}, "--segment-size", "16MiB")
	c.setQueues("load", queues, true)
	b, names, all := c.nodes["broker-a"], []string{c.names.address}, queuesOf("load", "broker-a", queues)

	l := newLoad("load")
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	defer senders.Wait()
	defer stop()
	send := func(first uint64, opts ...producer.Option) {
		senders.Go(func() {
			if err := l.produce(ctx, names, first, 1<<30, append(opts, producer.WithTimeout(flowLimit))...); err != nil {
				t.Errorf("producer: %v", err)
			}
		})
	}
	send(keyed, producer.WithSelector(producer.ByKey()), producer.WithBatchBytes(16<<10))
	send(free, producer.WithCompression(producer.S2))

	var serves, acks []time.Duration
	torn := 0
	s := newShelf(t)
	for range rounds {
		before, _ := l.count()
		want := before + 300 + chance.IntN(4000)
		l.allow(want + 8000) // the kill comes under load
		await(t, flowLimit, "messages to be acknowledged", func() (bool, string) {
			n, _ := l.count()
			return n >= want, fmt.Sprintf("%d of %d", n, want)
		})
		b.proc.kill()
		acked := l.snapshot()
		serves = append(serves, b.start())
		begun := b.proc.begun
		await(t, flowLimit, "the first acknowledgement after the restart", func() (bool, string) {
			_, last := l.count()
			if last.After(begun) {
				acks = append(acks, last.Sub(begun))
				return true, ""
			}
			return false, "none"
		})
		if _, ok := b.proc.log.find(`"torn-tail"`); ok {
			torn++
		}
		s.read(names, all, s.reached(ends(acked)))
		if m := s.missing(acked); len(m) > 0 {
			t.Fatalf("%d of %d acknowledged messages are not at their offset, for example %d of %v", len(m), len(acked), m[0], acked[m[0]])
		}
	}
	stop()
	senders.Wait()
	l.check(t)

	// Once more from the beginning, after one more kill.
	b.proc.kill()
	serves = append(serves, b.start())
	acked := l.snapshot()
	whole := newShelf(t)
	whole.read(names, all, whole.reached(ends(acked)))
	if m := whole.missing(acked); len(m) > 0 {
		t.Errorf("%d of %d acknowledged messages are not at their offset, for example %d of %v", len(m), len(acked), m[0], acked[m[0]])
	}
	twice := map[bool]int{}
	for id, n := range whole.times {
		if n > 1 {
			twice[id < free]++
		}
	}
	if n := twice[true]; n > 0 {
		t.Errorf("%d messages of the producer that keeps its queues are stored more than once", n)
	}
	t.Logf("%d kills: %d messages acknowledged, all at their offsets; %d found stored when sent again, %d of the free producer stored twice",
		rounds+1, len(acked), l.repeats, twice[false])
	t.Logf("%d restarts found an unfinished write; from start to serving %s; to the first acknowledgement %s", torn, spread(serves), spread(acks))
	c.stopAll()
}

// spread describes durations.
func spread(ds []time.Duration) string {
	if len(ds) == 0 {
		return "none"
	}
	ds = slices.Sorted(slices.Values(ds))
	var sb strings.Builder
	fmt.Fprintf(&sb, "median %v, worst %v", ds[len(ds)/2].Round(time.Millisecond), ds[len(ds)-1].Round(time.Millisecond))
	return sb.String()
}
