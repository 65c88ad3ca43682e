package rebalance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// Defaults of [Config].
const (
	DefaultTick           = 20 * time.Second
	DefaultHeartbeat      = 3 * time.Second
	DefaultSessionTimeout = 10 * time.Second
)

// late is how much later than asked a Wake may come before the engine takes it
// for a pause of its own process, which says nothing about the brokers.
const late = 250 * time.Millisecond

// Engine is the core of one member. It has one owner: Step must not be called
// concurrently.
type Engine struct {
	cfg        Config
	inc        session.Incarnation
	offers     []session.Offer
	strategies map[string]allocate.Strategy // looked up only, never walked

	subs   []session.Subscription // sorted by topic
	peers  []*peer                // sorted by name
	topics []*topic               // sorted by name
	asking map[uint64]*topic      // whose fetches are outstanding, by number; may hold older ones

	// What a Step is about: all topics if wide, else those in near, which it has looked
	// up. A member of a thousand topics gets thousands of frames about one each.
	wide   bool
	near   []*topic
	last   *topic // in which something was dispatched when a leave looked for it
	always bool   // wide in every Step: tests compare
	// topicsAt is when the patience with a topic, or a claim, is over first.
	topicsAt time.Time

	now     time.Time
	out     []Effect
	steps   uint64
	started bool
	stalled bool
	leaving bool
	ended   bool // Left or Failed was the last effect

	nextTick time.Time
	wake     time.Time // of the last WakeAt
	seq      uint64    // of fetches
	sessions uint64    // welcomed so far

	// Collected in a Step, sent at its end.
	asks, withdrawals []allocate.Queue
	releases          []session.Release
	refresh           bool
	reach             bool
}

// New checks cfg and returns an engine that has done nothing yet; the first Step
// begins its life. Zero durations mean the defaults, no strategies mean
// [allocate.Default], a zero incarnation counter means 1.
func New(cfg Config) (*Engine, error) {
	var errs []error
	if strings.TrimSpace(cfg.Group) == "" {
		errs = append(errs, errors.New("group is empty"))
	}
	if strings.TrimSpace(cfg.ClientID) == "" {
		errs = append(errs, errors.New("client id is empty"))
	}
	if cfg.Mode > session.Broadcasting {
		errs = append(errs, fmt.Errorf("unknown %v", cfg.Mode))
	}
	duration := func(name string, d *time.Duration, def time.Duration) {
		switch {
		case *d < 0:
			errs = append(errs, fmt.Errorf("%s %v is negative", name, *d))
		case *d == 0:
			*d = def
		}
	}
	duration("tick", &cfg.Tick, DefaultTick)
	duration("heartbeat", &cfg.Heartbeat, DefaultHeartbeat)
	duration("session timeout", &cfg.SessionTimeout, DefaultSessionTimeout)
	if cfg.Heartbeat >= cfg.SessionTimeout && cfg.Heartbeat > 0 {
		errs = append(errs, fmt.Errorf("heartbeat %v is not shorter than session timeout %v", cfg.Heartbeat, cfg.SessionTimeout))
	}
	if len(cfg.Strategies) == 0 {
		cfg.Strategies = []allocate.Strategy{allocate.Default()}
	}
	if cfg.Incarnation.Counter == 0 {
		cfg.Incarnation.Counter = 1
	}
	e := &Engine{cfg: cfg, inc: cfg.Incarnation, strategies: make(map[string]allocate.Strategy), asking: make(map[uint64]*topic)}
	for _, s := range cfg.Strategies {
		name, err := nameOf(s)
		if err == nil && e.strategies[name] != nil {
			err = fmt.Errorf("strategy %q is given twice", name)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		e.strategies[name] = s
		e.offers = append(e.offers, session.Offer{Strategy: name, Data: cfg.Data[name]})
	}
	subs, err := sortSubscriptions(cfg.Subscriptions)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("rebalance: %w", errors.Join(errs...))
	}
	e.subs = subs
	for _, s := range subs {
		e.topics = append(e.topics, &topic{name: s.Topic, subscribed: true})
	}
	return e, nil
}

