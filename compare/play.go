package compare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// topic is what every group here consumes.
const topic = "T"

// stage is the cluster and group a scenario is played on: simulated or live. Times count
// from the beginning of the run. A stage tells its play of all that it observes.
type stage interface {
	now() time.Duration
	// pass lets time pass until t, or until stop says so after something was told.
	pass(t time.Duration, stop func() bool) error
	// start starts members of these names; static ones have their name for an instance id.
	start(names []string, static bool)
	// leave stops members gracefully. A static member keeps its share.
	leave(names []string)
	// crash kills a member: with its connections cut, or silently.
	crash(name string, silent bool)
	pause(name string, d time.Duration)
	// slow sets how long the member's handlers take at most; 0 for the usual.
	slow(name string, d time.Duration)
	// grow sets the number of queues over all brokers.
	grow(queues int)
	brokers() []string
	stopBroker(name string)
	startBroker(name string)
	// coordinator is the broker that coordinates the group, or whose view counts.
	coordinator() string
	stopNameServer()
	startNameServer()
	// cut takes the network between a member and a broker away; heal gives it back.
	cut(member, broker string)
	heal(member, broker string)
	// queues are those of the brokers that run.
	queues() []allocate.Queue
	// wire and cpu are what was used since the beginning.
	wire() Wire
	cpu() time.Duration
}

// link is between a member and a broker.
type link struct{ member, broker string }

// play is one scenario being played on a stage, with all instruments. The stage calls
// owns, handedOut and handled one at a time, in the order of time.
type play struct {
	stage
	size   Size
	timing timing
	led    *ledger
	tally  *tally

	members []string // that are to have a share, in the order of their coming
	static  bool
	count   int // members ever
	// claims are what members say; what one cannot reach it does not own.
	claims map[string]map[allocate.Queue]bool
	cuts   map[link]bool
	born   map[allocate.Queue]time.Duration
	marks  []Mark
	lags   []LagPoint
	events []EventResult
	err    error // of a wait
	// minimum is the least number of moves for the changes of the event so far.
	minimum int
	// uneven: shares need not be balanced just now.
	uneven bool
}

// timing is how long the group is watched.
type timing struct {
	// quiet is how long the group must have been settled without a change of owner.
	quiet time.Duration
	// detect is the time in which the model finds what is silent; interval the time in
	// which its members hear of something.
	detect, interval time.Duration
}

func newPlay(size Size, timing timing) *play {
	return &play{
		size: size, timing: timing, led: newLedger(), tally: newTally(),
		claims: make(map[string]map[allocate.Queue]bool), cuts: make(map[link]bool), born: make(map[allocate.Queue]time.Duration),
	}
}

// owns is the word of a member, or of who killed it.
func (p *play) owns(at time.Duration, member string, q allocate.Queue, owns bool) {
	if q.Topic != topic {
		return
	}
	c := p.claims[member]
	if c == nil {
		c = make(map[allocate.Queue]bool)
		p.claims[member] = c
	}
	if owns {
		c[q] = true
	} else {
		delete(c, q)
	}
	if owns && !p.cuts[link{member, q.Broker}] {
		p.led.take(q, member, at)
		p.tally.owned(q, member)
	} else {
		p.led.free(q, member, at)
	}
}

// cutOff and reconnect take a member's queues of a broker away, and give them back.
func (p *play) cutOff(member, broker string) {
	p.cuts[link{member, broker}] = true
	p.cut(member, broker)
	for q := range p.claims[member] {
		if q.Broker == broker {
			p.led.free(q, member, p.now())
		}
	}
}

func (p *play) reconnect(member, broker string) {
	delete(p.cuts, link{member, broker})
	p.heal(member, broker)
	for q := range p.claims[member] {
		if q.Broker == broker {
			p.led.take(q, member, p.now())
		}
	}
}

func (p *play) handedOut(member string, q allocate.Queue, offset int64) {
	if q.Topic == topic {
		p.tally.handedOut(member, q, offset)
	}
}

func (p *play) handled(member string, q allocate.Queue, offset int64) {
	if q.Topic == topic {
		p.tally.handled(member, q, offset)
	}
}

// change is one change of who is to have a share, or of the queues: what it needs at
// least is added to the minimum of the event.
func (p *play) change(do func()) {
	before := p.led.owners()
	do()
	p.minimum += allocate.MinimumMoves(before, p.queues(), p.members)
}

// wait lets time pass within an event.
func (p *play) wait(d time.Duration) {
	if err := p.pass(p.now()+d, nil); p.err == nil {
		p.err = err
	}
}

// join starts n more members.
func (p *play) join(n int) {
	names := make([]string, n)
	for i := range names {
		p.count++
		names[i] = fmt.Sprintf("m%05d", p.count)
	}
	p.change(func() {
		p.members = append(p.members, names...)
		p.start(names, p.static)
	})
}

// depart stops members gracefully.
func (p *play) depart(names ...string) {
	p.change(func() {
		p.gone(names...)
		p.leave(names)
	})
}

// gone takes members out of those that are to have a share.
func (p *play) gone(names ...string) {
	p.members = slices.DeleteFunc(p.members, func(m string) bool { return slices.Contains(names, m) })
}

// oldest is the member that came first.
func (p *play) oldest() string { return p.members[0] }

