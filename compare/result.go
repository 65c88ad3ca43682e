package compare

import "time"

// Way is how a run is made.
type Way string

const (
	// Simulated runs have the cores of members and brokers in virtual time.
	Simulated Way = "simulated"
	// Live runs have brokers and clients on sockets, and the clock on the wall.
	Live Way = "live"
)

// Timers says whose timers a run has.
type Timers string

const (
	// OwnTimers are the model's defaults.
	OwnTimers Timers = "own"
	// FastTimers are the model's own for quick detection of failures: a session
	// timeout of 6 s and a heartbeat of 2 s for Kafka's.
	FastTimers Timers = "fast"
	// EqualTimers are the same for all models: a session timeout of 6 s and an
	// interval of 2 s.
	EqualTimers Timers = "equal"
)

// Phase says how the heartbeats of members lie in time before an event.
type Phase string

const (
	// InStep: all beat at once, as just after a rebalance.
	InStep Phase = "in step"
	// Spread: evenly over the interval.
	Spread Phase = "spread"
)

// Report is the result of a comparison. Durations in JSON are milliseconds.
type Report struct {
	// Version of the program, and how and where it was run.
	Version  string    `json:"version"`
	Command  string    `json:"command"`
	Begun    time.Time `json:"begun"`
	TookMS   float64   `json:"took_ms"`
	Machine  Machine   `json:"machine"`
	Models   []Model   `json:"models"`
	Scenes   []Scene   `json:"scenarios"`
	Runs     []Run     `json:"runs"`
	Findings []Finding `json:"findings"`
}

// Machine is where a comparison ran.
type Machine struct {
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	Go    string `json:"go"`
}

// Model describes a model to readers.
type Model struct {
	Name string `json:"name"`
	// Coordinated models have a coordinator.
	Coordinated bool   `json:"coordinated"`
	Text        string `json:"text"`
}

// Scene describes a scenario to readers.
type Scene struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Run is one model in one scenario.
type Run struct {
	Model    string        `json:"model"`
	Scenario string        `json:"scenario"`
	Way      Way           `json:"way"`
	Timers   Timers        `json:"timers"`
	Phase    Phase         `json:"phase,omitempty"`
	Members  int           `json:"members"`
	Queues   int           `json:"queues"`
	Brokers  int           `json:"brokers"`
	Latency  Milliseconds  `json:"latency_ms"` // of one way of the network, simulated
	Loss     float64       `json:"loss"`       // of connections, simulated
	Seed     uint64        `json:"seed"`
	Settings []Setting     `json:"settings"` // timers and assignor as they were
	Events   []EventResult `json:"events"`
	Chart    *Chart        `json:"chart,omitempty"`
	// Error says why the run could not be made; the other results are empty then.
	Error string `json:"error,omitempty"`
}

// Setting is one value a run depended on.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// EventResult is what one event of a scenario did.
type EventResult struct {
	Name string       `json:"name"`
	At   Milliseconds `json:"at_ms"`
	Measures
}

// Measures is what is measured of one event, from the moment it happens to the
// moment the group has settled and been quiet, or the time is up.
type Measures struct {
	// Settled is false if the group had not settled when the time was up: SettleMS is
	// then how long it was looked at, and Why says what was wrong.
	Settled  bool         `json:"settled"`
	Why      string       `json:"why,omitempty"`
	SettleMS Milliseconds `json:"settle_ms"`
	// A queue is without owner from when its owner hands out no more (if it was killed
	// or cut off: from that moment) to when the next one may hand out messages.
	GapTotalMS   Milliseconds `json:"gap_total_ms"` // of all queues together
	GapLongestMS Milliseconds `json:"gap_longest_ms"`
	GapQueues    int          `json:"gap_queues"`
	// Stopped queues had a gap and went on with the owner they had.
	Stopped int `json:"stopped_queues"`
	Moved   int `json:"moved"`
	Minimum int `json:"minimum"`
	// An owner may hand out new messages; queues with two of them at once.
	TwiceTotalMS Milliseconds `json:"two_owners_total_ms"`
	TwiceQueues  int          `json:"two_owners_queues"`
	// Overrun handlers still worked on a message when somebody else owned its queue.
	Overrun int `json:"handlers_past_ownership"`
	// Messages handed out more than once, never though a later one of their queue was, or
	// after a later one (live: of another member).
	Repeated   int `json:"repeated"`
	Lost       int `json:"lost"`
	OutOfOrder int `json:"out_of_order"`
	// What the group's members and brokers sent each other for the group's sake:
	// neither messages nor fetches, but what is sent in a settled group as well.
	Wire Wire `json:"wire"`
	// WatchedMS is how long the event was looked at: what is counted, was counted in that
	// time. 0 if it is not known.
	WatchedMS Milliseconds `json:"watched_ms,omitempty"`
	// CPUMS is the processor time of the process, live only: clients and brokers.
	CPUMS Milliseconds `json:"cpu_ms,omitempty"`
}

// Wire counts what went over the network, by who sent it.
type Wire struct {
	MemberMessages int `json:"member_messages"`
	MemberBytes    int `json:"member_bytes"`
	BrokerMessages int `json:"broker_messages"`
	BrokerBytes    int `json:"broker_bytes"`
}

// Milliseconds is a time or duration in JSON and CSV.
type Milliseconds float64

func ms(d time.Duration) Milliseconds {
	return Milliseconds(d.Round(time.Microsecond)) / Milliseconds(time.Millisecond)
}

// Chart shows who owned what over the time of a run.
type Chart struct {
	FromMS  Milliseconds `json:"from_ms"`
	ToMS    Milliseconds `json:"to_ms"`
	Queues  []string     `json:"queues"`  // a row each
	Members []string     `json:"members"` // a colour each
	Bars    []Bar        `json:"bars"`
	Marks   []Mark       `json:"marks"`
	Lag     []LagPoint   `json:"lag,omitempty"`
}

// Bar is an ownership, by index of queue and member.
type Bar struct {
	Queue  int          `json:"q"`
	Member int          `json:"m"`
	FromMS Milliseconds `json:"f"`
	ToMS   Milliseconds `json:"t"`
}

// Mark is something that happened.
type Mark struct {
	AtMS Milliseconds `json:"at_ms"`
	Text string       `json:"text"`
}

// LagPoint is the number of messages stored and not yet handed out, of all queues.
type LagPoint struct {
	AtMS Milliseconds `json:"at_ms"`
	Lag  int          `json:"lag"`
}

// Finding is a sentence that the numbers bear, for or against a model.
type Finding struct {
	Text string `json:"text"`
	// Winner is the model it speaks for, if any.
	Winner string `json:"winner,omitempty"`
}
