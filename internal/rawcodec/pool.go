package rawcodec

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Sizes that are pooled: powers of two from 4 KiB to 8 MiB. gRPC's own pool has
// nothing between 32 KiB and 1 MiB, and clears every buffer it hands out.
const (
	minClass = 12
	maxClass = 23
)

// pool hands out buffers of powers of two, not cleared.
type pool struct {
	classes [maxClass - minClass + 1]sync.Pool
}

func newPool() mem.BufferPool { return new(pool) }

// Get returns a buffer of the given length.
func (p *pool) Get(length int) *[]byte {
	class := max(minClass, bits.Len(uint(max(length, 1)-1)))
	if class > maxClass {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.classes[class-minClass].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<class)
	return &b
}

// Put takes a buffer back.
func (p *pool) Put(b *[]byte) {
	class := bits.Len(uint(cap(*b))) - 1
	if class < minClass || class > maxClass || cap(*b) != 1<<class {
		return // not one of ours
	}
	p.classes[class-minClass].Put(b)
}
