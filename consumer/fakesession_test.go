package consumer

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/client"
	"github.com/tacitmq/tacit/session"
)

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

// kill makes member c1 dead for its brokers: its connections are closed, and no
// new ones are taken.
func (f *fake) kill() {
	const id = "c1"
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
