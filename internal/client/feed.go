package client

import (
	"context"
	"fmt"
	"sync"

	"github.com/tacitmq/tacit/internal/routes"
)

// watcher is the feed of routes: all name servers are watched and merged.
type watcher struct {
	*routes.Watcher
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newWatcher(cfg Config, h *hub) (*watcher, error) {
	source, err := routes.ParseAll(cfg.NameServers)
	if err != nil {
		return nil, fmt.Errorf("name servers: %w", err)
	}
	opts := []routes.Option{routes.WithLogger(cfg.Logger), routes.WithNotify(h.learn)}
	if cfg.Dialer != nil {
		opts = append(opts, routes.WithDialer(routes.Dialer(cfg.Dialer)))
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{Watcher: routes.New(source, opts...), cancel: cancel}
	w.wg.Go(func() { _ = w.Run(ctx) }) // Close waits for it; it ends with ctx and without an error
	return w, nil
}

func (w *watcher) SetTopics(topics []string) { w.Watcher.SetTopics(topics...) }

func (w *watcher) Close() {
	w.cancel()
	w.wg.Wait()
}
