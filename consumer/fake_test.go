package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/route"
	"github.com/tacitmq/tacit/session"
)

// fake is a cluster in memory: brokers that know just enough of the protocol for
// members to share queues, and queues in memory. It has faults to inject.
type fake struct {
	t *testing.T

	wg       sync.WaitGroup // fetches and sessions
	mu       sync.Mutex
	cond     *sync.Cond
	topics   map[string]route.Topic
	watches  map[*fakeWatch]bool
	queues   map[allocate.Queue]*fakeQueue
	members  map[string]*fakeMember
	leases   map[allocate.Queue]*fakeLease
	sessions map[*fakeSession]bool
	counter  uint64
	fetches  map[*client.FetchCall]uint64 // outstanding, by number
	handing  map[*client.FetchCall]uint64 // answers after which they may go on
	pulled   map[*client.FetchCall]fetchRequest
	most     map[allocate.Queue]int // most fetches outstanding at once, by holders of the lease

	refuse    bool            // every hello
	banned    map[string]bool // members that are dead: their sessions are ended
	commits   []client.OffsetCommit
	asked     map[string]int // questions for committed offsets, by broker
	sentBack  []client.SendBackRequest
	timeout   time.Duration
	failing   func(what string, q allocate.Queue) error // called without the lock
	onCommit  func(q allocate.Queue, offset int64)
	fetchHold func(q allocate.Queue) // called without the lock before an answer
}

type fakeQueue struct {
	batches [][]byte
	next    int64
	min     int64
	stored  int64
	has     bool
}

func newFake(t *testing.T) *fake {
	f := &fake{
		t: t, topics: make(map[string]route.Topic), watches: make(map[*fakeWatch]bool), queues: make(map[allocate.Queue]*fakeQueue),
		members: make(map[string]*fakeMember), leases: make(map[allocate.Queue]*fakeLease), sessions: make(map[*fakeSession]bool),
		fetches: make(map[*client.FetchCall]uint64), handing: make(map[*client.FetchCall]uint64), most: make(map[allocate.Queue]int), pulled: make(map[*client.FetchCall]fetchRequest), banned: make(map[string]bool), asked: make(map[string]int), timeout: 10 * time.Second,
	}
	f.cond = sync.NewCond(&f.mu)
	t.Cleanup(f.wg.Wait)
	return f
}

// topic makes topic T with queues on each of the brokers.
func (f *fake) topic(queues int32, brokers ...string) {
	const name = "T"
	f.mu.Lock()
	t := route.Topic{Name: name}
	for _, b := range brokers {
		t.Hosts = append(t.Hosts, route.Host{
			Broker: route.Broker{Name: b, Address: b + ":1", Stamp: route.Stamp{Epoch: 1}},
			Config: route.Config{Topic: name, ReadQueues: queues, WriteQueues: queues, Readable: true, Writable: true},
		})
	}
	f.topics[name] = t
	for _, q := range t.Readable() {
		f.queue(q)
	}
	for w := range f.watches {
		w.changed()
	}
	f.notice(name, "")
	f.mu.Unlock()
}

// delete deletes topic T with its queues, what is stored of them, and their leases.
func (f *fake) delete() {
	const name = "T"
	f.mu.Lock()
	f.topics[name] = route.Topic{Name: name}
	for q := range f.queues {
		if q.Topic == name {
			delete(f.queues, q)
		}
	}
	for q, l := range f.leases {
		if m := f.members[l.holder]; m != nil && q.Topic == name {
			f.say(m.sessions[q.Broker], session.LeaseLost{Leases: []session.Owned{{Queue: q, Epoch: l.epoch}}})
			delete(f.leases, q)
		}
	}
	for w := range f.watches {
		w.changed()
	}
	f.notice(name, "")
	f.mu.Unlock()
}

func (f *fake) queue(q allocate.Queue) *fakeQueue {
	s := f.queues[q]
	if s == nil {
		s = new(fakeQueue)
		f.queues[q] = s
	}
	return s
}

// put stores messages in one batch.
func (f *fake) put(q allocate.Queue, msgs ...*message.Message) {
	f.putWith(q, batch.Encoder{}, msgs...)
}

func (f *fake) putWith(q allocate.Queue, e batch.Encoder, msgs ...*message.Message) {
	for _, m := range msgs {
		e.Append(m)
	}
	b, err := e.Finish(nil, batch.Info{Topic: q.Topic, Queue: q.ID})
	if err != nil {
		f.t.Fatal(err)
	}
	f.mu.Lock()
	s := f.queue(q)
	batch.PutStamp(b, batch.Stamp{BaseOffset: s.next, StoreTime: time.Now().UnixMilli()})
	s.batches = append(s.batches, b)
	s.next += int64(len(msgs))
	f.mu.Unlock()
	f.cond.Broadcast()
}

