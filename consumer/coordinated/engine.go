package coordinated

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/session"
)

// Assignor decides for all members; see package allocate/assignor, whose input and
// answer it has.
type Assignor interface {
	Name() string
	// Cooperative reports whether members may keep queues while it decides.
	Cooperative() bool
	// Assign returns the queues of each member. topics has those whose queues are known.
	Assign(members []coordination.Joined, topics map[string][]allocate.Queue) (map[string][]allocate.Queue, error)
}

// Config is what an Engine is made of. Zero durations mean Kafka's defaults.
type Config struct {
	Group    string
	ClientID string
	Instance string // static member id, or empty
	Rack     string
	Topics   []string
	// Assignors of the classic protocol, most wanted first. Members keep queues while
	// they join if all of these are cooperative, as Kafka's clients do.
	Assignors []Assignor
	// ServerSide is the consumer protocol: the coordinator assigns, by ServerAssignor or
	// its default.
	ServerSide     bool
	ServerAssignor string
	SessionTimeout time.Duration
	Heartbeat      time.Duration
	// RebalanceTimeout is how long the others wait for this member's join.
	RebalanceTimeout time.Duration
	// Jitter spreads retries and heartbeats, in [0,1): a heartbeat comes up to a
	// twentieth earlier. Nil means none.
	Jitter func() float64
}

const (
	// A coordinator that is not known, or cannot take a request yet, is asked again
	// after retryBase, growing to retryMax: retry.backoff.ms and its maximum.
	retryBase = 100 * time.Millisecond
	retryMax  = time.Second
	// requestTimeout is Kafka's request.timeout.ms; joins have the rebalance timeout and
	// joinGrace if that is more.
	requestTimeout = 30 * time.Second
	joinGrace      = 5 * time.Second
)

// kind of a request.
type kind uint8

const (
	join kind = iota
	syncing
	beat
	leave
	resume
	kinds
)

// asked is a request without an answer.
type asked struct {
	id         uint64 // 0: none
	generation coordination.Generation
	until      time.Time
}

// Engine is a member.
type Engine struct {
	cfg         Config
	cooperative bool

	now   time.Time
	out   []rebalance.Effect
	wake  time.Time
	begun bool
	ended bool

	topics   []string                    // subscribed, sorted
	joinedAs []string                    // topics as the last join told
	routes   map[string][]allocate.Queue // what is known, sorted
	watched  []string                    // beside topics

	coordinator string
	finding     bool
	retryAt     time.Time // nothing is asked before
	failures    int
	refusals    int // joins, syncs and resumes in a row that were not granted

	memberID   string
	generation coordination.Generation
	exceed     coordination.Generation
	reqs       [kinds]asked
	lastID     uint64
	beatAt     time.Time // of the next heartbeat
	heardAt    time.Time // of the last answer
	interval   time.Duration

	rejoin   string // why; empty: no need
	holds    []*hold
	claims   []allocate.Queue // of the last assignment, for sticky eager assignors
	claimed  coordination.Generation
	assignor string
	leader   string
	leads    bool
	planned  map[string][]allocate.Queue // what the leader's plan was made from
	answered bool                        // server side: the first answer has come
	target   []allocate.Queue            // server side: the last assignment
	report   bool                        // server side: a report is due

	stalled bool
	leaving bool
	left    bool // the leave was asked for
}

// hold is a queue the member has.
type hold struct {
	queue    allocate.Queue
	epoch    coordination.Generation
	draining bool
}

// New checks cfg and returns an engine that has done nothing yet.
func New(cfg Config) (*Engine, error) {
	var errs []error
	if strings.TrimSpace(cfg.Group) == "" {
		errs = append(errs, errors.New("group is empty"))
	}
	if strings.TrimSpace(cfg.ClientID) == "" {
		errs = append(errs, errors.New("client id is empty"))
	}
	duration := func(name string, d *time.Duration, def time.Duration) {
		if *d < 0 {
			errs = append(errs, fmt.Errorf("%s %v is negative", name, *d))
		}
		*d = cmp.Or(*d, def)
	}
	duration("session timeout", &cfg.SessionTimeout, coordination.SessionTimeout)
	def := coordination.HeartbeatInterval
	if cfg.ServerSide {
		def = coordination.ConsumerInterval
	}
	duration("heartbeat", &cfg.Heartbeat, def)
	duration("rebalance timeout", &cfg.RebalanceTimeout, coordination.RebalanceTimeout)
	if cfg.Heartbeat >= cfg.SessionTimeout {
		errs = append(errs, fmt.Errorf("heartbeat %v is not shorter than session timeout %v", cfg.Heartbeat, cfg.SessionTimeout))
	}
	if !cfg.ServerSide && len(cfg.Assignors) == 0 {
		errs = append(errs, errors.New("no assignor"))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("coordinated: %w", errors.Join(errs...))
	}
	e := &Engine{
		cfg: cfg, topics: sorted(cfg.Topics), routes: make(map[string][]allocate.Queue), interval: cfg.Heartbeat,
		cooperative: !slices.ContainsFunc(cfg.Assignors, func(a Assignor) bool { return !a.Cooperative() }),
	}
	return e, nil
}

func sorted(topics []string) []string {
	out := slices.Clone(topics)
	slices.Sort(out)
	return slices.Compact(out)
}

