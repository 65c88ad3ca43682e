package rebalance

import (
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// topic is what the member knows and holds of a subscribed topic, or of one it
// is letting go of.
type topic struct {
	name       string
	subscribed bool
	brokers    []string         // by our own routes: whom to connect to
	queues     []allocate.Queue // by our own routes: for Broadcasting only
	rank       []string         // of brokers as view brokers
	holds      []*hold          // sorted by queue
	freed      bool             // some hold is free

	using   string   // view broker in use
	session uint64   // with it
	warming []string // brokers whose view cannot be served yet

	last     *basis         // what the last good pass was computed from
	inputs   session.Digest // what the last pass started from, good or not
	owners   session.Digest
	quiet    session.Digest // the ownership that was answered with a full report
	told     session.Digest // inputs by the last heartbeat answer
	expected session.Digest // the ownership that the last good pass expects
	failed   bool           // the last pass had an error
	passed   Pass           // the last one

	fetchSeq uint64 // outstanding; 0 is none
	fetchFor string // its trigger
	fetchDue bool   // not sent yet

	full     bool // the report due replaces what was reported
	dirty    bool // a report is due though no queue changed
	touched  []allocate.Queue
	draining bool // as reported

	patience   time.Duration
	patienceAt time.Time
	recount    bool // requests were answered

	claimUntil  time.Time
	routesAsked bool

	step uint64    // the last that was about it
	due  time.Time // of patience or claims, as counted in Engine.topicsAt
}

// basis is a view as a pass used it, with the ownership the pass expects: what
// the next notice is applied to.
type basis struct {
	version session.Version
	queues  []allocate.Queue
	members []session.Member // without Owned
	ids     []string
	owner   []int32 // expected, of each queue: the place among members, -1 for none
}

func (t *topic) isWarming(broker string) bool { return slices.Contains(t.warming, broker) }

func (t *topic) setWarming(broker string, on bool) {
	i := slices.Index(t.warming, broker)
	switch {
	case on && i < 0:
		t.warming = append(t.warming, broker)
	case !on && i >= 0:
		t.warming = slices.Delete(t.warming, i, i+1)
	}
}

// forget drops all that is known of the topic's group.
func (t *topic) forget() {
	t.using, t.session, t.warming = "", 0, nil
	t.last, t.inputs, t.owners, t.told, t.expected, t.failed = nil, 0, 0, 0, 0, false
	t.fetchSeq, t.fetchDue = 0, false
	t.full, t.dirty, t.touched, t.quiet = false, false, nil, 0
}

// routes takes what the name servers say.
func (e *Engine) routes(ev Routes) {
	for _, r := range ev.Topics {
		t := e.topic(r.Name)
		if t == nil {
			continue
		}
		t.routesAsked = false
		brokers := slices.Clone(r.Brokers)
		slices.Sort(brokers)
		brokers = slices.Compact(brokers)
		if len(brokers) == 0 {
			e.gone(t)
			continue
		}
		if !slices.Equal(brokers, t.brokers) {
			t.brokers = brokers
			t.rank = session.RankBrokers(e.cfg.Group, t.name, brokers)
			if e.cfg.Broken.RandomViewBroker {
				n := int(allocate.NewHash().String(e.cfg.ClientID).String(t.name).Sum64() % uint64(len(brokers)))
				t.rank = slices.Concat(t.rank[n:], t.rank[:n])
			}
		}
		t.queues = slices.Compact(sortQueues(slices.Clone(r.Queues)))
		if e.cfg.Mode == session.Broadcasting && e.active(t) {
			e.broadcast(t)
		}
	}
	if e.cfg.Broken.DropOnEmptyRoute {
		for _, t := range e.topics {
			if !slices.ContainsFunc(ev.Topics, func(r Topic) bool { return r.Name == t.name }) {
				e.gone(t)
			}
		}
	}
	e.route()
}

// gone lets a deleted topic go; it may come back as another one of that name.
func (e *Engine) gone(t *topic) {
	t.brokers, t.queues, t.rank = nil, nil, nil
	e.letGo(t)
	t.forget()
}

// broadcast takes every queue: there is no share and no lease.
func (e *Engine) broadcast(t *topic) {
	p := Pass{Topic: t.name, Trigger: "routes", Strategy: "broadcasting", Members: 1, Queues: len(t.queues)}
	e.apply(t, t.queues, &p)
	if len(p.Gained)+len(p.Given) > 0 {
		e.passedTopic(t, p)
	}
}
