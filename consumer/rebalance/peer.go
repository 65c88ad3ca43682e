package rebalance

import (
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

type phase uint8

const (
	connecting phase = iota // the shell opens a stream
	greeting                // hello sent
	welcomed
)

func (p phase) String() string {
	switch p {
	case connecting:
		return "connecting"
	case greeting:
		return "greeting"
	case welcomed:
		return "welcomed"
	}
	return "unknown"
}

// firstTry bounds how long a broker that was never heard of holds back the
// choice of a lower-ranked view broker.
const firstTry = time.Second

// forever stands in for "no end" where the sending clock is switched off.
const forever = 1000 * time.Hour

type beat struct {
	seq uint64
	at  time.Time
}

// peer is a broker and the session with it.
type peer struct {
	name    string
	phase   phase
	routed  bool // hosts a subscribed topic
	session uint64
	epoch   uint64
	timeout time.Duration // effective session timeout

	seq      uint64
	beats    []beat    // sent and not answered, oldest first; a hello is seq 0
	nextBeat time.Time // zero unless welcomed
	greetBy  time.Time // zero unless greeting
	freshBy  time.Time // until then a first attempt is worth waiting for
	// validUntil ends the right to dispatch the broker's queues; zero if nothing
	// was granted yet or it has run out.
	validUntil time.Time

	heard  time.Time // the last answer, or when the first attempt began
	silent int       // in session timeouts: 0, 1, or 2 for "unreachable"

	named []named // member lists behind the digests of the last hello
}

type named struct {
	topic  string
	digest session.Digest
	ids    []string
}

func (p *peer) deadlines(sooner func(time.Time)) {
	sooner(p.nextBeat)
	sooner(p.greetBy)
	sooner(p.freshBy)
	sooner(p.validUntil)
	if p.silent < 2 {
		sooner(p.heard.Add(time.Duration(p.silent+1) * p.timeout))
	}
}

// expired looks at both clocks: monotonic time stands still while a machine is
// suspended, wall time may be set.
func expired(now, until time.Time) bool {
	return !now.Before(until) || !now.Round(0).Before(until.Round(0))
}

// clock voids what has run out.
func (e *Engine) clock() {
	for _, p := range e.peers {
		switch {
		case p.validUntil.IsZero() || e.cfg.Broken.NoSendingClock:
		case expired(e.now, p.validUntil):
			e.void(p)
		}
		if !p.greetBy.IsZero() && !e.now.Before(p.greetBy) {
			e.restart(p)
		}
	}
}

// void ends the session from our side: the broker may have given our leases to
// others by now, and a grant still under way is void too.
func (e *Engine) void(p *peer) {
	p.validUntil = time.Time{}
	if e.exclusive() {
		e.loseAll(p, "no heartbeat answered for a session timeout")
	}
	if p.phase != connecting {
		e.restart(p)
	}
}

// restart asks for a new stream.
func (e *Engine) restart(p *peer) {
	e.closed(p)
	e.emit(Disconnect{p.name})
	e.emit(Connect{p.name})
}

// closed forgets the stream, not the leases.
func (e *Engine) closed(p *peer) {
	p.phase = connecting
	p.nextBeat, p.greetBy = time.Time{}, time.Time{}
	p.beats = p.beats[:0]
	for _, t := range e.topics {
		if t.using == p.name {
			t.fetchSeq = 0 // a fetch dies with its session
		}
		for _, h := range t.holds {
			if h.queue.Broker == p.name && (h.state == asked || h.state == withdrawing) {
				e.toFree(t, h) // the request is gone with the session
			}
		}
	}
}

func (e *Engine) connected(name string) {
	p := e.peer(name)
	if p == nil {
		return
	}
	if p.phase != connecting {
		e.closed(p)
	}
	p.phase = greeting
	p.freshBy = time.Time{}
	if p.silent == 0 && p.session == 0 {
		p.freshBy = e.now.Add(min(firstTry, p.timeout/4))
	}
	p.greetBy = e.now.Add(p.timeout)
	p.seq = 0
	p.beats = append(p.beats[:0], beat{0, e.now})
	e.send(p, e.hello(p))
}

func (e *Engine) hello(p *peer) session.Hello {
	h := session.Hello{
		Group:          e.cfg.Group,
		ClientID:       e.cfg.ClientID,
		Instance:       e.cfg.Instance,
		Incarnation:    e.inc,
		Mode:           e.cfg.Mode,
		SessionTimeout: e.cfg.SessionTimeout,
		Subscriptions:  e.subscriptions(),
		Offers:         slices.Clone(e.offers),
		Leaving:        e.leaving,
	}
	if !e.cfg.Broken.NoReachReport {
		h.Silent = e.silence()
	}
	p.named = p.named[:0]
	for _, t := range e.topics {
		if e.exclusive() {
			for _, x := range t.holds {
				if x.queue.Broker == p.name && x.leased() {
					h.Held = append(h.Held, session.Owned{Queue: x.queue, Epoch: x.epoch})
				}
			}
		}
		if t.last != nil && t.subscribed && slices.Contains(t.brokers, p.name) {
			digest := session.MembersDigest(t.name, t.last.ids)
			h.Views = append(h.Views, session.ViewRef{Topic: t.name, Version: t.last.version, Members: digest})
			p.named = append(p.named, named{t.name, digest, t.last.ids})
		}
	}
	return h
}

// subscriptions are what brokers are told: a stalled member takes no part.
func (e *Engine) subscriptions() []session.Subscription {
	if e.stalled {
		return nil
	}
	return slices.Clone(e.subs)
}

func (e *Engine) disconnected(name string) {
	p := e.peer(name)
	if p == nil {
		return
	}
	p.freshBy = time.Time{} // an attempt failed: nothing to wait for
	e.closed(p)
	if e.cfg.Broken.RestartIsLoss {
		e.loseAll(p, "the stream broke")
	}
}

// beats sends the heartbeats that are due.
func (e *Engine) beats() {
	for _, p := range e.peers {
		if p.phase != welcomed || e.now.Before(p.nextBeat) {
			continue
		}
		p.seq++
		p.beats = append(p.beats, beat{p.seq, e.now})
		p.nextBeat = e.now.Add(e.beatEvery(p))
		e.send(p, session.Heartbeat{Seq: p.seq})
	}
}

func (e *Engine) beatEvery(p *peer) time.Duration { return min(e.cfg.Heartbeat, p.timeout/3) }

// answered moves the clock on: the broker was alive for us when it answered, so
// it counts a timeout from no earlier than when we sent that heartbeat.
func (e *Engine) answered(p *peer, seq uint64) {
	i := slices.IndexFunc(p.beats, func(b beat) bool { return b.seq == seq })
	if i < 0 {
		return
	}
	at := p.beats[i].at
	p.beats = slices.Delete(p.beats, 0, i+1)
	p.heard = e.now
	if p.silent != 0 {
		p.silent = 0
		e.reach = true
	}
	until := at.Add(p.timeout)
	if e.cfg.Broken.NoSendingClock {
		until = e.now.Add(forever)
	}
	// A hello's answer may shorten the timeout, which then counts at once.
	if seq == 0 || until.After(p.validUntil) {
		p.validUntil = until
		if e.exclusive() {
			e.emit(Extend{p.name, until})
		}
	}
}

// silences notes which brokers have not answered for one and two timeouts.
func (e *Engine) silences() {
	for _, p := range e.peers {
		if !p.freshBy.IsZero() && !e.now.Before(p.freshBy) {
			p.freshBy = time.Time{}
		}
		level := 0
		switch quiet := e.now.Sub(p.heard); {
		case quiet >= 2*p.timeout:
			level = 2
		case quiet >= p.timeout:
			level = 1
		}
		if level > p.silent {
			p.silent = level
			e.reach = true
		}
	}
}

func (e *Engine) silence() []session.Silence {
	var out []session.Silence
	for _, p := range e.peers {
		if p.silent > 0 {
			out = append(out, session.Silence{Broker: p.name, Unreachable: p.silent > 1})
		}
	}
	return out
}

func (e *Engine) sendReach() {
	e.reach = false
	if e.cfg.Broken.NoReachReport {
		return
	}
	for _, p := range e.peers {
		if p.phase == welcomed {
			e.send(p, session.Reach{Silent: e.silence()})
		}
	}
}

// welcome accepts the answer to our hello.
func (e *Engine) welcome(p *peer, w session.Welcome) {
	if p.phase != greeting {
		return
	}
	p.phase = welcomed
	p.greetBy, p.freshBy = time.Time{}, time.Time{}
	p.epoch = w.BrokerEpoch
	if w.SessionTimeout > 0 {
		p.timeout = w.SessionTimeout
	}
	e.sessions++
	p.session = e.sessions
	p.nextBeat = e.now.Add(e.beatEvery(p))
	e.answered(p, 0)
	for _, t := range e.topics {
		t.setWarming(p.name, false) // of the session before
	}
	if e.cfg.Mode == session.Broadcasting {
		return
	}
	if e.exclusive() {
		e.regained(p, w.Grants)
	}
	e.inherit(p, w.Inherited)
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.queue.Broker == p.name && h.state == waiting && h.want {
				h.refused = false
				e.obtain(t, h)
			}
		}
	}
}

