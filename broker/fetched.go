package broker

import (
	"sync/atomic"

	"google.golang.org/grpc/mem"

	"github.com/tacitmq/tacit/broker/store"
)

// fetched is what one read found, on its way to the wire. The batches go out as
// they lie in the store's memory; when gRPC has let go of the last of them the
// memory is given back. If a connection breaks, gRPC may never do so: then the
// garbage collector takes all of it.
type fetched struct {
	store.Result
	srv  *Server
	f    *fetchStream
	took int64  // of the server's fetchMemory
	turn uint64 // of the answer it is in, if it is in one
	refs atomic.Int32
}

// smallBatch bytes or fewer are copied together rather than sent as pieces of
// their own, each of which costs more than the copy.
const smallBatch = 4 << 10

// newFetched returns one for a stream that took so much of the memory for fetches.
func (s *Server) newFetched(f *fetchStream, took int64) *fetched {
	r := s.fetchedPool.Get().(*fetched) //nolint:forcetypeassert // the pool holds nothing else
	r.srv, r.f, r.took = s, f, took
	return r
}

// trim gives back what was taken for more than was found. A first batch larger
// than was asked for goes beyond it.
func (r *fetched) trim() {
	n := int64(0)
	for _, b := range r.Batches {
		n += int64(len(b))
	}
	if n < r.took {
		r.srv.fetchMemory.give(r.f, r.took-n)
		r.took = n
	}
}

// release gives everything back that is not on its way out.
func (r *fetched) release() {
	if r == nil {
		return
	}
	r.Release()
	r.srv.fetchMemory.give(r.f, r.took)
	if r.turn != 0 {
		r.f.passed(r.turn)
	}
	r.f, r.took, r.turn = nil, 0, 0
	r.srv.fetchedPool.Put(r)
}

// data passes the batches to gRPC and gives r away: it comes back through Put.
func (r *fetched) data(s *Server) mem.BufferSlice {
	if len(r.Batches) == 0 {
		r.release()
		return nil
	}
	r.merge()
	out := make(mem.BufferSlice, 0, len(r.Batches))
	r.refs.Store(1) // until all are counted
	inPlace := false
	for i := 0; i < len(r.Batches); {
		if len(r.Batches[i]) > smallBatch {
			r.refs.Add(1)
			inPlace = true
			out = append(out, mem.NewBuffer(&r.Batches[i], r))
			i++
			continue
		}
		n, j := 0, i
		for ; j < len(r.Batches) && len(r.Batches[j]) <= smallBatch; j++ {
			n += len(r.Batches[j])
		}
		b := s.codec.Pool().Get(n)
		n = 0
		for ; i < j; i++ {
			n += copy((*b)[n:], r.Batches[i])
		}
		r.refs.Add(1)
		out = append(out, mem.NewBuffer(b, copied{r}))
	}
	if !inPlace {
		r.Release() // the copies are enough
	}
	r.Put(nil)
	return out
}

// copied is where copies come from and go to; they count as what they are copies of.
type copied struct{ r *fetched }

// Get makes copied a mem.BufferPool; gRPC never asks it for memory.
func (c copied) Get(n int) *[]byte { return c.r.Get(n) }

// Put is called when gRPC has let go of a copy.
func (c copied) Put(b *[]byte) {
	c.r.srv.codec.Pool().Put(b)
	c.r.Put(nil)
}

// merge joins batches that lie one behind the other in memory.
func (r *fetched) merge() {
	merged := r.Batches[:1]
	for _, b := range r.Batches[1:] {
		last := &merged[len(merged)-1]
		if n := len(*last); cap(*last) >= n+len(b) && &(*last)[:n+1][n] == &b[0] {
			*last = (*last)[:n+len(b)]
			continue
		}
		merged = append(merged, b)
	}
	clear(r.Batches[len(merged):])
	r.Batches = merged
}

// Get makes fetched a mem.BufferPool; gRPC never asks it for memory.
func (r *fetched) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put is called once for each buffer that gRPC has let go of.
func (r *fetched) Put(*[]byte) {
	if r.refs.Add(-1) == 0 {
		r.release()
	}
}
