package rebalance

import (
	"slices"
	"time"

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

	restarted uint64 // the Step in which a new stream was asked for
	epoch     uint64
	timeout   time.Duration // effective session timeout

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

// restart asks for a new stream.
func (e *Engine) restart(p *peer) {
	p.restarted = e.steps
	e.closed(p)
	e.emit(Disconnect{p.name})
	e.emit(Connect{p.name})
}

// closed forgets the stream, not the leases. But nothing is handed out under them
// until the next welcome: whatever ended the stream, a reset on the way too, the
// broker may take it for our doing and give them to others at once.
func (e *Engine) closed(p *peer) {
	if p.phase == welcomed && !p.validUntil.IsZero() && e.exclusive() && !e.cfg.Broken.NoSendingClock {
		e.emit(Extend{p.name, e.now})
	}
	e.wide = true
	p.phase = connecting
	p.nextBeat, p.greetBy = time.Time{}, time.Time{}
	p.beats = p.beats[:0]
	for _, t := range e.topics {
		if t.using == p.name && t.fetchSeq != 0 {
			delete(e.asking, t.fetchSeq)
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
	if p == nil || p.restarted == e.steps {
		return // that stream has just been given up
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
		// Not p itself: the answer to this hello says whether we hear it.
		h.Silent = slices.DeleteFunc(e.silence(), func(x session.Silence) bool { return x.Broker == p.name })
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

// welcome accepts the answer to our hello.
func (e *Engine) welcome(p *peer, w session.Welcome) {
	if p.phase != greeting {
		return
	}
	e.wide = true
	p.phase = welcomed
	p.greetBy, p.freshBy = time.Time{}, time.Time{}
	p.epoch = w.BrokerEpoch
	if w.SessionTimeout > 0 {
		p.timeout = w.SessionTimeout
	}
	if len(p.beats) > 0 && expired(e.now, p.beats[0].at.Add(p.timeout)) && !e.cfg.Broken.NoSendingClock {
		e.void(p) // the answer took longer than the session lasts
		return
	}
	e.sessions++
	p.session = e.sessions
	p.nextBeat = e.now.Add(e.beatEvery(p))
	if e.exclusive() {
		e.regained(p, w.Grants) // what is lost is lost before anything is handed out again
	}
	e.answered(p, 0)
	for _, t := range e.topics {
		t.setWarming(p.name, false) // of the session before
	}
	if e.cfg.Mode == session.Broadcasting {
		return
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

// memberList answers AskMembers with the list our last hello named. Another one
// is not ours to tell: an empty list would say that nobody is missing.
func (e *Engine) memberList(p *peer, ask session.AskMembers) {
	for _, n := range p.named {
		if n.topic == ask.Topic && n.digest == ask.Members {
			e.send(p, session.MemberList{Topic: ask.Topic, Members: ask.Members, IDs: slices.Clone(n.ids)})
			return
		}
	}
}
