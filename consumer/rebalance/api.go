package rebalance

import (
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/session"
)

// Event is something that happened to a member.
//
//sumtype:decl
type Event interface{ event() }

type (
	// Wake says that the time of the last WakeAt has come.
	Wake struct{}
	// Routes replaces what is known of the subscribed topics. A topic missing
	// here keeps its last known route; one with no brokers is gone.
	Routes struct{ Topics []Topic }
	// Connected says that a session stream to a broker is open; the engine
	// says hello.
	Connected struct{ Broker string }
	// Disconnected says that a session stream ended or could not be opened.
	Disconnected struct{ Broker string }
	// Received carries a frame of a broker.
	Received struct {
		Broker string
		Frame  session.ToMember
	}
	// SetSubscriptions replaces the member's subscriptions.
	SetSubscriptions struct{ Subscriptions []session.Subscription }
	// Drained answers Revoke: no handler of the queue runs any more, or the
	// drain limit has passed. Offset is the progress to hand over.
	Drained struct {
		Queue     allocate.Queue
		Epoch     session.Epoch
		Offset    int64
		HasOffset bool
	}
	// Refused says that a broker refused a pull or commit under this lease. Seen is
	// the epoch that it knows, if it says so.
	Refused struct {
		Queue allocate.Queue
		Epoch session.Epoch
		Seen  session.Epoch
	}
	// Stalled says that handlers made no progress for the set time: the member
	// gives its queues up until Recovered.
	Stalled struct{}
	// Recovered says that handlers make progress again.
	Recovered struct{}
	// Leave begins a graceful leave; Left is its last effect.
	Leave struct{}
	// Coordinator answers FindCoordinator; empty if there is none just now. Of the
	// coordinated model only, as Answered and AskFailed.
	Coordinator struct{ Broker string }
	// Answered is the answer to the Ask with the ID.
	Answered struct {
		ID     uint64
		Answer coordination.Answer
	}
	// AskFailed says that the Ask with the ID will have no answer.
	AskFailed struct{ ID uint64 }
)

// Topic is the route of one topic as the engine needs it.
type Topic struct {
	Name    string
	Brokers []string         // that host the topic, sorted
	Queues  []allocate.Queue // readable, sorted
}

func (Wake) event()             {}
func (Routes) event()           {}
func (Connected) event()        {}
func (Disconnected) event()     {}
func (Received) event()         {}
func (SetSubscriptions) event() {}
func (Drained) event()          {}
func (Refused) event()          {}
func (Stalled) event()          {}
func (Recovered) event()        {}
func (Leave) event()            {}
func (Coordinator) event()      {}
func (Answered) event()         {}
func (AskFailed) event()        {}

// Effect is something the shell must do.
//
//sumtype:decl
type Effect interface{ effect() }

type (
	// WakeAt asks for a Wake at that time; it replaces an earlier WakeAt.
	WakeAt struct{ At time.Time }
	// Connect asks for a session stream to a broker, kept open with backoff
	// until Disconnect. Each attempt ends in Connected or Disconnected.
	Connect struct{ Broker string }
	// Disconnect closes the session stream for good.
	Disconnect struct{ Broker string }
	// Send sends a frame on the broker's open session stream.
	Send struct {
		Broker string
		Frame  session.ToBroker
	}
	// Extend moves the time until which queues of the broker may be dispatched.
	// Dispatchers compare it with their own clock before every message, so that
	// a process that was paused stops before it does anything else.
	Extend struct {
		Broker string
		Until  time.Time
	}
	// Assign gives a queue to the member: begin at Offset, or where the start
	// policy says if the group never committed there.
	Assign struct {
		Queue     allocate.Queue
		Epoch     session.Epoch
		Offset    int64
		HasOffset bool
	}
	// Revoke asks to stop dispatching a queue, let its handlers end, commit and
	// answer Drained.
	Revoke struct {
		Queue allocate.Queue
		Epoch session.Epoch
	}
	// Lose says that a queue is the member's no more: stop at once, commit
	// nothing, expect nothing. Its process queue is dropped.
	Lose struct {
		Queue allocate.Queue
		Epoch session.Epoch
		Cause string
	}
	// Passed reports a pass, for metrics and explanations.
	Passed struct{ Pass Pass }
	// Left ends a graceful leave: nothing is held, goodbyes are sent.
	Left struct{}
	// Failed ends the member: repeating cannot help.
	Failed struct {
		Reason session.Reason
		Text   string
		Broker string
	}
	// RefreshRoutes asks to read the routes again now.
	RefreshRoutes struct{}
	// FindCoordinator asks any broker who coordinates the group. Of the coordinated
	// model only, as Ask and WatchTopics.
	FindCoordinator struct{}
	// Ask sends a request to a coordinator; Answered or AskFailed follows.
	Ask struct {
		Broker  string
		ID      uint64
		Request coordination.Request
	}
	// WatchTopics names the topics beside the subscribed ones whose routes are wanted.
	WatchTopics struct{ Topics []string }
)

func (WakeAt) effect()        {}
func (Connect) effect()       {}
func (Disconnect) effect()    {}
func (Send) effect()          {}
func (Extend) effect()        {}
func (Assign) effect()        {}
func (Revoke) effect()        {}
func (Lose) effect()          {}
func (Passed) effect()        {}
func (Left) effect()          {}
func (Failed) effect()        {}
func (RefreshRoutes) effect() {}

func (FindCoordinator) effect() {}
func (Ask) effect()             {}
func (WatchTopics) effect()     {}

// Pass is the record of one run of the strategy for one topic.
type Pass struct {
	Topic    string
	Trigger  string // what caused it: "notice", "tick", "conflict", "nudge", "subscription", ...
	Strategy string
	View     session.Version
	Members  int
	Queues   int
	Mine     []allocate.Queue // the member's own part
	Gained   []allocate.Queue // asked for because of this pass
	Given    []allocate.Queue // to be drained because of this pass
	Expected session.Digest
	Err      error // the strategy's; the assignment before stays
}

// Config is what an Engine is made of.
type Config struct {
	Group       string
	ClientID    string
	Instance    string // static member id, or empty
	Incarnation session.Incarnation
	Mode        session.Mode
	// Strategies the member supports, most wanted first; Data per strategy name.
	Strategies []allocate.Strategy
	Data       map[string][]byte
	// Subscriptions to begin with.
	Subscriptions []session.Subscription
	Tick          time.Duration // 20 s: the safety net's interval
	Heartbeat     time.Duration // 3 s
	// SessionTimeout asked for, 10 s; each broker's Welcome has the effective one.
	SessionTimeout time.Duration
	// Chance spreads ticks and retries (jitter in [0,1)); nil means no jitter.
	Jitter func() float64
	// Broken switches a rule off, for tests that prove the checker sees it.
	Broken Broken
}

// Broken switches single rules off, so that tests can show that the simulation
// notices. The zero value is the correct engine.
type Broken struct {
	NoHealing        bool
	RandomViewBroker bool
	DropOnEmptyRoute bool
	RestartIsLoss    bool
	NoReachReport    bool
	NoSendingClock   bool
	TwoRequests      bool
	GoodbyeFirst     bool
	KeepStaleQueue   bool
}
