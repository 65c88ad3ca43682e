package routes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/wire"
)

// ErrNoAddresses says that a list of name servers is empty or is no such list.
var ErrNoAddresses = errors.New("no name server addresses")

// Source tells the addresses of the name servers. It is asked again and again,
// so that name servers can be added, moved and removed while programs run.
type Source interface {
	// Addresses returns the host:port of every name server. An error keeps the
	// list in use that was returned last.
	Addresses(ctx context.Context) ([]string, error)
}

// maxList bounds a list of addresses in a file or answer, in bytes.
const maxList = 64 << 10

// Parse returns the Source that spec names: "file:PATH", an http or https URL,
// or the addresses themselves, separated by commas or semicolons.
func Parse(spec string) (Source, error) {
	switch {
	case strings.HasPrefix(spec, "file:"):
		return File(strings.TrimPrefix(spec, "file:")), nil
	case strings.HasPrefix(spec, "http://"), strings.HasPrefix(spec, "https://"):
		return URL(spec, http.DefaultClient), nil
	}
	addresses, err := parseList(spec)
	if err != nil {
		return nil, err
	}
	return Static(addresses...), nil
}

// ParseAll is [Parse] for a flag that may be repeated: one file or URL, or any
// number of addresses.
func ParseAll(specs []string) (Source, error) { return Parse(strings.Join(specs, ",")) }

// Static is a list that never changes.
func Static(addresses ...string) Source { return static(addresses) }

type static []string

func (s static) Addresses(context.Context) ([]string, error) {
	if len(s) == 0 {
		return nil, ErrNoAddresses
	}
	return s, nil
}

// File reads the list from a file: addresses separated by commas, semicolons,
// blanks or line ends; lines that begin with # are comments.
func File(name string) Source { return file(name) }

type file string

func (f file) Addresses(context.Context) ([]string, error) {
	text, err := os.ReadFile(string(f))
	if err != nil {
		return nil, fmt.Errorf("read name server list: %w", err)
	}
	addresses, err := parseList(string(text))
	if err != nil {
		return nil, fmt.Errorf("read name server list %s: %w", string(f), err)
	}
	return addresses, nil
}

// URL fetches the list over HTTP, in the form of [File]. Only an answer with
// status 200 that is such a list counts.
func URL(url string, client *http.Client) Source { return &address{url, client} }

type address struct {
	url    string
	client *http.Client
}

func (a *address) Addresses(ctx context.Context) (_ []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch name server list: %w", err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("fetch name server list: %w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch name server list %s: answered %s", a.url, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxList))
	if err != nil {
		return nil, fmt.Errorf("fetch name server list %s: %w", a.url, err)
	}
	addresses, err := parseList(string(text))
	if err != nil {
		return nil, fmt.Errorf("fetch name server list %s: %w", a.url, err)
	}
	return addresses, nil
}

// parseList reads addresses; one that is none makes the whole text no list.
func parseList(text string) ([]string, error) {
	if len(text) > maxList {
		return nil, fmt.Errorf("list of %d bytes: must be at most %d", len(text), maxList)
	}
	var out []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "#") {
			continue
		}
		for _, a := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(",; \t\r\n", r) }) {
			if err := wire.CheckAddress(a); err != nil {
				return nil, fmt.Errorf("name server %w", err)
			}
			if !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	if len(out) == 0 {
		return nil, ErrNoAddresses
	}
	return out, nil
}

// Each runs f for every address of the source and, while ctx lives, for every
// address that is new in it; the context of f ends when its address leaves the
// source or ctx ends. f runs once at a time per address; if it returns early it
// is not run again. A source that fails keeps the last good list in use and is
// logged once until it works again. Each returns when ctx has ended and every f
// has returned. every is the time between two looks at the source, 0 means 10 s.
func Each(ctx context.Context, source Source, every time.Duration, log *zap.Logger, f func(ctx context.Context, address string)) {
	if every <= 0 {
		every = DefaultListInterval
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	type run struct {
		stop context.CancelFunc
		done chan struct{}
	}
	running := make(map[string]*run)
	defer func() {
		for _, r := range running {
			r.stop()
		}
	}()
	failing := false
	for {
		addresses, err := source.Addresses(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && len(addresses) == 0:
			err = ErrNoAddresses
			fallthrough
		case err != nil:
			if !failing {
				log.Warn("keep the last list of name servers", zap.Error(err))
			}
			failing = true
		default:
			failing = false
			for a, r := range running {
				if !slices.Contains(addresses, a) {
					r.stop()
					<-r.done // its words must not come after those of a successor
					delete(running, a)
				}
			}
			for _, a := range addresses {
				if running[a] != nil {
					continue
				}
				one, stop := context.WithCancel(ctx)
				r := &run{stop: stop, done: make(chan struct{})}
				running[a] = r
				wg.Go(func() {
					defer close(r.done)
					f(one, a)
				})
			}
		}
		if !sleep(ctx, jitter(every)) {
			return
		}
	}
}

// jitter spreads d by a tenth to both sides.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // no secret
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
