package client

import (
	"slices"
	"strings"
	"sync"

	"github.com/tacitmq/tacit/route"
)

// feed tells of the routes of topics. What it learns it tells a hub.
type feed interface {
	SetTopics(topics []string)
	// Refresh asks all name servers again now.
	Refresh()
	// Ready returns nil once a name server has answered.
	Ready() error
	Close()
}

// hub shares one feed among all who watch routes, and remembers the addresses of
// brokers: that of a broker which left the routes of all topics watched is still
// needed for goodbyes.
type hub struct {
	feed feed
	// setting is held while the topics are collected and told to the feed: what was
	// collected earlier must not be told later.
	setting sync.Mutex

	mu        sync.Mutex
	watches   map[*watch]struct{}
	routes    map[string]route.Topic
	addresses map[string]route.Broker
}

func newHub() *hub {
	return &hub{watches: make(map[*watch]struct{}), routes: make(map[string]route.Topic), addresses: make(map[string]route.Broker)}
}

// learn takes the routes of some topics as they are now: with hosts, or known
// not to exist. Others stay as they are.
func (h *hub) learn(topics []route.Topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	touched := make(map[string]bool)
	for _, t := range topics {
		old, known := h.routes[t.Name]
		if !known || !old.Equal(t) || !sameStamps(old, t) {
			touched[t.Name] = true
		}
		h.routes[t.Name] = t
		for _, host := range t.Hosts {
			if have, ok := h.addresses[host.Broker.Name]; !ok || route.CompareBrokers(host.Broker, have) > 0 {
				h.addresses[host.Broker.Name] = host.Broker
			}
		}
	}
	for w := range h.watches {
		for t := range touched {
			if w.topics[t] {
				w.changed()
				break
			}
		}
	}
}

// sameStamps tells whether two equal routes were also said at the same time: a
// broker that started again is worth knowing of.
func sameStamps(a, b route.Topic) bool {
	for i := range a.Hosts {
		h, ok := b.Host(a.Hosts[i].Broker.Name)
		if !ok || h.Broker.Stamp.Epoch != a.Hosts[i].Broker.Stamp.Epoch {
			return false
		}
	}
	return true
}

// address returns where a broker is.
func (h *hub) address(broker string) (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b, ok := h.addresses[broker]
	return b.Address, ok
}

// retopic tells the feed what is watched now and forgets the rest.
func (h *hub) retopic() {
	h.setting.Lock()
	defer h.setting.Unlock()
	h.mu.Lock()
	all := make(map[string]bool)
	for w := range h.watches {
		for t := range w.topics {
			all[t] = true
		}
	}
	for t := range h.routes {
		if !all[t] {
			delete(h.routes, t)
		}
	}
	topics := make([]string, 0, len(all))
	for t := range all {
		topics = append(topics, t)
	}
	slices.Sort(topics)
	h.mu.Unlock()
	h.feed.SetTopics(topics)
}

// watch is one user's interest. Guarded by hub.mu.
type watch struct {
	hub     *hub
	changed func()
	topics  map[string]bool
}

func (c *cluster) Watch(changed func()) Watch {
	w := &watch{hub: c.hub, changed: changed}
	c.hub.mu.Lock()
	c.hub.watches[w] = struct{}{}
	c.hub.mu.Unlock()
	return w
}

func (w *watch) SetTopics(topics []string) {
	w.hub.mu.Lock()
	w.topics = make(map[string]bool, len(topics))
	for _, t := range topics {
		w.topics[t] = true
	}
	w.hub.mu.Unlock()
	w.changed() // others may have asked for these topics before
	w.hub.retopic()
}

func (w *watch) Routes() []route.Topic {
	w.hub.mu.Lock()
	defer w.hub.mu.Unlock()
	out := make([]route.Topic, 0, len(w.topics))
	for t := range w.topics {
		if r, ok := w.hub.routes[t]; ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b route.Topic) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (w *watch) Refresh() { w.hub.feed.Refresh() }

func (w *watch) Ready() error { return w.hub.feed.Ready() }

func (w *watch) Close() {
	w.hub.mu.Lock()
	delete(w.hub.watches, w)
	w.hub.mu.Unlock()
	w.hub.retopic()
}
