package rebalance

import (
	"fmt"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func (b *toyBroker) receive(m *toyMember, stream int, f session.ToBroker) {
	if b.down {
		return
	}
	if h, ok := f.(session.Hello); ok {
		s := &toySession{member: m, stream: stream, hello: h, owned: map[string]map[allocate.Queue]session.Epoch{}, said: map[string]session.Digest{}, draining: map[string]bool{}, full: map[string]bool{}}
		b.sessions[m.id] = s
		w := session.Welcome{Broker: b.name, BrokerEpoch: b.epoch, SessionTimeout: h.SessionTimeout}
		for _, q := range b.leased() {
			l := b.leases[q]
			if l.holder == m.id && !slices.Contains(h.Held, session.Owned{Queue: q, Epoch: l.epoch}) {
				l.holder = ""
				b.grant(q)
			}
		}
		for _, o := range h.Held {
			if l := b.leases[o.Queue]; l != nil && l.epoch == o.Epoch && (l.holder == "" || l.holder == m.id) {
				l.holder = m.id
				w.Grants = append(w.Grants, session.Grant{Queue: o.Queue, Epoch: o.Epoch, Kept: true})
			}
		}
		b.send(m.id, w)
		for _, sub := range h.Subscriptions {
			b.changed(sub.Topic)
		}
		return
	}
	s := b.sessions[m.id]
	if s == nil || s.stream != stream {
		return
	}
	switch f := f.(type) {
	case session.Heartbeat:
		ack := session.HeartbeatAck{Seq: f.Seq}
		for _, sub := range s.hello.Subscriptions {
			if _, hosts := b.c.topics[sub.Topic][b.name]; hosts && b.ready(sub.Topic) {
				v := b.view(sub.Topic)
				ack.Views = append(ack.Views, session.ViewState{
					Topic: sub.Topic, Version: v.Version, Inputs: v.Inputs, Owners: v.Owners, OwnersSettled: b.quiet(v),
				})
			}
		}
		b.send(m.id, ack)
	case session.Subscribe:
		old := s.hello.Subscriptions
		s.hello.Subscriptions = f.Subscriptions
		for _, sub := range old {
			if !slices.Contains(f.Subscriptions, sub) {
				delete(s.full, sub.Topic)
				b.changed(sub.Topic)
			}
		}
		for _, sub := range f.Subscriptions {
			if !slices.Contains(old, sub) {
				b.changed(sub.Topic)
			}
		}
	case session.Report:
		if f.Full || s.owned[f.Topic] == nil {
			s.owned[f.Topic] = map[allocate.Queue]session.Epoch{}
			s.full[f.Topic] = true
		}
		for _, o := range f.Owned {
			s.owned[f.Topic][o.Queue] = o.Epoch
		}
		for _, q := range f.NotOwned {
			delete(s.owned[f.Topic], q)
		}
		s.said[f.Topic], s.draining[f.Topic] = f.Expected, f.Draining
		b.reported = b.c.now
		b.owners[f.Topic] = b.view(f.Topic).Owners
	case session.FetchView:
		b.c.fetches++
		if !b.ready(f.Topic) {
			b.send(m.id, session.ViewAnswer{Seq: f.Seq, Warming: true})
			b.awaitReady(f.Topic, m.id)
			return
		}
		b.send(m.id, session.ViewAnswer{Seq: f.Seq, View: b.view(f.Topic)})
	case session.Acquire:
		for _, q := range f.Queues {
			if n, ok := b.c.topics[q.Topic][b.name]; !ok || int(q.ID) >= n {
				b.send(m.id, session.Withdrawn{Queues: []allocate.Queue{q}, Reason: session.ReasonUnknownQueue})
				continue
			}
			l := b.leases[q]
			if l == nil {
				l = &toyLease{}
				b.leases[q] = l
			}
			l.line = append(l.line, m.id)
			if l.holder != "" {
				b.send(l.holder, session.LeaseWanted{Queues: []allocate.Queue{q}, ViewBroker: f.ViewBroker})
			}
			b.grant(q)
		}
	case session.Withdraw:
		for _, q := range f.Queues {
			l := b.leases[q]
			if l == nil || l.holder != m.id {
				if l != nil {
					l.line = slices.DeleteFunc(l.line, func(o string) bool { return o == m.id })
				}
				b.send(m.id, session.Withdrawn{Queues: []allocate.Queue{q}})
			}
		}
	case session.Released:
		for _, r := range f.Leases {
			if l := b.leases[r.Queue]; l != nil && l.holder == m.id && l.epoch == r.Epoch {
				l.holder, l.offset, l.has = "", r.Offset, r.HasOffset
				b.grant(r.Queue)
			}
		}
	case session.Leaving:
		s.hello.Leaving = true
		for _, sub := range s.hello.Subscriptions {
			b.changed(sub.Topic)
		}
	case session.Goodbye:
		b.end(s)
	case session.Hello, session.Reach, session.MemberList:
	}
}

// quiet reports whether reports are still, nobody drains and members expect
// something else than there is.
func (b *toyBroker) quiet(v session.View) bool {
	if b.c.now.Sub(b.reported) < 40*time.Millisecond {
		return false
	}
	for _, s := range b.subscribers(v.Topic) {
		if s.draining[v.Topic] {
			return false
		}
	}
	return slices.ContainsFunc(v.Members, func(m session.Member) bool { return m.Expected != v.Owners })
}

// ready reports whether all members of the view have reported.
func (b *toyBroker) ready(topic string) bool {
	for _, s := range b.subscribers(topic) {
		if !s.full[topic] {
			return false
		}
	}
	return true
}

func (b *toyBroker) awaitReady(topic, id string) {
	b.c.later(5*time.Millisecond, func() {
		if b.ready(topic) {
			b.send(id, session.ViewReady{Topic: topic, Version: b.view(topic).Version})
			return
		}
		b.awaitReady(topic, id)
	})
}

func (b *toyBroker) crash() {
	b.down = true
	b.sessions = map[string]*toySession{}
	for _, m := range b.c.sorted() {
		if m.stream[b.name] != 0 {
			b.c.cut(m, b.name, true)
		}
	}
}

// start brings a broker back with the leases it had stored. Holders that do not
// come back within a session timeout lose theirs.
func (b *toyBroker) start() {
	b.down = false
	b.epoch++
	epoch := b.epoch
	b.versions, b.announced, b.owners = map[string]uint64{}, map[string]session.View{}, map[string]session.Digest{}
	for _, l := range b.leases {
		l.line = nil
	}
	b.c.later(DefaultSessionTimeout, func() {
		if b.epoch != epoch || b.down {
			return
		}
		for _, m := range b.c.sorted() {
			if b.sessions[m.id] == nil {
				b.freeAll(m.id)
			}
		}
	})
}

func ids(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("c%02d", i))
	}
	return out
}
