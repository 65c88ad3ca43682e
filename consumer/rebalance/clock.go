package rebalance

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/session"
)

// forever stands in for "no end" where the sending clock is switched off.
const forever = 1000 * time.Hour

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
		e.reach, e.wide = true, true
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
			e.wide = true
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
			e.reach, e.wide = true, true
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
