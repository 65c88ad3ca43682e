package rebalance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// TestStories runs the stories in testdata: an event in, its effects out.
// Queues are written topic/broker/id, epochs broker.counter. after=D lets time
// pass before an event; "wake" goes to the time of the last WakeAt.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata/stories", func(t *testing.T, path string) {
		s := &story{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.t = t
			return s.run(d)
		})
	})
}

type story struct {
	t     *testing.T
	now   time.Time
	wake  time.Time
	e     *Engine
	check *checker
}

func (s *story) run(d *datadriven.TestData) string {
	if d.HasArg("after") {
		s.now = s.now.Add(s.duration(s.arg(d, "after")))
	}
	switch d.Cmd {
	case "engine":
		return s.engine(d)
	case "state":
		return s.state()
	case "wake":
		if d.HasArg("after") {
			return s.step(Wake{})
		}
		s.now = s.wake
		return s.step(Wake{})
	case "beat": // wakes and answers until the time is over
		for end := s.now.Add(s.duration(s.arg(d, "for"))); s.wake.Before(end); {
			s.now = s.wake
			s.beat(s.list(d, "of"))
		}
		return ""
	}
	return s.step(s.event(d))
}

func (s *story) engine(d *datadriven.TestData) string {
	cfg := Config{Group: "g", ClientID: s.arg(d, "client"), Instance: s.arg(d, "instance"), Incarnation: session.Incarnation{Counter: 1, Random: 7}}
	cfg.Subscriptions = subscriptions(s.list(d, "topics"))
	switch s.arg(d, "mode") {
	case "immediate":
		cfg.Mode = session.Immediate
	case "broadcasting":
		cfg.Mode = session.Broadcasting
	}
	for _, name := range s.list(d, "strategies") {
		if name == "panics-for-a" {
			cfg.Strategies = append(cfg.Strategies, panicking{"a"})
			continue
		}
		st, err := allocate.ByName(name)
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.Strategies = append(cfg.Strategies, st)
	}
	switch s.arg(d, "broken") {
	case "NoHealing":
		cfg.Broken.NoHealing = true
	case "RandomViewBroker":
		cfg.Broken.RandomViewBroker = true
	case "DropOnEmptyRoute":
		cfg.Broken.DropOnEmptyRoute = true
	case "RestartIsLoss":
		cfg.Broken.RestartIsLoss = true
	case "NoReachReport":
		cfg.Broken.NoReachReport = true
	case "NoSendingClock":
		cfg.Broken.NoSendingClock = true
	case "TwoRequests":
		cfg.Broken.TwoRequests = true
	case "GoodbyeFirst":
		cfg.Broken.GoodbyeFirst = true
	case "KeepStaleQueue":
		cfg.Broken.KeepStaleQueue = true
	}
	e, err := New(cfg)
	if err != nil {
		return err.Error() + "\n"
	}
	s.e = e
	s.check = newChecker(cfg.Mode)
	if cfg.Broken != (Broken{}) {
		s.check = nil
	}
	return ""
}

func subscriptions(topics []string) []session.Subscription {
	var out []session.Subscription
	for _, t := range topics {
		name, filter, ok := strings.Cut(t, ":")
		if !ok {
			filter = "*"
		}
		out = append(out, session.Subscription{Topic: name, Filter: filter})
	}
	return out
}