func sortSubscriptions(in []session.Subscription) ([]session.Subscription, error) {
	subs := slices.Clone(in)
	slices.SortStableFunc(subs, func(a, b session.Subscription) int { return strings.Compare(a.Topic, b.Topic) })
	for i := range subs {
		if subs[i].Topic == "" {
			return nil, errors.New("subscription without a topic")
		}
		if i > 0 && subs[i].Topic == subs[i-1].Topic {
			return nil, fmt.Errorf("topic %q is subscribed twice", subs[i].Topic)
		}
	}
	return subs, nil
}

// Step applies ev at now and returns what to do, in order. now never goes back
// by its monotonic reading. After Left or Failed it returns nothing.
func (e *Engine) Step(now time.Time, ev Event) []Effect {
	if e.ended {
		return nil
	}
	e.now, e.out = now, nil
	e.steps++
	clear(e.near)
	e.near, e.wide = e.near[:0], e.always
	e.begin()
	e.clock() // before anything else: what has run out is not ours to act on
	e.handle(ev)
	if !e.ended {
		e.deadlines()
		e.flush()
	}
	out := e.out
	e.out = nil
	return out
}

func (e *Engine) begin() {
	if !e.started {
		e.started, e.wide = true, true
		e.nextTick = e.now.Add(e.tick())
		e.refresh = true
		return
	}
	if pause := e.now.Sub(e.wake); !e.wake.IsZero() && pause > late {
		for _, p := range e.peers {
			p.heard = p.heard.Add(pause)
			if !p.greetBy.IsZero() {
				p.greetBy = p.greetBy.Add(pause)
			}
		}
	}
}

func (e *Engine) handle(ev Event) {
	switch ev.(type) {
	case Wake, Received, Drained, Refused, Coordinator, Answered, AskFailed:
	case Routes, Connected, Disconnected, SetSubscriptions, Stalled, Recovered, Leave:
		e.wide = true
	}
	switch ev := ev.(type) {
	case Wake:
	case Routes:
		e.routes(ev)
	case Connected:
		e.connected(ev.Broker)
	case Disconnected:
		e.disconnected(ev.Broker)
	case Received:
		e.received(ev.Broker, ev.Frame)
	case SetSubscriptions:
		e.subscribe(ev.Subscriptions)
	case Drained:
		e.drained(ev)
	case Refused:
		e.leaseRefused(ev)
	case Stalled:
		e.stall()
	case Recovered:
		e.recovered()
	case Leave:
		e.leave()
	case Coordinator, Answered, AskFailed: // of the coordinated model
	}
}

// deadlines does what is due by now.
func (e *Engine) deadlines() {
	e.beats()
	e.silences()
	tick := !e.now.Before(e.nextTick)
	e.wide = e.wide || tick || !e.topicsAt.IsZero() && !e.now.Before(e.topicsAt)
	for _, t := range e.concerned() {
		e.checkClaims(t)
		e.checkPatience(t)
	}
	if tick {
		e.nextTick = e.now.Add(e.tick())
		e.onTick()
	}
	for _, t := range e.concerned() {
		e.choose(t)
	}
}

// concerned returns the topics that the Step is about, sorted by name.
func (e *Engine) concerned() []*topic {
	if e.wide {
		return e.topics
	}
	slices.SortFunc(e.near, func(a, b *topic) int { return strings.Compare(a.name, b.name) })
	return e.near
}

func (e *Engine) tick() time.Duration {
	if e.cfg.Jitter == nil {
		return e.cfg.Tick
	}
	// Earlier only: a tick is the longest time without a look.
	return e.cfg.Tick - time.Duration(e.cfg.Jitter()*float64(e.cfg.Tick)/10)
}

// onTick is the safety net: re-read the routes, fetch again what was not
// answered or could not be shared, ask again for what was refused.
func (e *Engine) onTick() {
	e.refresh = true
	if e.leaving {
		return
	}
	for _, t := range e.topics {
		t.routesAsked = false
		for _, h := range t.holds {
			if h.state == waiting && h.want {
				h.refused = false
				e.obtain(t, h)
			}
		}
		if e.cfg.Broken.NoHealing && t.last != nil {
			continue
		}
		if t.fetchSeq != 0 || t.last == nil || t.failed || t.told != t.inputs {
			t.fetchSeq = 0
			e.fetch(t, "tick")
		}
	}
}

