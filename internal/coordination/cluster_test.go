package coordination_test

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/allocate/assignor"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/consumer/coordinated"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/coordination"
)

type task struct {
	at  time.Time
	seq int
	do  func()
}

type tasks []task

func (t tasks) Len() int { return len(t) }
func (t tasks) Less(i, j int) bool {
	return t[i].at.Before(t[j].at) || t[i].at.Equal(t[j].at) && t[i].seq < t[j].seq
}
func (t tasks) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *tasks) Push(x any)   { *t = append(*t, x.(task)) }
func (t *tasks) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

// net is members and coordinators in virtual time.
type net struct {
	t       testing.TB
	rng     *rand.Rand
	now     time.Time
	tasks   tasks
	seq     int
	brokers map[string]*host
	members []*mate
	queues  []allocate.Queue
	base    coordinated.Config
	drain   time.Duration
	calls   map[string]int // requests sent, by type
	gap     map[allocate.Queue]time.Time
	moved   int
	last    map[allocate.Queue]string
	worst   time.Duration
	changed time.Time
}

// host is a broker: a coordinator and its disk.
type host struct {
	n    *net
	name string
	c    *coordinator.Coordinator
	up   bool
	life int
	wake int
	disk map[coordinator.Key]coordinator.Record
	back map[uint64]func(coordination.Answer)
	id   uint64
	// streams tell members that wait that their stream broke.
	streams []func()
}

// mate is a member.
type mate struct {
	n     *net
	name  string
	e     *coordinated.Engine
	life  int
	up    bool
	wake  int
	owned map[allocate.Queue]coordination.Generation
	left  bool
	fail  string
}

func newNet(t testing.TB, seed uint64, base coordinated.Config, queues, brokers int) *net {
	n := &net{
		t: t, rng: rand.New(rand.NewPCG(seed, 5)), now: time.Unix(1_000_000, 0), brokers: map[string]*host{}, base: base,
		calls: map[string]int{}, gap: map[allocate.Queue]time.Time{}, last: map[allocate.Queue]string{},
	}
	n.base.Group, n.base.Topics = "g", []string{"t"}
	n.base.Jitter = n.rng.Float64
	for id := range int32(queues) {
		n.queues = append(n.queues, allocate.Queue{Topic: "t", Broker: "q", ID: id})
	}
	for i := range brokers {
		h := &host{n: n, name: fmt.Sprint("b", i+1), disk: map[coordinator.Key]coordinator.Record{}}
		n.brokers[h.name] = h
		h.start()
	}
	n.hosting()
	return n
}

func (n *net) after(d time.Duration, do func()) {
	n.seq++
	heap.Push(&n.tasks, task{n.now.Add(d), n.seq, do})
}

func (n *net) run(d time.Duration) {
	end := n.now.Add(d)
	for len(n.tasks) > 0 && !n.tasks[0].at.After(end) {
		t := heap.Pop(&n.tasks).(task)
		n.now = t.at
		t.do()
	}
	n.now = end
}

func (n *net) delay() time.Duration {
	return 100*time.Microsecond + time.Duration(n.rng.IntN(400))*time.Microsecond
}