func (s *story) event(d *datadriven.TestData) Event {
	name := ""
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 && name == "" {
			name = a.Key
		}
	}
	recv := func(f session.ToMember) Event { return Received{name, f} }
	switch d.Cmd {
	case "routes":
		var r Routes
		for line := range strings.Lines(d.Input) {
			f := strings.Fields(line)
			t := Topic{Name: f[0]}
			for _, b := range f[1:] {
				b, n, _ := strings.Cut(b, ":")
				t.Brokers = append(t.Brokers, b)
				for i := range s.number(n) {
					t.Queues = append(t.Queues, allocate.Queue{Topic: f[0], Broker: b, ID: int32(i)})
				}
			}
			r.Topics = append(r.Topics, t)
		}
		return r
	case "connected":
		return Connected{name}
	case "disconnected":
		return Disconnected{name}
	case "subscribe":
		return SetSubscriptions{subscriptions(s.list(d, "topics"))}
	case "drained":
		o, off, has := s.lease(s.arg(d, "lease"))
		return Drained{o.Queue, o.Epoch, off, has}
	case "refused-lease":
		o, _, _ := s.lease(s.arg(d, "lease"))
		return Refused{Queue: o.Queue, Epoch: o.Epoch}
	case "stalled":
		return Stalled{}
	case "recovered":
		return Recovered{}
	case "leave":
		return Leave{}
	case "welcome":
		w := session.Welcome{Broker: name, BrokerEpoch: 1, SessionTimeout: 10 * time.Second}
		if v := s.arg(d, "timeout"); v != "" {
			w.SessionTimeout = s.duration(v)
		}
		w.Grants = s.grants(d, "kept", true)
		w.Grants = append(w.Grants, s.grants(d, "grants", false)...)
		for _, g := range s.grants(d, "inherited", false) {
			w.Inherited = append(w.Inherited, session.Owned{Queue: g.Queue, Epoch: g.Epoch})
		}
		return recv(w)
	case "refused":
		r := session.Refused{Text: "no"}
		for i := session.ReasonModeMismatch; i <= session.ReasonReplaced; i++ {
			if strings.ReplaceAll(i.String(), " ", "-") == s.arg(d, "reason") {
				r.Reason = i
			}
		}
		if v := s.arg(d, "incarnation"); v != "" {
			r.Incarnation = session.Incarnation{Counter: uint64(s.number(v)), Random: 1}
		}
		return recv(r)
	case "ack":
		a := session.HeartbeatAck{Seq: uint64(s.number(s.arg(d, "seq")))}
		if topic := s.arg(d, "topic"); topic != "" {
			v := session.ViewState{Topic: topic, Inputs: s.e.topic(topic).inputs, Owners: s.e.topic(topic).owners}
			switch s.arg(d, "digest") {
			case "inputs-differ":
				v.Inputs++
			case "owners-differ":
				v.Owners, v.OwnersSettled = v.Owners+1, true
			case "owners-differ-unsettled":
				v.Owners++
			case "owners-same":
				v.OwnersSettled = true
			}
			a.Views = []session.ViewState{v}
		}
		return recv(a)
	case "view":
		topic := s.arg(d, "topic")
		seq := s.e.topic(topic).fetchSeq
		if d.HasArg("seq") {
			seq = uint64(s.number(s.arg(d, "seq")))
		}
		if d.HasArg("warming") {
			return recv(session.ViewAnswer{Seq: seq, Warming: true})
		}
		return recv(session.ViewAnswer{Seq: seq, View: s.view(d, name, topic)})
	case "ready":
		return recv(session.ViewReady{Topic: s.arg(d, "topic")})
	case "notice":
		return recv(s.notice(d, name))
	case "owners":
		topic := s.arg(d, "topic")
		f := session.OwnersChanged{Topic: topic, Owners: s.e.topic(topic).owners}
		if d.HasArg("differ") {
			f.Owners++
		}
		return recv(f)
	case "nudge":
		q := s.queue(s.arg(d, "queue"))
		return recv(session.Nudge{Topic: q.Topic, Queue: q})
	case "ask-members":
		f := session.AskMembers{Topic: s.arg(d, "topic")}
		if v := s.list(d, "of"); v != nil {
			f.Members = session.MembersDigest(f.Topic, v)
		}
		return recv(f)
	case "granted":
		return recv(session.Granted{Grants: s.grants(d, "leases", false)})
	case "wanted":
		return recv(session.LeaseWanted{Queues: s.queues(d, "queues"), ViewBroker: s.arg(d, "view")})
	case "withdrawn":
		f := session.Withdrawn{Queues: s.queues(d, "queues")}
		if d.HasArg("unknown") {
			f.Reason = session.ReasonUnknownQueue
		}
		return recv(f)
	case "lease-lost":
		f := session.LeaseLost{Reason: session.ReasonUnknownQueue}
		if d.HasArg("reset") {
			f.Reason = 0
		}
		for _, g := range s.grants(d, "leases", false) {
			f.Leases = append(f.Leases, session.Owned{Queue: g.Queue, Epoch: g.Epoch})
		}
		return recv(f)
	}
	s.t.Fatalf("%s: no such event: %s", d.Pos, d.Cmd)
	return nil
}