// flush sends what the Step has collected. Reports go before releases, so that
// "not owned" is on its way before the queue is free.
func (e *Engine) flush() {
	if e.reach {
		e.sendReach()
	}
	topics := e.concerned()
	for _, t := range topics {
		e.sendReport(t)
	}
	for _, t := range topics {
		e.sendFetch(t)
	}
	e.sendLeases()
	if e.leaving && e.leaveDone() {
		return
	}
	if e.compact(topics); e.wide {
		topics = e.topics
	}
	e.wakeTopics(topics)
	e.reconcile()
	if e.refresh {
		e.refresh = false
		e.emit(RefreshRoutes{})
	}
	e.sendWake()
}

// compact forgets free queues, and topics that are not subscribed any more.
func (e *Engine) compact(topics []*topic) {
	over := false
	for _, t := range topics {
		if t.freed {
			t.freed = false
			t.holds = slices.DeleteFunc(t.holds, func(h *hold) bool { return h.state == free })
		}
		over = over || !t.subscribed && len(t.holds) == 0
	}
	if over {
		e.topics = slices.DeleteFunc(e.topics, func(t *topic) bool { return !t.subscribed && len(t.holds) == 0 })
	}
}

// wakeTopics keeps topicsAt right when the times of some topics have changed.
func (e *Engine) wakeTopics(changed []*topic) {
	stale := e.wide
	for _, t := range changed {
		was := t.due
		if t.due = sooner(t.patienceAt, t.claimUntil); !t.subscribed && len(t.holds) == 0 {
			t.due = time.Time{} // forgotten
		}
		stale = stale || was.Equal(e.topicsAt) && !t.due.Equal(was)
		e.topicsAt = sooner(e.topicsAt, t.due)
	}
	if !stale {
		return
	}
	e.topicsAt = time.Time{}
	for _, t := range e.topics {
		e.topicsAt = sooner(e.topicsAt, t.due)
	}
}

// sooner returns the earlier of two times, of which the zero time is none.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (e *Engine) sendWake() {
	at := sooner(e.nextTick, e.topicsAt)
	for _, p := range e.peers {
		p.deadlines(func(t time.Time) { at = sooner(at, t) })
	}
	if !at.Equal(e.wake) || !e.now.Before(at) {
		e.wake = at
		e.emit(WakeAt{at})
	}
}

func (e *Engine) emit(eff Effect) { e.out = append(e.out, eff) }

func (e *Engine) send(p *peer, f session.ToBroker) { e.emit(Send{p.name, f}) }

func (e *Engine) peer(name string) *peer {
	i, ok := slices.BinarySearchFunc(e.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
	if !ok {
		return nil
	}
	return e.peers[i]
}

// topic looks a topic up for what may change it: the Step is about it from then on.
func (e *Engine) topic(name string) *topic {
	t := e.find(name)
	if t != nil {
		e.concern(t)
	}
	return t
}

// concern makes the Step one about t.
func (e *Engine) concern(t *topic) {
	if t.step != e.steps {
		t.step = e.steps
		e.near = append(e.near, t)
	}
}

func (e *Engine) find(name string) *topic {
	i, ok := e.topicAt(name)
	if !ok {
		return nil
	}
	return e.topics[i]
}

func (e *Engine) topicAt(name string) (int, bool) {
	return slices.BinarySearchFunc(e.topics, name, func(t *topic, name string) int { return strings.Compare(t.name, name) })
}

// active reports whether the member takes part in sharing t.
func (e *Engine) active(t *topic) bool {
	return t.subscribed && !e.stalled && !e.leaving
}

func (e *Engine) exclusive() bool { return e.cfg.Mode == session.Exclusive }

// fail ends the member at once: nothing is dispatched or said any more.
func (e *Engine) fail(reason session.Reason, text, broker string) {
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.state == owned || h.state == draining {
				e.emit(Lose{h.queue, h.epoch, "the member was refused: " + reason.String()})
			}
		}
	}
	for _, p := range e.peers {
		e.emit(Disconnect{p.name})
	}
	e.emit(Failed{reason, text, broker})
	e.ended = true
}
