package nameserver

import (
	"slices"
	"sync"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/nameserver/route"
)

// hub knows who watches what. Publishing marks what changed at each watcher
// concerned and never waits: a slow watcher finds all changes since its last
// message as one.
type hub struct {
	limit int

	mu       sync.Mutex
	watchers map[*watcher]struct{}
	byTopic  map[string]map[*watcher]struct{}
	all      map[*watcher]struct{}
}

// watcher is one open watch.
type watcher struct {
	topics []string
	all    bool
	wake   chan struct{} // capacity 1: something is marked

	// Marks, guarded by hub.mu.
	dirty   map[string]struct{}
	brokers bool
	state   bool
}

func newHub(limit int) *hub {
	return &hub{
		limit: limit, watchers: make(map[*watcher]struct{}),
		byTopic: make(map[string]map[*watcher]struct{}), all: make(map[*watcher]struct{}),
	}
}

// add returns a watcher of the topics, or of everything.
func (h *hub) add(topics []string, all bool) (*watcher, error) {
	w := &watcher{topics: topics, all: all, wake: make(chan struct{}, 1), dirty: make(map[string]struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.watchers) >= h.limit {
		return nil, rpcerr.With(rpcerr.ErrOverloaded, &route.ErrLimit{What: "watches", Limit: h.limit})
	}
	h.watchers[w] = struct{}{}
	if all {
		h.all[w] = struct{}{}
		return w, nil
	}
	for _, t := range topics {
		if h.byTopic[t] == nil {
			h.byTopic[t] = make(map[*watcher]struct{})
		}
		h.byTopic[t][w] = struct{}{}
	}
	return w, nil
}

func (h *hub) remove(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers, w)
	delete(h.all, w)
	for _, t := range w.topics {
		delete(h.byTopic[t], w)
		if len(h.byTopic[t]) == 0 {
			delete(h.byTopic, t)
		}
	}
}

// publish marks a change at those who watch what changed, and wakes all if the
// server's own state did.
func (h *hub) publish(change route.Change, state bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range change.Topics {
		for w := range h.byTopic[t] {
			w.dirty[t] = struct{}{}
			w.poke()
		}
		for w := range h.all {
			w.dirty[t] = struct{}{}
			w.poke()
		}
	}
	if change.Brokers {
		for w := range h.all {
			w.brokers = true
			w.poke()
		}
	}
	if state {
		for w := range h.watchers {
			w.state = true
			w.poke()
		}
	}
}

func (w *watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// take returns the marks, topics sorted, and clears them. marked is false if there
// are none: they went with the ones before.
func (h *hub) take(w *watcher) (topics []string, brokers, marked bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	marked = len(w.dirty) > 0 || w.brokers || w.state
	for t := range w.dirty {
		topics = append(topics, t)
	}
	slices.Sort(topics)
	clear(w.dirty)
	brokers = w.brokers
	w.brokers, w.state = false, false
	return topics, brokers, marked
}

// open is the number of watchers.
func (h *hub) open() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.watchers)
}