// refused handles the end of a session by the broker.
func (e *Engine) refused(p *peer, r session.Refused) {
	if r.Reason.Final() {
		e.fail(r.Reason, r.Text, p.name)
		return
	}
	if r.Reason != session.ReasonStaticExists || e.cfg.Instance == "" || r.Incarnation.Counter+1 <= e.inc.Counter {
		e.restart(p)
		return
	}
	// We are the successor of that incarnation everywhere.
	e.inc.Counter = r.Incarnation.Counter + 1
	for _, q := range e.peers {
		if q == p || q.phase != connecting {
			e.restart(q)
		}
	}
}

// reconcile keeps a session to every broker of a subscribed topic and to every
// other one whose lease is still held.
func (e *Engine) reconcile() {
	if e.leaving {
		return
	}
	e.peers = slices.DeleteFunc(e.peers, func(p *peer) bool {
		if p.routed || e.holdsAt(p.name) {
			return false
		}
		if p.phase == welcomed {
			e.send(p, session.Goodbye{})
		}
		e.emit(Disconnect{p.name})
		e.reach = e.reach || p.silent > 0 // told with the next change
		return true
	})
}

func (e *Engine) holdsAt(broker string) bool {
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.queue.Broker == broker && h.state != waiting && h.state != free {
				return true
			}
		}
	}
	return false
}

