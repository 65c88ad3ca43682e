package rebalance

import (
	"slices"
	"strings"

	"github.com/tacitmq/tacit/session"
)

// reconcile keeps a session to every broker of a subscribed topic and to every
// other one whose lease is still held.
func (e *Engine) reconcile() {
	if e.leaving {
		return
	}
	e.peers = slices.DeleteFunc(e.peers, func(p *peer) bool {
		if p.routed || e.holdsAt(p.name) {
			return false
		}
		if p.phase == welcomed {
			e.send(p, session.Goodbye{})
		}
		e.emit(Disconnect{p.name})
		e.reach = e.reach || p.silent > 0 // told with the next change
		return true
	})
}

func (e *Engine) holdsAt(broker string) bool {
	for _, t := range e.topics {
		for _, h := range t.holds {
			if h.queue.Broker == broker && h.state != waiting && h.state != free {
				return true
			}
		}
	}
	return false
}

// route marks the brokers of subscribed topics and connects to new ones.
func (e *Engine) route() {
	for _, p := range e.peers {
		p.routed = false
	}
	for _, t := range e.topics {
		if !t.subscribed {
			continue
		}
		for _, b := range t.brokers {
			e.routePeer(b)
		}
	}
}

func (e *Engine) routePeer(name string) {
	i, ok := slices.BinarySearchFunc(e.peers, name, func(p *peer, name string) int { return strings.Compare(p.name, name) })
	if ok {
		e.peers[i].routed = true
		return
	}
	if e.leaving {
		return
	}
	p := &peer{name: name, routed: true, timeout: e.cfg.SessionTimeout, heard: e.now}
	p.freshBy = e.now.Add(min(firstTry, p.timeout/4))
	e.peers = slices.Insert(e.peers, i, p)
	e.emit(Connect{name})
}
