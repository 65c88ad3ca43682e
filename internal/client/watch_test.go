package client

import (
	"slices"
	"sync"
	"testing"
	"time"
)

// racingFeed takes its first topics in only when others have been, if those can.
type racingFeed struct {
	mu     sync.Mutex
	topics []string
	begun  bool
	other  func()
}

func (f *racingFeed) SetTopics(topics []string) {
	f.mu.Lock()
	first := !f.begun
	f.begun = true
	f.mu.Unlock()
	if first {
		f.other()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics = topics
}

func (*racingFeed) Refresh()     {}
func (*racingFeed) Ready() error { return nil }
func (*racingFeed) Close()       {}

// Users of one client start and end at the same time: none may take another's topics away.
func TestTopicsOfUsersThatStartTogetherAreAllWatched(t *testing.T) {
	h := newHub()
	c := &cluster{hub: h}
	a, b := c.Watch(func() {}), c.Watch(func() {})
	var wg sync.WaitGroup
	f := &racingFeed{other: func() {
		over := make(chan struct{})
		wg.Go(func() {
			defer close(over)
			b.SetTopics([]string{"b"})
		})
		select {
		case <-over:
		case <-time.After(50 * time.Millisecond): // it waits for us
		}
	}}
	h.feed = f
	a.SetTopics([]string{"a"})
	wg.Wait()
	if !slices.Equal(f.topics, []string{"a", "b"}) {
		t.Errorf("the feed watches %q", f.topics)
	}
}