// expect tells the ledger what is to be owned by whom.
func (p *play) expect() {
	queues := p.queues()
	born := make(map[allocate.Queue]time.Duration, len(queues))
	for _, q := range queues {
		if at, ok := p.born[q]; ok {
			born[q] = at
		} else {
			born[q] = p.now()
		}
	}
	p.born = born
	p.led.expect(queues, p.members, !p.uneven)
}

// gather starts the group and waits until it has settled, and been calm. In step its
// members have started at once; spread, over a time in which each beats twice.
func (p *play) gather(phase Phase, set settings, calm time.Duration, rng *rand.Rand) error {
	if phase == Spread {
		gap := 2 * set.heartbeat / time.Duration(p.size.Members)
		for range p.size.Members {
			p.join(1)
			if err := p.pass(p.now()+gap, nil); err != nil {
				return err
			}
		}
	} else {
		p.join(p.size.Members)
	}
	p.expect()
	limit := p.now() + 5*time.Minute
	for p.led.unsettled() != "" {
		if p.now() >= limit {
			return fmt.Errorf("the group of %d does not settle before the first event: %s", p.size.Members, p.led.unsettled())
		}
		changes := p.led.changes
		if err := p.pass(limit, func() bool { return p.led.changes != changes }); err != nil {
			return err
		}
	}
	// The event comes at any moment between two heartbeats.
	return p.pass(p.now()+calm+time.Duration(rng.Int64N(int64(set.heartbeat))), nil)
}

// event is something that happens to the group, and all that follows until it has
// settled again and nothing more is to be expected: at least for so long, and until the
// limit of the scenario.
func (p *play) event(name string, least time.Duration, do func()) error {
	p.minimum = 0
	wire, cpu, seen := p.wire(), p.cpu(), p.tally.counts()
	from := p.now()
	p.marks = append(p.marks, Mark{ms(from), name})
	do()
	if p.err != nil {
		return p.err
	}
	p.expect()
	end := from + least
	limit := end + 2*p.timing.detect + 4*p.timing.interval + 30*time.Second
	var settledAt time.Duration // since when it is, or -1
	why := ""
	look := func() {
		switch why = p.led.unsettled(); {
		case why != "":
			settledAt = -1
		case settledAt < 0:
			settledAt = p.now()
		}
	}
	settledAt = -1
	look()
	for {
		until := limit
		if settledAt >= 0 {
			until = max(end, settledAt+p.timing.quiet)
		}
		if p.now() >= until {
			break
		}
		changes := p.led.changes
		if err := p.pass(min(until, limit), func() bool { return p.led.changes != changes }); err != nil {
			return err
		}
		if p.led.changes != changes {
			look()
			if settledAt >= 0 { // quiet counts from the last change
				settledAt = p.now()
			}
		}
	}
	to := p.now()
	o := p.led.measure(from, to, p.born)
	m := Measures{
		Settled: settledAt >= 0, SettleMS: ms(o.Settle),
		GapTotalMS: ms(o.GapTotal), GapLongestMS: ms(o.GapLongest), GapQueues: o.GapQueues, Stopped: o.Stopped,
		Moved: o.Moved, TwiceTotalMS: ms(o.TwiceTotal), TwiceQueues: o.TwiceQueues,
		Wire: p.wire().minus(wire), WatchedMS: ms(to - from), CPUMS: ms(p.cpu() - cpu),
	}
	if !m.Settled {
		m.Why, m.SettleMS = why, ms(to-from)
	}
	m.Minimum = p.minimum
	m.count(p.tally.counts(), seen)
	p.events = append(p.events, EventResult{Name: name, At: ms(from), Measures: m})
	return nil
}

func (m *Measures) count(now, before counts) {
	m.Repeated, m.OutOfOrder, m.Overrun = now.repeated-before.repeated, now.disordered-before.disordered, now.overrun-before.overrun
	m.Lost = max(0, now.lost-before.lost)
}

func (w *Wire) byMember(bytes int) {
	w.MemberMessages++
	w.MemberBytes += bytes
}

func (w *Wire) byBroker(bytes int) {
	w.BrokerMessages++
	w.BrokerBytes += bytes
}

func (w Wire) minus(o Wire) Wire {
	return Wire{w.MemberMessages - o.MemberMessages, w.MemberBytes - o.MemberBytes, w.BrokerMessages - o.BrokerMessages, w.BrokerBytes - o.BrokerBytes}
}

// chart shows the owners over the time of the run.
func (p *play) chart() *Chart {
	c := &Chart{ToMS: ms(p.now()), Marks: p.marks, Lag: p.lags}
	queues, members := map[allocate.Queue]int{}, map[string]int{}
	all := p.queues()
	slices.SortFunc(all, allocate.Queue.Compare)
	for i, q := range all {
		queues[q] = i
		c.Queues = append(c.Queues, fmt.Sprintf("%s/%d", q.Broker, q.ID))
	}
	for _, s := range p.led.spans {
		i, ok := queues[s.Queue]
		if !ok {
			continue
		}
		if _, ok := members[s.Member]; !ok {
			members[s.Member] = len(c.Members)
			c.Members = append(c.Members, s.Member)
		}
		to := s.To
		if to < 0 {
			to = p.now()
		}
		c.Bars = append(c.Bars, Bar{i, members[s.Member], ms(s.From), ms(to)})
	}
	return c
}