// Step applies ev at now and returns what to do, in order. After Left or Failed it
// returns nothing.
func (e *Engine) Step(now time.Time, ev rebalance.Event) []rebalance.Effect {
	if e.ended {
		return nil
	}
	e.now, e.out = now, nil
	if !e.begun {
		e.begun, e.heardAt = true, now
		e.rejoin = "the member starts"
	}
	e.handle(ev)
	if !e.ended {
		e.timeouts()
	}
	if !e.ended {
		e.act()
	}
	if !e.ended {
		e.sendWake()
	}
	out := e.out
	e.out = nil
	return out
}

func (e *Engine) handle(ev rebalance.Event) {
	switch ev := ev.(type) {
	case rebalance.Routes:
		e.learn(ev)
	case rebalance.Coordinator:
		e.found(ev.Broker)
	case rebalance.Answered:
		e.answer(ev)
	case rebalance.AskFailed:
		e.failed(ev.ID)
	case rebalance.SetSubscriptions:
		topics := make([]string, 0, len(ev.Subscriptions))
		for _, s := range ev.Subscriptions {
			topics = append(topics, s.Topic)
		}
		e.topics = sorted(topics)
	case rebalance.Drained:
		e.drained(ev)
	case rebalance.Refused:
		e.refused(ev)
	case rebalance.Stalled:
		e.stall()
	case rebalance.Recovered:
		e.stalled = false
	case rebalance.Leave:
		e.leaving = true
		e.letGo()
	case rebalance.Wake, rebalance.Connected, rebalance.Disconnected, rebalance.Received: // sessions are the other model's
	}
}

// act does what is due.
func (e *Engine) act() {
	if e.leaving {
		e.depart()
		return
	}
	if e.stalled {
		return
	}
	if e.coordinator == "" {
		e.find()
		return
	}
	if e.now.Before(e.retryAt) {
		return
	}
	if e.cfg.ServerSide {
		e.beatServer()
		return
	}
	e.mayJoin()
	e.beatClassic()
}

func (e *Engine) find() {
	if e.finding || e.now.Before(e.retryAt) {
		return
	}
	e.finding = true
	e.emit(rebalance.FindCoordinator{})
}

func (e *Engine) found(broker string) {
	if !e.finding {
		return
	}
	e.finding = false
	if broker == "" {
		e.backOff()
		return
	}
	e.coordinator, e.heardAt = broker, e.now
}

// backOff has nothing asked for a while.
func (e *Engine) backOff() {
	d := min(retryMax, retryBase<<min(e.failures, 8))
	e.failures++
	if e.cfg.Jitter != nil {
		d += time.Duration(e.cfg.Jitter() * float64(d) / 5)
	}
	e.retryAt = e.now.Add(d)
}

// lookAgain forgets the coordinator, not what the member has: only a coordinator can
// take that away.
func (e *Engine) lookAgain() {
	e.coordinator = ""
	if e.reqs[syncing].id != 0 || e.reqs[join].id != 0 {
		e.want("the coordinator is lost")
	}
	e.reqs = [kinds]asked{}
	e.backOff()
}

func (e *Engine) ask(k kind, timeout time.Duration, req coordination.Request) {
	e.lastID++
	e.reqs[k] = asked{e.lastID, e.generation, e.now.Add(timeout)}
	e.emit(rebalance.Ask{Broker: e.coordinator, ID: e.lastID, Request: req})
}

func (e *Engine) who() coordination.Identity {
	return coordination.Identity{Group: e.cfg.Group, MemberID: e.memberID, Instance: e.cfg.Instance, Generation: e.generation}
}

// timeouts gives requests up, and the coordinator with them.
func (e *Engine) timeouts() {
	for k := range e.reqs {
		if r := &e.reqs[k]; r.id != 0 && !e.now.Before(r.until) {
			e.lookAgain()
			return
		}
	}
	if e.coordinator != "" && e.reqs[join].id == 0 && e.reqs[syncing].id == 0 && e.now.Sub(e.heardAt) >= e.cfg.SessionTimeout && e.reqs[beat].id != 0 {
		e.lookAgain()
	}
}

func (e *Engine) failed(id uint64) {
	for _, r := range e.reqs {
		if r.id == id && id != 0 {
			e.lookAgain()
			return
		}
	}
}

func (e *Engine) sendWake() {
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && t.After(e.now) && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	sooner(e.retryAt)
	sooner(e.beatAt)
	for _, r := range e.reqs {
		if r.id != 0 {
			sooner(r.until)
		}
	}
	if e.reqs[beat].id != 0 {
		sooner(e.heardAt.Add(e.cfg.SessionTimeout))
	}
	if !at.IsZero() && !at.Equal(e.wake) {
		e.wake = at
		e.emit(rebalance.WakeAt{At: at})
	}
}

func (e *Engine) emit(eff rebalance.Effect) { e.out = append(e.out, eff) }

// fail ends the member.
func (e *Engine) fail(code coordination.Code, text string) {
	e.loseAll(code.String())
	reason := session.ReasonBadRequest
	if code == coordination.FencedInstance {
		reason = session.ReasonFenced
	}
	e.emit(rebalance.Failed{Reason: reason, Text: strings.TrimSuffix(code.String()+": "+text, ": "), Broker: e.coordinator})
	e.ended = true
}

// want has the member join again; the first reason stays.
func (e *Engine) want(reason string) {
	if e.rejoin == "" {
		e.rejoin = reason
	}
}

func (e *Engine) nextBeat() {
	d := e.interval
	if e.cfg.Jitter != nil {
		d -= time.Duration(e.cfg.Jitter() * float64(d) / 20)
	}
	e.beatAt = e.now.Add(d)
}
