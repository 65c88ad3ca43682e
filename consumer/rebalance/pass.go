package rebalance

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

// ErrNoCommonStrategy says that the members of a view support no strategy in
// common: all keep what they have.
var ErrNoCommonStrategy = errors.New("the members have no allocate strategy in common")

// share is the outcome of one run of a strategy.
type share struct {
	strategy string
	given    allocate.Assignment
	owner    []int32 // of each queue, by place among the members; -1 for none
}

// compute runs the strategy that the members agree on: the pure function behind
// every pass and behind [Explain]. Queues and members are sorted and without
// doubles; owner is what [owners] says of them.
func compute(group, topic string, queues []allocate.Queue, members []session.Member, owner []int32, strategies map[string]allocate.Strategy) (share, error) {
	if len(members) == 0 {
		return share{}, allocate.ErrNoMembers
	}
	name := agree(members)
	if name == "" {
		return share{}, ErrNoCommonStrategy
	}
	s := strategies[name]
	if s == nil {
		return share{strategy: name}, fmt.Errorf("%q: %w", name, allocate.ErrUnknownStrategy)
	}
	in := allocate.Input{
		Group:   group,
		Topic:   topic,
		Queues:  queues,
		Members: make([]allocate.Member, len(members)),
	}
	for i := range members {
		m := &members[i]
		in.Members[i].ClientID = m.ClientID
		if j := offer(m, name); j >= 0 {
			in.Members[i].Data = slices.Clone(m.Offers[j].Data)
		}
	}
	setOwned(in.Members, queues, owner)
	given, err := guarded(s, in)
	if err != nil {
		return share{strategy: name}, err
	}
	return share{name, given, ownersIn(queues, members, given)}, nil
}

// agree returns the first strategy, in the order of the smallest client id, that
// all members support.
func agree(members []session.Member) string {
	for _, o := range members[0].Offers {
		all := true
		for i := range members {
			if offer(&members[i], o.Strategy) < 0 {
				all = false
				break
			}
		}
		if all {
			return o.Strategy
		}
	}
	return ""
}

func offer(m *session.Member, name string) int {
	return slices.IndexFunc(m.Offers, func(o session.Offer) bool { return o.Strategy == name })
}

// guarded runs a strategy. The user's code may panic; that must cost its topic a
// pass and nothing else.
func guarded(s allocate.Strategy, in allocate.Input) (out allocate.Assignment, err error) {
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("allocate topic %q: the strategy panicked: %v", in.Topic, r)
		}
	}()
	switch s.(type) {
	case allocate.Sticky, allocate.Rendezvous, allocate.Averagely, allocate.AveragelyByCircle:
		return allocate.Share(s, in)
	}
	return allocate.Share(isolated{s}, in)
}

// isolated gives a strategy a copy of its input: the user's code may scribble on
// it, and the answer is checked against the original.
type isolated struct{ allocate.Strategy }

func (s isolated) Allocate(in allocate.Input) (allocate.Assignment, error) {
	in.Queues = slices.Clone(in.Queues)
	in.Members = slices.Clone(in.Members)
	return s.Strategy.Allocate(in)
}

func nameOf(s allocate.Strategy) (name string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("name of strategy %T: it panicked: %v", s, r)
		}
	}()
	if s == nil {
		return "", errors.New("a strategy is nil")
	}
	if name = s.Name(); name == "" {
		return "", fmt.Errorf("strategy %T has no name", s)
	}
	return name, nil
}

// passView runs a pass on a fetched view.
func (e *Engine) passView(t *topic, trigger string, v session.View) {
	v.Queues = cleanQueues(t.name, v.Queues)
	v.Members = sortMembers(slices.Clone(v.Members))
	owner, _ := owners(v.Queues, v.Members)
	e.pass(t, trigger, v, owner)
}

// pass shares the topic for all members of the view, with its present owners, and
// acts on our part.
func (e *Engine) pass(t *topic, trigger string, v session.View, owner []int32) {
	p := Pass{Topic: t.name, Trigger: trigger, View: v.Version, Members: len(v.Members), Queues: len(v.Queues)}
	t.inputs, t.owners = v.Inputs, v.Owners
	if !e.cfg.Broken.NoHealing {
		t.told = v.Inputs
	}
	t.failed = false
	s, err := compute(e.cfg.Group, t.name, v.Queues, v.Members, owner, e.strategies)
	p.Strategy, p.Err = s.strategy, err
	if err != nil {
		t.failed = true
		p.Expected = t.expected
		if memberAt(v.Members, e.cfg.ClientID) < 0 {
			e.apply(t, nil, &p)
		}
		p.Mine = t.wanted()
		e.passedTopic(t, p)
		return
	}
	t.last = &basis{version: v.Version, queues: v.Queues, owner: s.owner}
	t.last.members = make([]session.Member, len(v.Members))
	t.last.ids = make([]string, len(v.Members))
	for i, m := range v.Members {
		m.Owned = nil
		t.last.members[i], t.last.ids[i] = m, m.ClientID
	}
	p.Expected = session.OwnersDigestOf(t.name, v.Queues, v.Members, s.owner)
	if p.Expected != t.expected {
		t.expected = p.Expected
		t.dirty = true
	}
	if p.Expected == v.Owners {
		for _, h := range t.holds {
			h.wanted = false // settled: whoever waits will see it
		}
	}
	// Left out of the view, we have no part: others take our queues.
	e.apply(t, s.given[e.cfg.ClientID], &p)
	for _, q := range p.Mine {
		if e.peer(q.Broker) == nil && !t.routesAsked {
			t.routesAsked, e.refresh = true, true
		}
	}
	e.passedTopic(t, p)
}

func (e *Engine) passedTopic(t *topic, p Pass) {
	t.passed = p
	e.emit(Passed{p})
}

// wanted lists what the last good pass gives to us.
func (t *topic) wanted() []allocate.Queue {
	var out []allocate.Queue
	for _, h := range t.holds {
		if h.want {
			out = append(out, h.queue)
		}
	}
	return out
}

// apply makes mine, which is sorted, what the member wants of the topic.
func (e *Engine) apply(t *topic, mine []allocate.Queue, p *Pass) {
	p.Mine = mine
	holds := make([]*hold, 0, max(len(mine), len(t.holds)))
	old := t.holds
	for len(old) > 0 || len(mine) > 0 {
		c := 0
		switch {
		case len(mine) == 0:
			c = -1
		case len(old) == 0:
			c = 1
		default:
			c = old[0].queue.Compare(mine[0])
		}
		switch {
		case c < 0: // not ours
			holds = append(holds, old[0])
			old[0].want = false
			old = old[1:]
		case c > 0: // ours and free
			holds = append(holds, &hold{queue: mine[0], want: true})
			mine = mine[1:]
		default:
			holds = append(holds, old[0])
			old[0].want = true
			old, mine = old[1:], mine[1:]
		}
	}
	t.holds = holds
	for _, h := range holds {
		switch {
		case !h.want:
			if e.unwant(t, h) {
				p.Given = append(p.Given, h.queue)
			}
		case h.state == free:
			p.Gained = append(p.Gained, h.queue)
			e.obtain(t, h)
		case h.state == waiting:
			e.obtain(t, h)
		case h.state == withdrawing && e.cfg.Broken.TwoRequests:
			h.state = waiting
			e.obtain(t, h)
		}
	}
}