func (n *net) live() []string {
	var out []string
	for name, h := range n.brokers {
		if h.up {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (n *net) hosting() {
	for _, name := range n.live() {
		n.brokers[name].step(coordinator.Hosting{Brokers: n.live()})
	}
}

func (h *host) start() {
	h.life++
	h.up, h.back = true, map[uint64]func(coordination.Answer){}
	cfg := coordinator.Default()
	cfg.Broker, cfg.BrokerEpoch = h.name, uint64(h.life)
	ids := 0
	cfg.NewID = func() string { ids++; return h.name + "-" + strconv.Itoa(h.life) + "-" + strconv.Itoa(ids) }
	var records []coordinator.Record
	for _, r := range h.disk {
		records = append(records, r)
	}
	c, out, err := coordinator.New(cfg, records, h.n.now)
	if err != nil {
		h.n.t.Fatal(err)
	}
	h.c = c
	h.perform(out)
}

// stop ends the process; every stream to it breaks.
func (h *host) stop() {
	h.up = false
	h.life++
	for _, broken := range h.streams {
		broken()
	}
	h.streams = nil
}

func (h *host) step(ev coordinator.Event) {
	if h.up {
		h.perform(h.c.Step(h.n.now, ev))
	}
}

func (h *host) perform(out []coordinator.Effect) {
	life := h.life
	later := func(d time.Duration, do func()) {
		h.n.after(d, func() {
			if h.up && h.life == life {
				do()
			}
		})
	}
	for _, eff := range out {
		switch eff := eff.(type) {
		case coordinator.WakeAt:
			h.wake++
			wake := h.wake
			later(max(0, eff.At.Sub(h.n.now)), func() {
				if h.wake == wake {
					h.step(coordinator.Wake{})
				}
			})
		case coordinator.Answer:
			if back := h.back[eff.ID]; back != nil {
				delete(h.back, eff.ID)
				h.n.after(h.n.delay(), func() { back(eff.Answer) })
			}
		case coordinator.Persist:
			later(time.Millisecond, func() {
				for _, r := range eff.Put {
					h.disk[r.Key()] = r
				}
				for _, k := range eff.Delete {
					delete(h.disk, k)
				}
				h.step(coordinator.Persisted{ID: eff.ID})
			})
		case coordinator.Watch:
			later(0, func() { h.step(coordinator.Topics{Queues: map[string][]allocate.Queue{"t": h.n.queues}}) })
		case coordinator.Happened:
		}
	}
}

// join starts a member; an instance id makes it a static one.
func (n *net) join(instance string) {
	m := &mate{n: n, name: fmt.Sprintf("m%03d", len(n.members)+1)}
	n.members = append(n.members, m)
	m.start(instance)
}

func (m *mate) start(instance string) {
	cfg := m.n.base
	cfg.ClientID, cfg.Instance = m.name, instance
	e, err := coordinated.New(cfg)
	if err != nil {
		m.n.t.Fatal(err)
	}
	m.life++
	m.e, m.up, m.left, m.owned = e, true, false, map[allocate.Queue]coordination.Generation{}
	m.step(rebalance.Wake{})
	m.routes()
}

func (m *mate) routes() {
	m.step(rebalance.Routes{Topics: []rebalance.Topic{{Name: "t", Brokers: []string{"q"}, Queues: m.n.queues}}})
}

// crash ends the process without a word.
func (m *mate) crash() {
	m.up = false
	for q := range m.owned {
		m.free(q)
	}
}

func (m *mate) leave() { m.step(rebalance.Leave{}) }

func (m *mate) take(q allocate.Queue, e coordination.Generation) {
	n := m.n
	for _, o := range n.members {
		if _, ok := o.owned[q]; ok && o != m && o.up {
			n.t.Errorf("%v: %s takes %v, which %s has", n.now, m.name, q, o.name)
		}
	}
	m.owned[q] = e
	if at, ok := n.gap[q]; ok {
		n.worst = max(n.worst, n.now.Sub(at))
		delete(n.gap, q)
	}
	if was := n.last[q]; was != "" && was != m.name {
		n.moved++
	}
	n.last[q], n.changed = m.name, n.now
}

func (m *mate) free(q allocate.Queue) {
	delete(m.owned, q)
	m.n.gap[q], m.n.changed = m.n.now, m.n.now
}

func (m *mate) step(ev rebalance.Event) {
	if !m.up {
		return
	}
	n, life := m.n, m.life
	do := func(d time.Duration, f func()) {
		n.after(d, func() {
			if m.up && m.life == life {
				f()
			}
		})
	}
	for _, eff := range m.e.Step(n.now, ev) {
		switch eff := eff.(type) {
		case rebalance.WakeAt:
			m.wake++
			wake := m.wake
			do(max(0, eff.At.Sub(n.now)), func() {
				if m.wake == wake {
					m.step(rebalance.Wake{})
				}
			})
		case rebalance.FindCoordinator:
			n.calls["FindCoordinator"]++
			do(n.delay(), func() { m.step(rebalance.Coordinator{Broker: coordination.Host("g", n.live())}) })
		case rebalance.Ask:
			m.ask(eff, do)
		case rebalance.Assign:
			m.take(eff.Queue, eff.Epoch)
		case rebalance.Revoke:
			m.free(eff.Queue)
			do(n.drain, func() { m.step(rebalance.Drained{Queue: eff.Queue, Epoch: eff.Epoch}) })
		case rebalance.Lose:
			if _, ok := m.owned[eff.Queue]; ok {
				m.free(eff.Queue)
			}
		case rebalance.Left:
			m.left, m.up = true, false
			if len(m.owned) > 0 {
				n.t.Errorf("%s left with %d queues", m.name, len(m.owned))
			}
		case rebalance.Failed:
			m.fail, m.up = eff.Text, false
		default:
		}
	}
}

func (m *mate) ask(a rebalance.Ask, do func(time.Duration, func())) {
	n := m.n
	n.calls[fmt.Sprintf("%T", a.Request)]++
	h := n.brokers[a.Broker]
	fails := func() { do(n.delay(), func() { m.step(rebalance.AskFailed{ID: a.ID}) }) }
	n.after(n.delay(), func() {
		if !h.up {
			fails()
			return
		}
		h.id++
		id, life := h.id, h.life
		h.back[id] = func(ans coordination.Answer) {
			if h.life == life {
				do(0, func() { m.step(rebalance.Answered{ID: a.ID, Answer: ans}) })
			}
		}
		h.step(coordinator.Request{ID: id, Request: a.Request})
	})
	h.streams = append(h.streams, fails)
}

// unsettled says why the group is not settled.
func (n *net) unsettled() string {
	owner := map[allocate.Queue]string{}
	low, high, members := len(n.queues), 0, 0
	for _, m := range n.members {
		if !m.up {
			continue
		}
		members++
		low, high = min(low, len(m.owned)), max(high, len(m.owned))
		for q := range m.owned {
			if owner[q] != "" {
				return fmt.Sprintf("%v has two owners", q)
			}
			owner[q] = m.name
		}
	}
	switch {
	case members == 0:
		return ""
	case len(owner) != len(n.queues):
		return fmt.Sprintf("%d of %d queues have an owner", len(owner), len(n.queues))
	case high-low > 1:
		return fmt.Sprintf("shares are %d to %d", low, high)
	}
	return ""
}

func (n *net) settle(t testing.TB, what string, d time.Duration) {
	t.Helper()
	n.run(d)
	if why := n.unsettled(); why != "" {
		t.Fatalf("%s: %s", what, why)
	}
}

func models() map[string]coordinated.Config {
	classic := func(a assignor.Assignor) coordinated.Config {
		return coordinated.Config{Assignors: []coordinated.Assignor{coordinated.Of(a)}, SessionTimeout: 6 * time.Second, Heartbeat: 2 * time.Second}
	}
	return map[string]coordinated.Config{
		"eager-range":        classic(assignor.Range()),
		"eager-roundrobin":   classic(assignor.RoundRobin()),
		"eager-sticky":       classic(assignor.Sticky()),
		"cooperative-sticky": classic(assignor.CooperativeSticky()),
		"server-side":        {ServerSide: true},
	}
}
