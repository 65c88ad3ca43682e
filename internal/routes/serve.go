package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/route"
)

// maxAnswer bounds one message of a name server, in bytes.
const maxAnswer = 256 << 20

// dialOptions are those of every connection to a name server. The dialer gets
// the name at every attempt, so that it is resolved anew and all its addresses
// are tried.
func dialOptions(d Dialer) []grpc.DialOption {
	if d == nil {
		d = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", address)
		}
	}
	return append(rpcerr.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return d(ctx, address) }),
		grpc.WithConnectParams(grpc.ConnectParams{
			// Short: serve makes the pauses, and two of them would add up.
			Backoff:           backoff.Config{BaseDelay: backoffBase, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * backoffBase},
			MinConnectTimeout: dialTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
	)
}

// Dial returns a connection to a name server, made as a Watcher's. It does not
// wait for the server.
func Dial(address string, d Dialer, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+address, append(dialOptions(d), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial name server %s: %w", address, err)
	}
	return conn, nil
}

// serve watches one name server until ctx ends, which is also when the server is
// no longer in the list.
func (w *Watcher) serve(ctx context.Context, address string) {
	w.mu.Lock()
	w.servers[address] = &status{}
	w.mu.Unlock()
	defer w.remove(address)

	conn, err := Dial(address, w.dialer, w.dial...)
	if err != nil {
		w.failed(address, err, true)
		<-ctx.Done() // nothing but another list helps
		return
	}
	defer func() { _ = conn.Close() }() // fails only if it is closed

	heard := time.Now() // or when trying began
	pause := backoffBase
	for ctx.Err() == nil {
		opened := time.Now()
		answered, err := w.watch(ctx, client(conn), address)
		switch {
		case ctx.Err() != nil:
			return
		case answered:
			heard, pause = time.Now(), backoffBase
		}
		if errors.Is(err, errAgain) {
			if rest := refreshDistance - time.Since(opened); rest > 0 && !sleep(ctx, rest) {
				return
			}
			continue
		}
		w.failed(address, err, time.Since(heard) >= SilenceLimit)
		if errors.Is(err, errSilent) { // nobody may be at the other end of this connection
			_ = conn.Close()
			if conn, err = Dial(address, w.dialer, w.dial...); err != nil {
				w.failed(address, err, true)
				<-ctx.Done()
				return
			}
		}
		w.pause(ctx, conn, jitter(pause))
		pause = min(pause*2, backoffMax)
	}
}

// pause waits before the next attempt, which a refresh brings forward.
func (w *Watcher) pause(ctx context.Context, conn *grpc.ClientConn, d time.Duration) {
	w.mu.Lock()
	again := w.again
	w.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-again:
		conn.ResetConnectBackoff()
		sleep(ctx, min(d, refreshDistance))
	}
}

// watch opens a watch and applies what it says until it ends, which is an error
// or errAgain. answered tells whether the server said anything.
func (w *Watcher) watch(ctx context.Context, c tacitv1.NameServerServiceClient, address string) (answered bool, err error) {
	req, again, err := w.request(ctx)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	stream, err := c.WatchRoutes(ctx, req)
	if err != nil {
		return false, fmt.Errorf("watch routes: %w", err)
	}
	first := make(chan struct{})
	wg.Go(func() { // ends with ctx
		timer := time.NewTimer(FirstAnswer)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			cancel(errSilent)
			return
		case <-first:
		}
		timer.Reset(jitter(w.reread))
		select {
		case <-ctx.Done():
		case <-timer.C:
			cancel(errAgain)
		case <-again: // a wish that came before the first answer waits for it
			cancel(errAgain)
		}
	})
	for {
		m, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return answered, fmt.Errorf("watch routes: %w", err)
		}
		u, err := wire.WatchUpdate(m)
		if err != nil {
			return answered, fmt.Errorf("watch routes: %w", err)
		}
		if w.apply(address, u); !answered {
			answered = true
			close(first)
		}
	}
}

// request waits until there is something to ask for. again is closed when there
// is something else to ask for.
func (w *Watcher) request(ctx context.Context) (req *tacitv1.WatchRoutesRequest, again chan struct{}, err error) {
	for {
		w.mu.Lock()
		req, again = &tacitv1.WatchRoutesRequest{All: w.all}, w.again
		if !w.all {
			for name := range w.topics {
				req.Topics = append(req.Topics, name)
			}
		}
		w.mu.Unlock()
		if req.GetAll() || len(req.GetTopics()) > 0 {
			return req, again, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-again:
		}
	}
}

// apply takes what a name server said.
func (w *Watcher) apply(address string, u route.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[address]
	if s.err != nil {
		w.log.Info("name server is back", zap.String("address", address))
	}
	s.tried, s.heard, s.err = true, true, nil
	if !w.all { // an answer may cross with a change of interest
		kept := u.Topics[:0]
		for _, t := range u.Topics {
			if w.topics[t.Name] {
				kept = append(kept, t)
			}
		}
		u.Topics = kept
	}
	changed := w.table.Apply(address, u)
	switch {
	case !u.Warming:
		s.warming = time.Time{}
	case s.warming.IsZero():
		s.warming = time.Now()
	case time.Since(s.warming) >= WarmLimit:
		changed = append(changed, w.table.Settle(address)...)
	}
	w.told(changed)
}

// failed notes that a name server gives no answer, for long if silent.
func (w *Watcher) failed(address string, err error, silent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[address]
	if s.err == nil {
		text := "name server does not answer, trying again"
		if s.heard {
			text = "name server does not answer, what it said stays, trying again"
		}
		w.log.Warn(text, zap.String("address", address), zap.Error(err))
	}
	s.tried, s.err = true, err
	var changed []string
	if silent {
		changed = w.table.Unreachable(address)
	}
	w.told(changed)
}

// remove forgets a name server that left the list.
func (w *Watcher) remove(address string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.servers, address)
	w.told(w.table.Remove(address))
}
