package rebalance

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Snapshot is what a member knows and holds at one moment, for people: logs,
// metrics and explanations. It shares nothing with the engine.
type Snapshot struct {
	Group       string
	ClientID    string
	Incarnation session.Incarnation
	Mode        session.Mode
	Stalled     bool
	Leaving     bool
	Ended       bool
	Brokers     []BrokerState // sorted by name
	Topics      []TopicState  // sorted by name
}

// BrokerState is the session with one broker.
type BrokerState struct {
	Name  string
	Phase string // connecting, greeting or welcomed
	Epoch uint64 // the broker's, by its last welcome
	// SessionTimeout is the effective one.
	SessionTimeout time.Duration
	// ValidUntil ends the right to dispatch this broker's queues; zero if there
	// is none.
	ValidUntil time.Time
	// Silent counts the session timeouts without an answer: 0, 1, or 2 for
	// unreachable.
	Silent int
}

// TopicState is the member's part in one topic.
type TopicState struct {
	Name       string
	Subscribed bool
	Brokers    []string // that host it, by the name servers
	ViewBroker string   // in use; empty if there is none
	Warming    []string // brokers whose view cannot be served yet
	Fetching   bool
	// Settled says that as far as this member can tell it holds exactly what its
	// last pass gives to it.
	Settled  bool
	Expected session.Digest
	Pass     Pass         // the last one
	Queues   []QueueState // sorted by queue
}

// QueueState is what the member has to do with one queue. States are those of
// the package comment.
type QueueState struct {
	Queue  allocate.Queue
	State  string
	Wanted bool // by the member's last pass
	Epoch  session.Epoch
	// Since is when the request was made, for a queue asked for.
	Since time.Time
}

// Snapshot describes the engine between two Steps.
func (e *Engine) Snapshot() Snapshot {
	s := Snapshot{
		Group: e.cfg.Group, ClientID: e.cfg.ClientID, Incarnation: e.inc, Mode: e.cfg.Mode,
		Stalled: e.stalled, Leaving: e.leaving, Ended: e.ended,
	}
	for _, p := range e.peers {
		s.Brokers = append(s.Brokers, BrokerState{p.name, p.phase.String(), p.epoch, p.timeout, p.validUntil, p.silent})
	}
	for _, t := range e.topics {
		ts := TopicState{
			Name: t.name, Subscribed: t.subscribed, Brokers: slices.Clone(t.brokers), ViewBroker: t.using,
			Warming: slices.Clone(t.warming), Fetching: t.fetchSeq != 0, Expected: t.expected, Pass: t.passed,
			Settled: e.cfg.Mode == session.Broadcasting || t.last != nil && !t.failed,
		}
		ts.Pass.Mine, ts.Pass.Gained, ts.Pass.Given = slices.Clone(t.passed.Mine), slices.Clone(t.passed.Gained), slices.Clone(t.passed.Given)
		for _, h := range t.holds {
			if h.want != (h.state == owned) {
				ts.Settled = false
			}
			q := QueueState{Queue: h.queue, State: h.state.String(), Wanted: h.want, Epoch: h.epoch}
			if h.state == asked || h.state == withdrawing {
				q.Since = h.since
			}
			ts.Queues = append(ts.Queues, q)
		}
		s.Topics = append(s.Topics, ts)
	}
	return s
}