// fill stores n messages, each in a batch of its own, whose bodies say where they are.
func (f *fake) fill(q allocate.Queue, n int) {
	for range n {
		f.mu.Lock()
		at := f.queue(q).next
		f.mu.Unlock()
		f.put(q, &message.Message{Body: fmt.Appendf(nil, "%s/%d/%d", q.Broker, q.ID, at)})
	}
}

func (f *fake) stored(q allocate.Queue) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.queue(q); s.has {
		return s.stored
	}
	return -1
}

func (f *fake) fault(what string, q allocate.Queue) error {
	f.mu.Lock()
	fail := f.failing
	f.mu.Unlock()
	if fail == nil {
		return nil
	}
	return fail(what, q)
}

func (f *fake) setFailing(fail func(what string, q allocate.Queue) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failing = fail
}

type fakeWatch struct {
	f       *fake
	changed func()
	topics  []string
}

func (f *fake) Watch(changed func()) client.Watch {
	w := &fakeWatch{f: f, changed: changed}
	f.mu.Lock()
	f.watches[w] = true
	f.mu.Unlock()
	return w
}

func (w *fakeWatch) SetTopics(topics []string) {
	w.f.mu.Lock()
	w.topics = topics
	w.f.mu.Unlock()
	w.changed()
}

func (w *fakeWatch) Routes() (out []route.Topic) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	for _, t := range w.topics {
		if r, ok := w.f.topics[t]; ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b route.Topic) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func (w *fakeWatch) Refresh() {}

func (w *fakeWatch) Ready() error { return nil }

func (w *fakeWatch) Close() {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	delete(w.f.watches, w)
}

func (f *fake) Close() {}

func (f *fake) Produce(c *client.ProduceCall) {
	c.Done(client.ProduceResult{}, errors.New("not a broker to produce to"))
}

func (f *fake) Fetch(c *client.FetchCall) {
	r := fetchRequest{q: c.Queue, epoch: c.Epoch, offset: c.Offset, most: c.MaxBytes, tags: c.Tags, wait: c.Wait, follow: c.Follow, done: c.Done}
	f.mu.Lock()
	f.counter++
	r.call, r.number = c, f.counter
	f.fetches[c] = r.number
	f.pulled[c] = r
	n := 0
	for o := range f.fetches { // those of a lease that is over are refused, and only slow to hear it
		if p := f.pulled[o]; p.q == r.q && f.checkLocked(p.q, p.epoch) == nil {
			n++
		}
	}
	f.most[r.q] = max(f.most[r.q], n)
	f.mu.Unlock()
	f.wg.Go(func() { // ends with the call
		for f.answer(&r, time.Now().Add(r.wait)) {
		}
	})
}

// fetchRequest is a call as it was made: the call itself may be used again.
type fetchRequest struct {
	call   *client.FetchCall
	number uint64
	q      allocate.Queue
	epoch  session.Epoch
	offset int64
	most   int
	tags   []uint64
	wait   time.Duration
	follow bool
	done   func(client.FetchResult, error)
}

// answer answers a call and reports whether it follows its queue on.
func (f *fake) answer(c *fetchRequest, deadline time.Time) (following bool) {
	wake := time.AfterFunc(time.Until(deadline), f.cond.Broadcast)
	defer wake.Stop()
	err := f.fault("fetch", c.q)
	f.mu.Lock()
	q := f.queue(c.q)
	for f.fetches[c.call] == c.number && err == nil && c.offset == q.next && time.Now().Before(deadline) && f.checkLocked(c.q, c.epoch) == nil {
		f.cond.Wait()
	}
	if f.fetches[c.call] != c.number {
		f.mu.Unlock()
		return false
	}
	if hold := f.fetchHold; hold != nil {
		f.mu.Unlock()
		hold(c.q)
		f.mu.Lock()
		if f.fetches[c.call] != c.number {
			f.mu.Unlock()
			return false
		}
	}
	r := client.FetchResult{Bounds: client.Bounds{Min: q.min, Max: q.next}, Next: c.offset}
	if err == nil {
		err = f.checkLocked(c.q, c.epoch)
	}
	if err == nil && (c.offset < q.min || c.offset > q.next) {
		err = rpcerr.ErrOffsetOutOfRange
	}
	if err == nil {
		for _, b := range q.batches {
			h, _ := batch.Parse(b)
			if h.NextOffset() <= c.offset || h.Stamp.BaseOffset < q.min {
				continue
			}
			if len(r.Batches) > 0 && len(r.Batches)+len(b) > c.most {
				break
			}
			if h.MayMatch(c.tags) {
				r.Batches = append(r.Batches, b...)
			}
			r.Next = h.NextOffset()
		}
	}
	c.offset = r.Next
	r.Following = c.follow && err == nil && len(r.Batches) > 0 && r.Next == q.next
	if r.Following {
		f.handing[c.call] = c.number
	} else {
		delete(f.fetches, c.call)
	}
	f.mu.Unlock()
	c.done(r, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Following && f.handing[c.call] == c.number { // the call may have been made again since
		panic("not decided whether a fetch goes on")
	}
	return r.Following
}

func (f *fake) Follow(c *client.FetchCall, on bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.handing, c)
	if !on {
		delete(f.fetches, c)
	}
	return true
}

