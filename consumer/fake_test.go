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
	pulled   map[*client.FetchCall]allocate.Queue
	most     map[allocate.Queue]int // most fetches outstanding at once

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

type fakeMember struct {
	hello    session.Hello
	owned    map[allocate.Queue]session.Epoch
	expected map[string]session.Digest
	leaving  bool
	sessions map[string]*fakeSession
}

type fakeLease struct {
	holder string
	epoch  session.Epoch
	line   []string
}

func newFake(t *testing.T) *fake {
	f := &fake{
		t: t, topics: make(map[string]route.Topic), watches: make(map[*fakeWatch]bool), queues: make(map[allocate.Queue]*fakeQueue),
		members: make(map[string]*fakeMember), leases: make(map[allocate.Queue]*fakeLease), sessions: make(map[*fakeSession]bool),
		fetches: make(map[*client.FetchCall]uint64), most: make(map[allocate.Queue]int), pulled: make(map[*client.FetchCall]allocate.Queue), banned: make(map[string]bool), asked: make(map[string]int), timeout: 10 * time.Second,
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
	var e batch.Encoder
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
	r := fetchRequest{q: c.Queue, epoch: c.Epoch, offset: c.Offset, most: c.MaxBytes, tags: c.Tags, done: c.Done}
	deadline := time.Now().Add(c.Wait)
	f.mu.Lock()
	f.counter++
	r.call, r.number = c, f.counter
	f.fetches[c] = r.number
	f.pulled[c] = r.q
	n := 0
	for o := range f.fetches {
		if f.pulled[o] == r.q {
			n++
		}
	}
	f.most[r.q] = max(f.most[r.q], n)
	f.mu.Unlock()
	f.wg.Go(func() { f.answer(r, deadline) }) // ends with the call
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
	done   func(client.FetchResult, error)
}

func (f *fake) answer(c fetchRequest, deadline time.Time) {
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
		return
	}
	if hold := f.fetchHold; hold != nil {
		f.mu.Unlock()
		hold(c.q)
		f.mu.Lock()
		if f.fetches[c.call] != c.number {
			f.mu.Unlock()
			return
		}
	}
	delete(f.fetches, c.call)
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
	f.mu.Unlock()
	c.done(r, err)
}

func (f *fake) CancelFetch(c *client.FetchCall) bool {
	f.mu.Lock()
	_, ok := f.fetches[c]
	delete(f.fetches, c)
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

// fakeSession is a session stream. What the broker says goes through out, so
// that the member gets it on one goroutine.
type fakeSession struct {
	f      *fake
	broker string
	client string
	out    []session.ToMember
	closed bool
	err    error
	done   chan struct{}
}

func (f *fake) OpenSession(_ context.Context, broker string, receive func(session.ToMember)) (client.Session, error) {
	if err := f.fault("session", allocate.Queue{Broker: broker}); err != nil {
		return nil, err
	}
	s := &fakeSession{f: f, broker: broker, done: make(chan struct{})}
	f.mu.Lock()
	f.sessions[s] = true
	f.mu.Unlock()
	f.wg.Go(func() { // ends when the session is closed
		defer close(s.done)
		for {
			f.mu.Lock()
			for len(s.out) == 0 && !s.closed {
				f.cond.Wait()
			}
			out := s.out
			s.out = nil
			closed := s.closed
			f.mu.Unlock()
			for _, m := range out {
				receive(m)
			}
			if closed {
				return
			}
		}
	})
	return s, nil
}

func (s *fakeSession) Wait() error {
	<-s.done
	return cmp.Or(s.err, errors.New("closed"))
}

func (s *fakeSession) Close(bool) { s.f.end(s, true) }

// end ends a session; a peer's close frees what it held.
func (f *fake) end(s *fakeSession, byPeer bool) {
	f.mu.Lock()
	defer f.cond.Broadcast()
	defer f.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	delete(f.sessions, s)
	m := f.members[s.client]
	if m == nil || m.sessions[s.broker] != s {
		return
	}
	delete(m.sessions, s.broker)
	if byPeer {
		f.free(s.client, s.broker)
	}
	if len(m.sessions) == 0 {
		delete(f.members, s.client)
		f.notices(m, s.client)
	}
}

// kill makes a member dead for its brokers: its connections are closed, and no
// new ones are taken.
func (f *fake) kill(id string) {
	f.mu.Lock()
	f.banned[id] = true
	var open []*fakeSession
	if m := f.members[id]; m != nil {
		for _, s := range m.sessions {
			open = append(open, s)
		}
	}
	f.mu.Unlock()
	for _, s := range open {
		f.end(s, true)
	}
}

// holders returns how many queues each member holds the lease of.
func (f *fake) holders() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[string]int)
	for _, l := range f.leases {
		if l.holder != "" {
			out[l.holder]++
		}
	}
	return out
}

func (f *fake) notices(m *fakeMember, except string) {
	for _, sub := range m.hello.Subscriptions {
		f.notice(sub.Topic, except)
	}
}

// notice tells the members of a topic to fetch its view.
func (f *fake) notice(topic, except string) {
	f.counter++
	for id, m := range f.members {
		for b, s := range m.sessions {
			if id != except && f.subscribes(m, topic) {
				f.say(s, session.GroupChanged{Topic: topic, Version: session.Version{Broker: b, Epoch: 1, Counter: f.counter}})
			}
		}
	}
}

func (f *fake) subscribes(m *fakeMember, topic string) bool {
	return slices.ContainsFunc(m.hello.Subscriptions, func(s session.Subscription) bool { return s.Topic == topic })
}

func (f *fake) say(s *fakeSession, m session.ToMember) {
	s.out = append(s.out, m)
	f.cond.Broadcast()
}