// view reads queues=(b1:2,b2:2) and a line for each member: its client id and
// what it owns as broker/id@epoch, or strategies as +name.
func (s *story) view(d *datadriven.TestData, broker, topic string) session.View {
	v := session.View{Topic: topic, Version: session.Version{Broker: broker, Epoch: 1, Counter: uint64(s.number(s.arg(d, "version")))}}
	for _, b := range s.list(d, "queues") {
		b, n, _ := strings.Cut(b, ":")
		for i := range s.number(n) {
			v.Queues = append(v.Queues, allocate.Queue{Topic: topic, Broker: b, ID: int32(i)})
		}
	}
	for line := range strings.Lines(d.Input) {
		v.Members = append(v.Members, s.member(topic, strings.Fields(line)))
	}
	v.Inputs = session.InputsDigest(topic, v.Queues, v.Members)
	v.Owners = session.OwnersDigest(topic, session.Owners(v.Members))
	return v
}

func (s *story) member(topic string, f []string) session.Member {
	m := session.Member{ClientID: f[0], Incarnation: session.Incarnation{Counter: 1, Random: 7}}
	for _, x := range f[1:] {
		if name, ok := strings.CutPrefix(x, "+"); ok {
			m.Offers = append(m.Offers, session.Offer{Strategy: name})
			continue
		}
		o, _, _ := s.lease(topic + "/" + x)
		m.Owned = append(m.Owned, o)
	}
	if m.Offers == nil {
		m.Offers = []session.Offer{{Strategy: "sticky"}}
	}
	return m
}

// notice is a delta from the view last used; inputs=bad gives a digest that does
// not fit, before=other an ownership that was not settled.
func (s *story) notice(d *datadriven.TestData, broker string) session.GroupChanged {
	topic := s.arg(d, "topic")
	t := s.e.topic(topic)
	c := session.GroupChanged{Topic: topic, Left: s.list(d, "left"), OwnersBefore: t.expected}
	c.Version = session.Version{Broker: broker, Epoch: 1, Counter: uint64(s.number(s.arg(d, "version")))}
	c.Previous = c.Version
	c.Previous.Counter--
	if d.HasArg("previous") {
		c.Previous.Counter = uint64(s.number(s.arg(d, "previous")))
	}
	for _, id := range s.list(d, "joined") {
		c.Joined = append(c.Joined, s.member(topic, []string{id}))
	}
	c.Added, c.Removed = s.queues(d, "added"), s.queues(d, "removed")
	if t.last != nil {
		members := slices.Clone(t.last.members)
		members = slices.DeleteFunc(members, func(m session.Member) bool { return slices.Contains(c.Left, m.ClientID) })
		members = sortMembers(append(members, c.Joined...))
		qs := slices.DeleteFunc(slices.Clone(t.last.queues), func(q allocate.Queue) bool { return slices.Contains(c.Removed, q) })
		qs = append(qs, c.Added...)
		slices.SortFunc(qs, allocate.Queue.Compare)
		c.Inputs = session.InputsDigest(topic, qs, members)
	}
	if s.arg(d, "inputs") == "bad" {
		c.Inputs++
	}
	if s.arg(d, "before") == "other" {
		c.OwnersBefore++
	}
	return c
}

// beat answers what is sent in a settled group: heartbeats.
func (s *story) beat(brokers []string) {
	s.stepQuiet(Wake{})
	for _, b := range brokers {
		s.now = s.now.Add(time.Millisecond)
		if p := s.e.peer(b); p != nil && p.phase == welcomed {
			s.stepQuiet(Received{b, session.HeartbeatAck{Seq: p.seq}})
		}
	}
}

func (s *story) stepQuiet(ev Event) []Effect {
	out := s.e.Step(s.now, ev)
	for _, eff := range out {
		if w, ok := eff.(WakeAt); ok {
			s.wake = w.At
		}
	}
	if s.check != nil {
		if err := s.check.step(s.now, ev, out); err != nil {
			s.t.Fatalf("%T: %v", ev, err)
		}
	}
	return out
}

func (s *story) step(ev Event) string {
	var b strings.Builder
	for _, eff := range s.stepQuiet(ev) {
		fmt.Fprintln(&b, s.effect(eff))
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// panicking is a user's strategy with a bug for one topic.
type panicking struct{ topic string }

func (p panicking) Name() string { return "panics-for-" + p.topic }

func (p panicking) Allocate(in allocate.Input) (allocate.Assignment, error) {
	if in.Topic == p.topic && len(in.Members) > 1 {
		panic("index out of range")
	}
	return allocate.Sticky{}.Allocate(in)
}
