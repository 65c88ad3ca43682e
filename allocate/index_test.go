package allocate_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tacitmq/tacit/allocate"
)

// The index finds what a binary search finds, in lists with gaps, negative ids
// and few or many brokers.
func TestIndexFindsWhatABinarySearchFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		brokers := rapid.IntRange(1, 20).Draw(t, "brokers")
		queue := rapid.Custom(func(t *rapid.T) allocate.Queue {
			return allocate.Queue{
				Topic:  rapid.SampledFrom([]string{"a", "b"}).Draw(t, "topic"),
				Broker: fmt.Sprintf("b%d", rapid.IntRange(0, brokers).Draw(t, "broker")),
				ID:     rapid.OneOf(rapid.Int32Range(-3, 12), rapid.Int32()).Draw(t, "id"),
			}
		})
		queues := rapid.SliceOf(queue).Draw(t, "queues")
		slices.SortFunc(queues, allocate.Queue.Compare)
		queues = slices.Compact(queues)
		x := allocate.NewIndex(queues)
		for _, q := range append(slices.Clone(queues), rapid.SliceOf(queue).Draw(t, "others")...) {
			want, exists := slices.BinarySearchFunc(queues, q, allocate.Queue.Compare)
			if at, ok := x.Find(q); ok != exists || ok && at != want {
				t.Fatalf("%v: found at %d, %v; is at %d, %v in %v", q, at, ok, want, exists, queues)
			}
		}
	})
}
