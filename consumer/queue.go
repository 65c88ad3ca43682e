package consumer

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// phase is how far a process queue is in its life; it only goes forward.
type phase uint8

const (
	starting phase = iota // where to begin is not known, or the listener not told
	running
	draining // nothing more is handed out; handlers may run
	gone     // not ours any more; what its handlers return does not count
)

// slotState is what became of a fetched message.
type slotState uint8

const (
	waiting slotState = iota // to be handed out
	taken                    // with a handler, or on its way back to the broker
	delayed                  // to be tried again here, later
	done
)

// slot is one fetched message. Slots are in the order of offsets.
type slot struct {
	msg    *message.Message // nil once done
	offset int64
	size   int32
	state  slotState
}

// processQueue is a queue that the member owns under one lease, with the
// messages fetched and not yet finished. It is made by an assignment and never
// comes back to life: what belongs to another lease, or to an earlier ownership
// of the same queue, is another process queue. Guarded by member.mu except where
// noted.
type processQueue struct {
	m      *member
	queue  allocate.Queue
	epoch  session.Epoch
	filter *filter
	lease  *leaseClock // nil without a lease
	// ctx is that of the queue's handlers.
	ctx    context.Context //nolint:containedctx // ends with the process queue, not with a call
	cancel context.CancelFunc
	// stop tells handlers' goroutines that the queue is not ours any more. Atomic.
	stop atomic.Bool

	phase  phase
	paused bool // by the user
	told   bool // the listener was told of it, and not yet of its end
	queued bool // in member.ready
	busy   bool // orderly: a message is being handled or waits for its next try

	slots []slot
	base  uint64 // number of slots[0]; slots are numbered from the first on
	next  int    // index of the first slot that was never handed out
	redo  []uint64
	// unfinished and bytes count the slots that are not done, running those that
	// are taken.
	unfinished, running int
	bytes               int64

	offset   int64 // next to fetch
	known    bool  // offset is known
	located  bool  // the broker has confirmed it
	sought   bool  // the user chose it, and the broker has not confirmed it
	min, max int64 // as last heard

	call     client.FetchCall
	asked    *filter // of the answer under way; read without the lock by whoever decodes it
	fetching bool
	// following is set while an answer is taken after which the broker goes on by
	// itself, from followAt: the fetch that comes next may be that.
	following bool
	followAt  int64
	discard   bool  // the answer under way is for an offset no longer wanted
	idle      bool  // the last answer was empty
	starved   bool  // in member.starved
	reserved  int64 // bytes set aside for the answer under way
	ask       int
	perMsg    int // bytes a message takes, about
	failures  int
	stuck     string // why fetches fail that nothing but an operator helps, if that was said

	committed    int64 // last stored, if hasCommitted
	hasCommitted bool
	commitAfter  time.Time // not before, so that several new members find the group new
	manual       int64     // what the user committed, or else where the queue began, if hasManual
	hasManual    bool

	drained chan struct{} // closed once draining and nothing runs
	idleFn  []func()      // called under the lock once nothing runs
}

// leaseClock is until when the queues of a broker may be dispatched.
type leaseClock struct{ until atomic.Pointer[time.Time] }

// alive compares by the monotonic and by the wall clock: the former stops while
// the machine sleeps, the latter can be set back.
func (l *leaseClock) alive(now time.Time) bool {
	u := l.until.Load()
	return u != nil && now.Before(*u) && now.Round(0).Before(u.Round(0))
}

// open tells whether the queue is ours. Safe without the lock.
func (pq *processQueue) open(now time.Time) bool {
	return !pq.stop.Load() && (pq.lease == nil || pq.lease.alive(now))
}

func (pq *processQueue) slot(seq uint64) *slot {
	i := seq - pq.base
	if i >= uint64(len(pq.slots)) { // also if seq is below base
		return nil
	}
	return &pq.slots[i]
}

// waits tells whether there is something to hand out.
//
// Of a queue that must go, what was handed out before and taken back still is:
// messages after it may be finished, and would come again with it otherwise.
func (pq *processQueue) waits() bool {
	switch pq.phase {
	case running:
		return (len(pq.redo) > 0 || pq.next < len(pq.slots)) && !pq.paused && !pq.busy && !pq.m.paused
	case draining:
		return pq.unsettled()
	case starting, gone:
	}
	return false
}

func (pq *processQueue) unsettled() bool { return len(pq.redo) > 0 && !pq.m.cfg.handler.orderly }

// progress is the lowest offset that is not finished: what may be committed. Before
// the user's first commit that is where the queue began: without it whoever comes
// next finds a group that never committed, and may begin after what was not handled.
func (pq *processQueue) progress() (offset int64, ok bool) {
	if pq.m.cfg.manualCommit {
		return pq.manual, pq.hasManual && (pq.located || pq.manual > 0)
	}
	return pq.finished()
}

func (pq *processQueue) finished() (offset int64, ok bool) {
	if len(pq.slots) > 0 {
		return pq.slots[0].offset, true
	}
	return pq.offset, pq.known && (pq.located || pq.offset > 0)
}

// position is the offset of the next message to hand out.
func (pq *processQueue) position() (offset int64, ok bool) {
	if len(pq.redo) > 0 {
		return pq.slot(pq.redo[0]).offset, true
	}
	if pq.next < len(pq.slots) {
		return pq.slots[pq.next].offset, true
	}
	return pq.offset, pq.known
}

// finish marks a message as done and forgets those that nothing unfinished comes
// before. It returns the bytes it set free.
func (pq *processQueue) finish(seq uint64) int64 {
	s := pq.slot(seq)
	if s == nil || s.state == done {
		return 0
	}
	free := int64(s.size)
	s.state, s.msg = done, nil
	pq.unfinished--
	pq.bytes -= free
	n := 0
	for n < len(pq.slots) && pq.slots[n].state == done {
		n++
	}
	pq.slots = pq.slots[n:]
	pq.base += uint64(n)
	pq.next = max(0, pq.next-n)
	if len(pq.slots) == 0 {
		pq.slots = nil
	}
	return free
}

// ended counts n handlers of the queue that ended.
func (pq *processQueue) ended(n int) {
	pq.running -= n
	if pq.running > 0 {
		return
	}
	if pq.phase >= draining && pq.drained != nil && !pq.unsettled() {
		close(pq.drained)
		pq.drained = nil
	}
	fns := pq.idleFn
	pq.idleFn = nil
	for _, f := range fns {
		f()
	}
}

// drop forgets all messages that are not with a handler.
func (pq *processQueue) drop() {
	m := pq.m
	m.cached -= pq.bytes
	m.waiting -= pq.waitingSlots()
	pq.slots, pq.redo, pq.next = nil, nil, 0
	pq.base += 1 << 40 // numbers from before mean nothing any more
	pq.bytes, pq.unfinished = 0, 0
}

func (pq *processQueue) waitingSlots() int { return len(pq.redo) + len(pq.slots) - pq.next }

// filter is a subscription's filter as used: by hash at the broker, exactly here.
type filter struct {
	text   string
	tags   []string // none: everything
	hashes []uint64
}

func (f *filter) wants(tag []byte) bool {
	return len(f.tags) == 0 || slices.ContainsFunc(f.tags, func(t string) bool { return t == string(tag) })
}
