package rebalance

import (
	"slices"

	"github.com/tacitmq/tacit/session"
)

// subscribe replaces the subscriptions. A bad list is the shell's mistake and
// changes nothing.
func (e *Engine) subscribe(list []session.Subscription) {
	subs, err := sortSubscriptions(list)
	if err != nil || e.leaving || slices.Equal(subs, e.subs) {
		return
	}
	e.subs = subs
	for _, t := range e.topics {
		if t.subscribed && !slices.ContainsFunc(subs, func(s session.Subscription) bool { return s.Topic == t.name }) {
			t.subscribed = false
			e.letGo(t)
			t.forget()
		}
	}
	for _, s := range subs {
		i, ok := e.topicAt(s.Topic)
		switch {
		case !ok:
			e.topics = slices.Insert(e.topics, i, &topic{name: s.Topic, subscribed: true})
			e.refresh = true
		case !e.topics[i].subscribed:
			e.topics[i].subscribed = true
			e.refresh = true
			if e.cfg.Mode == session.Broadcasting && e.active(e.topics[i]) {
				e.broadcast(e.topics[i])
			}
		}
	}
	e.route()
	if !e.stalled {
		e.sendSubscriptions()
	}
}

func (e *Engine) sendSubscriptions() {
	for _, p := range e.peers {
		if p.phase == welcomed || p.phase == greeting {
			e.send(p, session.Subscribe{Subscriptions: e.subscriptions()})
		}
	}
}

// stall gives everything up: others read while our handlers are stuck.
func (e *Engine) stall() {
	if e.stalled || e.leaving {
		return
	}
	e.stalled = true
	for _, t := range e.topics {
		e.letGo(t)
		t.forget()
	}
	e.sendSubscriptions()
}

func (e *Engine) recovered() {
	if !e.stalled || e.leaving {
		return
	}
	e.stalled = false
	e.sendSubscriptions()
	if e.cfg.Mode == session.Broadcasting {
		for _, t := range e.topics {
			if e.active(t) {
				e.broadcast(t)
			}
		}
	}
}