// free gives a member's leases at a broker to the next in line.
func (f *fake) free(clientID, broker string) {
	for q, l := range f.leases {
		l.line = slices.DeleteFunc(l.line, func(id string) bool { return id == clientID })
		if l.holder == clientID && q.Broker == broker {
			l.holder = ""
			f.grant(q)
		}
	}
}

func (f *fake) grant(q allocate.Queue) {
	l := f.leases[q]
	if l == nil {
		l = new(fakeLease)
		f.leases[q] = l
	}
	for l.holder == "" && len(l.line) > 0 {
		id := l.line[0]
		l.line = l.line[1:]
		m := f.members[id]
		if m == nil || m.sessions[q.Broker] == nil {
			continue
		}
		f.counter++
		l.holder, l.epoch = id, session.Epoch{Broker: 1, Counter: f.counter}
		s := f.queue(q)
		f.say(m.sessions[q.Broker], session.Granted{Grants: []session.Grant{{Queue: q, Epoch: l.epoch, Offset: s.stored, HasOffset: s.has}}})
	}
	if l.holder != "" && len(l.line) > 0 {
		if m := f.members[l.holder]; m != nil && m.sessions[q.Broker] != nil {
			f.say(m.sessions[q.Broker], session.LeaseWanted{Queues: []allocate.Queue{q}})
		}
	}
	f.cond.Broadcast()
}

func (s *fakeSession) Send(frame session.ToBroker) {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.closed {
		return
	}
	m := f.members[s.client]
	switch fr := frame.(type) {
	case session.Hello:
		if f.banned[fr.ClientID] {
			s.closed = true
			f.cond.Broadcast()
			return
		}
		if f.refuse {
			f.say(s, session.Refused{Reason: session.ReasonModeMismatch, Text: "no"})
			return
		}
		s.client = fr.ClientID
		if m = f.members[fr.ClientID]; m == nil {
			m = &fakeMember{owned: make(map[allocate.Queue]session.Epoch), expected: make(map[string]session.Digest), sessions: make(map[string]*fakeSession)}
			f.members[fr.ClientID] = m
		}
		m.hello = fr
		m.sessions[s.broker] = s
		w := session.Welcome{Broker: s.broker, BrokerEpoch: 1, SessionTimeout: f.timeout}
		for _, h := range fr.Held {
			if l := f.leases[h.Queue]; l != nil && l.holder == fr.ClientID && l.epoch == h.Epoch {
				w.Grants = append(w.Grants, session.Grant{Queue: h.Queue, Epoch: h.Epoch, Kept: true})
			}
		}
		f.say(s, w)
		f.notices(m, fr.ClientID)
	case session.Heartbeat:
		f.say(s, session.HeartbeatAck{Seq: fr.Seq})
	case session.Subscribe:
		before := *m
		m.hello.Subscriptions = fr.Subscriptions
		f.notices(&before, "")
		f.notices(m, s.client)
	case session.Report:
		if fr.Full {
			for q := range m.owned {
				if q.Topic == fr.Topic {
					delete(m.owned, q)
				}
			}
		}
		for _, o := range fr.Owned {
			m.owned[o.Queue] = o.Epoch
		}
		for _, q := range fr.NotOwned {
			delete(m.owned, q)
		}
		m.expected[fr.Topic] = fr.Expected
	case session.FetchView:
		f.say(s, session.ViewAnswer{Seq: fr.Seq, View: f.view(fr.Topic, s.broker)})
	case session.Acquire:
		for _, q := range fr.Queues {
			l := f.leases[q]
			if l == nil {
				l = new(fakeLease)
				f.leases[q] = l
			}
			if !slices.Contains(l.line, s.client) {
				l.line = append(l.line, s.client)
			}
			f.grant(q)
		}
	case session.Withdraw:
		for _, q := range fr.Queues {
			if l := f.leases[q]; l != nil {
				l.line = slices.DeleteFunc(l.line, func(id string) bool { return id == s.client })
			}
		}
		f.say(s, session.Withdrawn{Queues: fr.Queues})
	case session.Released:
		for _, r := range fr.Leases {
			if l := f.leases[r.Queue]; l != nil && l.holder == s.client && l.epoch == r.Epoch {
				if r.HasOffset {
					f.store(r.Queue, r.Offset)
				}
				l.holder = ""
				f.grant(r.Queue)
			}
		}
	case session.Leaving:
		m.leaving = true
		f.notices(m, s.client)
	case session.Goodbye:
		f.free(s.client, s.broker)
	case session.Reach, session.MemberList:
	}
}

func (f *fake) view(topic, broker string) session.View {
	f.counter++
	v := session.View{Topic: topic, Version: session.Version{Broker: broker, Epoch: 1, Counter: f.counter}, Queues: f.topics[topic].Readable()}
	for id, m := range f.members {
		if m.leaving || !f.subscribes(m, topic) {
			continue
		}
		e := session.Member{ClientID: id, Instance: m.hello.Instance, Incarnation: m.hello.Incarnation, Offers: m.hello.Offers, Expected: m.expected[topic]}
		for q, ep := range m.owned {
			if q.Topic == topic {
				e.Owned = append(e.Owned, session.Owned{Queue: q, Epoch: ep})
			}
		}
		slices.SortFunc(e.Owned, func(a, b session.Owned) int { return a.Queue.Compare(b.Queue) })
		v.Members = append(v.Members, e)
	}
	slices.SortFunc(v.Members, func(a, b session.Member) int { return session.CompareIDs(a.ClientID, b.ClientID) })
	v.Inputs = session.InputsDigest(topic, v.Queues, v.Members)
	v.Owners = session.OwnersDigest(topic, session.Owners(v.Members))
	return v
}
