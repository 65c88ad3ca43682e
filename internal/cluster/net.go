package cluster

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// errCut is the error of connections over a link that is cut.
var errCut = errors.New("link is cut")

// Net is one party's way to the others: every connection it dials goes over a
// [Link], one for each address, that can be made to fail.
type Net struct {
	mu    sync.Mutex
	links map[string]*Link
}

// NewNet returns a Net whose links are whole.
func NewNet() *Net { return &Net{links: make(map[string]*Link)} }

// Link returns the link to an address.
func (n *Net) Link(address string) *Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[address]
	if l == nil {
		l = &Link{conns: make(map[*conn]struct{})}
		l.changed = sync.NewCond(&l.mu)
		n.links[address] = l
	}
	return l
}

// All calls f with all links used so far.
func (n *Net) All(f func(*Link)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.links {
		f(l)
	}
}

// Dial opens a connection over the address's link.
func (n *Net) Dial(ctx context.Context, address string) (net.Conn, error) {
	return n.Link(address).dial(ctx, address)
}

// Link carries the connections from one party to one address. Faults hold for
// connections present and to come.
type Link struct {
	mu      sync.Mutex
	changed *sync.Cond
	conns   map[*conn]struct{}
	refuse  bool
	swallow bool
	hold    [2]bool
	delay   time.Duration
}

// Direction of bytes on a link.
type Direction int

// Directions, as seen by the party that dialled.
const (
	Out Direction = iota
	In
)

// Cut closes all connections and refuses new ones until [Link.Heal].
func (l *Link) Cut() {
	l.mu.Lock()
	l.refuse = true
	l.mu.Unlock()
	l.Reset()
}

// Reset closes all connections, once.
func (l *Link) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		if t, ok := c.Conn.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // a reset
		}
		_ = c.Conn.Close()
	}
	l.changed.Broadcast()
}

// Swallow makes everything vanish in both directions, as if the other host had
// gone: nothing is closed and nothing arrives. New connections hang.
func (l *Link) Swallow() { l.set(func() { l.swallow = true }) }

// Hold keeps back what goes in one direction until [Link.Heal]; then it arrives.
func (l *Link) Hold(d Direction) { l.set(func() { l.hold[d] = true }) }

// Delay makes everything that arrives come later.
func (l *Link) Delay(d time.Duration) { l.set(func() { l.delay = d }) }

// Heal ends all faults. What was swallowed stays lost: such connections are
// closed, since a byte stream with a hole is no use to anybody.
func (l *Link) Heal() {
	l.mu.Lock()
	lossy := l.swallow
	l.refuse, l.swallow, l.hold, l.delay = false, false, [2]bool{}, 0
	l.changed.Broadcast()
	l.mu.Unlock()
	if lossy {
		l.Reset()
	}
}

func (l *Link) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	l.changed.Broadcast()
}

func (l *Link) dial(ctx context.Context, address string) (net.Conn, error) {
	l.mu.Lock()
	refuse, swallow := l.refuse, l.swallow
	l.mu.Unlock()
	switch {
	case refuse:
		return nil, errCut
	case swallow:
		<-ctx.Done() // as long as the dialler has patience
		return nil, ctx.Err()
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	fc := &conn{Conn: c, link: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[fc] = struct{}{}
	return fc, nil
}

// conn is a connection over a link.
type conn struct {
	net.Conn
	link   *Link
	closed bool // guarded by link.mu
}

// gate waits until bytes may pass in a direction and tells whether they vanish.
func (c *conn) gate(d Direction) (vanish bool, delay time.Duration, err error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.hold[d] && !c.closed && !l.refuse {
		l.changed.Wait()
	}
	if c.closed {
		return false, 0, net.ErrClosed
	}
	if d == Out {
		return l.swallow, 0, nil
	}
	return l.swallow, l.delay, nil
}

func (c *conn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil {
			return n, err
		}
		vanish, delay, err := c.gate(In)
		if err != nil {
			return 0, err
		}
		if vanish {
			continue
		}
		if delay > 0 {
			time.Sleep(delay)
		}
		return n, nil
	}
}

func (c *conn) Write(b []byte) (int, error) {
	vanish, _, err := c.gate(Out)
	if err != nil {
		return 0, err
	}
	if vanish {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	l := c.link
	l.mu.Lock()
	c.closed = true
	delete(l.conns, c)
	l.changed.Broadcast()
	l.mu.Unlock()
	return c.Conn.Close()
}