func (f *fake) CancelFetch(c *client.FetchCall) bool {
	f.mu.Lock()
	_, ok := f.fetches[c]
	if ok = ok && f.handing[c] == 0; ok {
		delete(f.fetches, c)
	}
	f.mu.Unlock()
	f.cond.Broadcast()
	return ok
}

// checkLocked is the fence of fetches and commits.
func (f *fake) checkLocked(q allocate.Queue, e session.Epoch) error {
	l := f.leases[q]
	switch {
	case l == nil || l.holder == "":
		if e.IsZero() {
			return nil
		}
		return rpcerr.ErrStaleEpoch
	case e.IsZero():
		return rpcerr.ErrLeaseHeld
	case l.epoch != e:
		return rpcerr.ErrStaleEpoch
	}
	return nil
}

func (f *fake) FindOffset(_ context.Context, q allocate.Queue, t time.Time) (client.Bounds, error) {
	if err := f.fault("find", q); err != nil {
		return client.Bounds{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.queue(q)
	return client.Bounds{Offset: s.search(t), Min: s.min, Max: s.next}, nil
}

// search returns the first offset stored at or after a time, if there is one.
func (s *fakeQueue) search(t time.Time) int64 {
	for _, raw := range s.batches {
		if h, _ := batch.Parse(raw); !t.IsZero() && h.Stamp.StoreTime >= t.UnixMilli() {
			return h.Stamp.BaseOffset
		}
	}
	return s.next
}

func (f *fake) Commit(_ context.Context, broker string, r client.CommitRequest) ([]error, error) {
	if err := f.fault("commit", allocate.Queue{Broker: broker}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]error, len(r.Offsets))
	for i, o := range r.Offsets {
		f.commits = append(f.commits, o)
		if out[i] = f.checkLocked(o.Queue, o.Epoch); out[i] == nil {
			f.store(o.Queue, o.Offset)
		}
	}
	return out, nil
}

func (f *fake) store(q allocate.Queue, offset int64) {
	s := f.queue(q)
	if !s.has || offset > s.stored {
		s.stored, s.has = offset, true
	}
	if f.onCommit != nil {
		f.onCommit(q, offset)
	}
}

func (f *fake) Committed(_ context.Context, broker, _ string, queues []allocate.Queue, at time.Time) (client.Committed, error) {
	if err := f.fault("committed", allocate.Queue{Broker: broker}); err != nil {
		return client.Committed{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out client.Committed
	f.asked[broker]++
	for _, q := range queues {
		if s := f.queue(q); q.Broker == broker {
			out.Offsets = append(out.Offsets, client.CommittedOffset{
				Queue: q, Offset: s.stored, HasOffset: s.has, Min: s.min, Max: s.next, AtTime: s.search(at),
			})
		}
		for o, s := range f.queues {
			out.Ever = out.Ever || o.Topic == q.Topic && o.Broker == broker && s.has
		}
	}
	return out, nil
}

func (f *fake) SendBack(_ context.Context, r client.SendBackRequest) (client.SendBackResult, error) {
	if err := f.fault("sendback", r.Queue); err != nil {
		return client.SendBackResult{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.checkLocked(r.Queue, r.Epoch); err != nil {
		return client.SendBackResult{}, err
	}
	f.sentBack = append(f.sentBack, r)
	return client.SendBackResult{DeadLetter: r.Level == deadLetterLevel, Delay: r.Delay}, nil
}
