package sim

import (
	"time"

	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/session"
)

// stream is one session stream. Each direction keeps its order; each end has its
// own idea of whether it is open.
type stream struct {
	w          *World
	member     *Member
	broker     *Broker
	memberLife int
	brokerLife int
	id         group.SessionID
	memberOpen bool
	brokerOpen bool
	toBroker   time.Time // arrival of the last thing sent that way
	toMember   time.Time
}

// dial opens a stream: a round trip that fails if the broker is down or the timeout
// passes without an answer.
func (w *World) dial(m *Member, b *Broker, timeout time.Duration, done func(*stream)) {
	s := &stream{w: w, member: m, broker: b, memberLife: m.life}
	answered := false
	answer := func(ok bool) {
		if answered {
			if ok { // too late: the dialler gave up; hang up again
				s.closeByMember()
			}
			return
		}
		answered = true
		if !ok {
			done(nil)
			return
		}
		s.memberOpen = true
		done(s)
	}
	w.after(timeout, func() { m.do(s.memberLife, func() { answer(false) }) })
	w.transit(m.name, b.name, w.now, func() {
		if !b.up {
			s.toMember = w.transit(b.name, m.name, s.toMember, func() { m.do(s.memberLife, func() { answer(false) }) })
			return
		}
		s.brokerLife = b.life
		b.do(s.brokerLife, func() {
			s.brokerOpen = true
			s.id = b.newSession(s)
			s.toMember = w.transit(b.name, m.name, s.toMember, func() { m.do(s.memberLife, func() { answer(true) }) })
		})
	})
}

func (s *stream) sendToBroker(f session.ToBroker) {
	if !s.memberOpen {
		return
	}
	s.w.sees(f)
	s.carryToBroker(func() { s.broker.step(group.Received{Session: s.id, Frame: f}) })
}

// carryToBroker runs fn at the broker, in its turn, if the stream is open there then.
func (s *stream) carryToBroker(fn func()) {
	s.toBroker = s.w.transit(s.member.name, s.broker.name, s.toBroker, func() {
		if s.broker.up && s.broker.life != s.brokerLife {
			s.reset()
			return
		}
		s.broker.do(s.brokerLife, func() {
			if s.brokerOpen {
				fn()
			}
		})
	})
}

func (s *stream) sendToMember(f session.ToMember) {
	if !s.brokerOpen {
		return
	}
	s.w.sees(f)
	s.carryToMember(func() { s.member.received(s, f) })
}

// carryToMember runs fn at the member, in its turn, if the stream is open there then.
func (s *stream) carryToMember(fn func()) {
	s.toMember = s.w.transit(s.broker.name, s.member.name, s.toMember, func() {
		s.member.do(s.memberLife, func() {
			if s.memberOpen {
				fn()
			}
		})
	})
}

// reset is what the kernel of a host that started again answers to a stream it
// does not know.
func (s *stream) reset() {
	s.toMember = s.w.transit(s.broker.name, s.member.name, s.toMember, func() {
		s.member.do(s.memberLife, func() {
			if s.memberOpen {
				s.memberOpen = false
				s.member.disconnected(s)
			}
		})
	})
}

// closeByMember ends the stream from the member's side: its process died with the
// kernel still there to say so, or it hung up.
func (s *stream) closeByMember() {
	s.memberOpen = false
	s.toBroker = s.w.transit(s.member.name, s.broker.name, s.toBroker, func() {
		s.broker.do(s.brokerLife, func() {
			if s.brokerOpen {
				s.brokerOpen = false
				s.broker.ended(s, true)
			}
		})
	})
}

// closeByBroker ends the stream from the broker's side.
func (s *stream) closeByBroker() {
	s.brokerOpen = false
	s.reset()
}

// sever is a reset from between the two: what is under way is lost, and each end
// hears of it in its own time and takes it for the other's doing.
func (s *stream) sever() {
	w := s.w
	w.logf("net      reset of %s - %s", s.member.name, s.broker.name)
	s.memberOpen, s.brokerOpen = false, false
	w.after(w.between(50*time.Microsecond, time.Millisecond), func() {
		s.broker.do(s.brokerLife, func() {
			if s.broker.streams[s.id] == s {
				s.broker.ended(s, true)
			}
		})
	})
	w.after(w.between(50*time.Microsecond, time.Millisecond), func() {
		s.member.do(s.memberLife, func() { s.member.disconnected(s) })
	})
}

// kick ends the stream as a broker does whose member reads too slowly.
func (s *stream) kick() {
	if !s.brokerOpen {
		return
	}
	s.w.logf("%-8s kicks %s", s.broker.name, s.member.name)
	s.closeByBroker()
	s.broker.ended(s, false)
}