// route marks the brokers of subscribed topics and connects to new ones.
func (e *Engine) route() {
	for _, p := range e.peers {
		p.routed = false
	}
	for _, t := range e.topics {
		if !t.subscribed {
			continue
		}
		for _, b := range t.brokers {
			e.routePeer(b)
		}
	}
}

func (e *Engine) routePeer(name string) {
	i, ok := slices.BinarySearchFunc(e.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
	if ok {
		e.peers[i].routed = true
		return
	}
	if e.leaving {
		return
	}
	p := &peer{name: name, routed: true, timeout: e.cfg.SessionTimeout, heard: e.now}
	p.freshBy = e.now.Add(min(firstTry, p.timeout/4))
	e.peers = slices.Insert(e.peers, i, p)
	e.emit(Connect{name})
}

// memberList answers AskMembers with the list our last hello named.
func (e *Engine) memberList(p *peer, ask session.AskMembers) {
	var ids []string
	for i := range p.named {
		if p.named[i].topic == ask.Topic && p.named[i].digest == ask.Members {
			ids = p.named[i].ids
		}
	}
	e.send(p, session.MemberList{Topic: ask.Topic, Members: ask.Members, IDs: slices.Clone(ids)})
}

func sortQueues(queues []allocate.Queue) []allocate.Queue {
	if !slices.IsSortedFunc(queues, allocate.Queue.Compare) {
		queues = slices.Clone(queues)
		slices.SortFunc(queues, allocate.Queue.Compare)
	}
	return queues
}
