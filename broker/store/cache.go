package store

import (
	"slices"
	"sort"
	"sync"
)

// padding follows each write so that it ends at a page's end: the rest of the page
// need not be read from a recycled file first, and recovery finds zeros behind
// the last batch.
const (
	page    = 4096
	padding = 2 * page
)

// chunk is a piece of memory in which batches are put together for writing, and
// from which readers that keep up are served. It mirrors a part of a segment.
type chunk struct {
	buf     []byte // at full length
	seg     uint32
	start   int64 // position in the segment
	n       int   // bytes in use
	refs    int
	evicted bool
}

// cache holds the newest chunks. Chunks are recycled: touching fresh memory costs
// more than writing to it.
type cache struct {
	chunkBytes int
	limit      int // bytes

	mu     sync.Mutex
	chunks []*chunk // in order of the log
	bytes  int
	free   []*chunk
}

// next returns a chunk that has room for size bytes and padding, and begins at
// pos of seg. It may be the last one, to be continued.
func (c *cache) next(seg uint32, pos int64, size int) *chunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.chunks) > 0 {
		last := c.chunks[len(c.chunks)-1]
		if last.seg == seg && last.start+int64(last.n) == pos && last.n+size+padding <= len(last.buf) {
			return last
		}
	}
	var k *chunk
	switch {
	case size+padding > c.chunkBytes:
		k = &chunk{buf: make([]byte, size+padding)} // one large batch
	case len(c.free) > 0:
		k = c.free[len(c.free)-1]
		c.free = c.free[:len(c.free)-1]
	default:
		k = &chunk{buf: make([]byte, c.chunkBytes)}
	}
	*k = chunk{buf: k.buf, seg: seg, start: pos}
	c.chunks = append(c.chunks, k)
	c.bytes += len(k.buf)
	drop := 0
	for c.bytes > c.limit && drop < len(c.chunks)-1 {
		old := c.chunks[drop]
		drop++
		c.bytes -= len(old.buf)
		old.evicted = true
		c.recycle(old)
	}
	c.chunks = slices.Delete(c.chunks, 0, drop)
	return k
}

// recycle keeps a chunk that nobody uses for later.
func (c *cache) recycle(k *chunk) {
	if k.evicted && k.refs == 0 && len(k.buf) == c.chunkBytes && len(c.free)*c.chunkBytes < c.limit {
		c.free = append(c.free, k)
	}
}

// extend says that k holds n bytes now.
func (c *cache) extend(k *chunk, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.n = n
}

// find returns the chunk that holds size bytes at pos of seg, or nil. The caller
// must hold c.mu, and takes a reference if it keeps the chunk.
func (c *cache) find(seg uint32, pos int64, size int) *chunk {
	i := sort.Search(len(c.chunks), func(i int) bool {
		k := c.chunks[i]
		return k.seg > seg || k.seg == seg && k.start > pos
	}) - 1
	if i < 0 {
		return nil
	}
	if k := c.chunks[i]; k.seg == seg && pos >= k.start && pos+int64(size) <= k.start+int64(k.n) {
		return k
	}
	return nil
}

// release gives references back.
func (c *cache) release(ks []*chunk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range ks {
		k.refs--
		c.recycle(k)
	}
}

// buffers recycles the memory that Read uses for what comes from disk.
type buffers struct {
	mu   sync.Mutex
	free [bufferClasses][][]byte
}

const (
	smallestBuffer = 64 << 10
	bufferClasses  = 8 // up to 8 MiB
	keptBuffers    = 8 // of each class
)

func bufferClass(n int) (class, size int) {
	size = smallestBuffer
	for size < n {
		size <<= 1
		class++
	}
	return class, size
}

// get returns a buffer of at least n bytes.
func (p *buffers) get(n int) []byte {
	class, size := bufferClass(n)
	if class >= bufferClasses {
		return make([]byte, n)
	}
	p.mu.Lock()
	if f := p.free[class]; len(f) > 0 {
		b := f[len(f)-1]
		p.free[class] = f[:len(f)-1]
		p.mu.Unlock()
		return b
	}
	p.mu.Unlock()
	return make([]byte, size)
}

// put gives a buffer of get back.
func (p *buffers) put(b []byte) {
	class, size := bufferClass(cap(b))
	if class >= bufferClasses || size != cap(b) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free[class]) < keptBuffers {
		p.free[class] = append(p.free[class], b[:size])
	}
}
