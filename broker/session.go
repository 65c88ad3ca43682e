package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

const (
	// helloTimeout bounds the wait for the first frame of a session.
	helloTimeout = 10 * time.Second
	// finishTimeout bounds how long an ended session waits for the peer to read
	// what was sent to it.
	finishTimeout = 2 * time.Second
	// maxFrames may wait for a member to read them. It is as good as gone then:
	// with room for so many, only one that reads nothing gets there.
	maxFrames = 1024
	// thinFrames waiting let notices of a topic replace older ones.
	thinFrames = 64
)

var (
	errSlowReader  = errors.New("member does not read its session stream")
	errSessionOver = errors.New("session stream has ended")
)

type sessionStream = grpc.BidiStreamingServer[tacitv1.SessionRequest, tacitv1.SessionResponse]

// memberSession is one session stream. Its handler reads; another goroutine writes
// while there is something to write, so that an idle member costs no more than one.
type memberSession struct {
	srv    *Server
	stream sessionStream
	peer   string
	id     group.SessionID // set before it is in driver.sessions
	group  string
	joined bool // in driver.sessions or was; used in the driver's turn
	over   bool // its handler has ended; used in the driver's turn
	unseen int  // frames handed over since the last that was waited for; of read

	mu      sync.Mutex
	cancel  context.CancelFunc // ends the reading, once it is not that of the hello
	queue   []outgoing
	writing bool
	closing bool  // end once the queue is empty
	verdict error // why the stream ends once the queue is empty
	err     error // why it ends at once

	done chan struct{} // closed when this side wants the stream to end
	once sync.Once
}

// Session serves one member's session stream.
func (s *Server) Session(stream sessionStream) error {
	ctx := stream.Context()
	s.sessions.Add(1)
	defer s.sessions.Add(-1)
	m := &memberSession{srv: s, stream: stream, done: make(chan struct{})}
	if p, ok := peer.FromContext(ctx); ok {
		m.peer = p.Addr.String()
	}
	// Until the hello this side may have to say what is wrong; later it tells in a frame
	// why it ends, and the status is CANCELED.
	first := make(chan error, 1)
	s.streams.Go(func() { first <- s.guard(m.begin) }) // ends with the hello or the stream
	var err error
	select {
	case err = <-first:
		if err == nil && m.mayRead(ctx) {
			err = s.guard(m.read)
		}
	case <-ctx.Done():
		err = ctx.Err()
	case <-m.done:
	}
	byPeer := false
	select {
	case <-m.done:
		m.mu.Lock()
		if err = m.err; err == nil {
			err = m.verdict
		}
		m.mu.Unlock()
		if err == nil { // as if the reading had been ended, also if it had not begun
			err = status.Error(codes.Canceled, "the broker has ended the session")
		}
	default:
		// gRPC ends the context also after a message that it cannot read.
		switch {
		case errors.Is(err, io.EOF):
			byPeer, err = true, nil
		case errors.Is(err, context.Canceled), status.Code(err) == codes.Canceled:
			byPeer = closedByPeer(ctx)
		}
	}
	s.driver.closed(m, byPeer)
	if errors.Is(err, errSlowReader) {
		s.log.Warn("session ended", zap.String("peer", m.peer), zap.String("group", m.group), zap.Error(err))
		return fmt.Errorf("%w: %s", rpcerr.ErrOverloaded, err.Error())
	}
	return err
}

// endOfSession is where the context of a session stream has what ends it.
type endOfSession struct{}

// tapSession gives session streams a context that this side can end. gRPC ends a
// stream when its handler returns, and what the handler waits for is the next frame: to
// end it from elsewhere another goroutine would have to wait in its place, for each
// member.
func tapSession(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName != tacitv1.SessionService_Session_FullMethodName {
		return ctx, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	return context.WithValue(ctx, endOfSession{}, cancel), nil
}

// mayRead lets end end the reading from now on, unless it has come before.
func (m *memberSession) mayRead(ctx context.Context) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cancel, _ = ctx.Value(endOfSession{}).(context.CancelFunc) // set by tapSession
	select {
	case <-m.done:
		return false
	default:
		return true
	}
}

// end ends the stream from this side. m.mu is held.
func (m *memberSession) end() {
	m.once.Do(func() {
		close(m.done)
		if m.cancel != nil {
			m.cancel()
		}
	})
}

// begin takes the hello.
func (m *memberSession) begin() error {
	late := time.AfterFunc(helloTimeout, func() { m.fail(rpcerr.Invalid("hello", "did not come within %v", helloTimeout)) })
	defer late.Stop()
	frame, err := m.next()
	if err != nil {
		return err
	}
	h, ok := frame.(session.Hello)
	if !ok {
		return rpcerr.Invalid("frame", "%T: the first frame must be a hello", frame)
	}
	return m.srv.driver.opened(m, h, m.srv.cfg.MaxSessions)
}

// read takes frames until the stream ends, with io.EOF if the peer ended it.
func (m *memberSession) read() error {
	for {
		frame, err := m.next()
		if err != nil {
			return err
		}
		m.srv.driver.received(m, frame)
	}
}

// next takes a frame.
func (m *memberSession) next() (session.ToBroker, error) {
	req, err := m.stream.Recv()
	if err != nil {
		return nil, err //nolint:wrapcheck // gRPC's own
	}
	m.srv.metrics.framesIn.Inc()
	frame, err := wire.ToBrokerFrame(req)
	if err != nil {
		m.refuse(err)
		<-m.done // so that it can be read
	}
	return frame, err
}

// refuse tells the member why its stream ends.
func (m *memberSession) refuse(err error) {
	m.push(outgoing{frame: session.Refused{Reason: session.ReasonBadRequest, Text: err.Error()}})
	m.mu.Lock()
	m.verdict = err
	m.mu.Unlock()
	m.finish()
}

// push queues a frame. It never blocks: a member that does not read is given up.
func (m *memberSession) push(f outgoing) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing || m.err != nil {
		return
	}
	if !m.merge(f) {
		m.queue = append(m.queue, f)
	}
	if len(m.queue) > maxFrames {
		m.srv.metrics.slowReaders.Inc()
		m.failLocked(errSlowReader)
		return
	}
	if !m.writing {
		m.writing = true
		m.srv.writers.start(m.write) // ends when the queue is empty or the stream ends
	}
}

// merge lets f take the place of a queued frame that it makes obsolete. Notices
// are deltas: one that is missing makes the member fetch the view, so only a
// member that is far behind loses some.
func (m *memberSession) merge(f outgoing) bool {
	for i := range m.queue {
		if supersedes(f.frame, m.queue[i].frame, len(m.queue) > thinFrames) {
			m.queue[i] = f
			return true
		}
	}
	return false
}

// supersedes reports whether f makes an older frame obsolete.
func supersedes(f, old session.ToMember, thin bool) bool {
	switch f := f.(type) {
	case session.HeartbeatAck:
		_, ok := old.(session.HeartbeatAck)
		return ok
	case session.OwnersChanged:
		o, ok := old.(session.OwnersChanged)
		return ok && o.Topic == f.Topic
	case session.ViewReady:
		o, ok := old.(session.ViewReady)
		return ok && o.Topic == f.Topic
	case session.Nudge:
		o, ok := old.(session.Nudge)
		return ok && o.Topic == f.Topic
	case session.GroupChanged:
		o, ok := old.(session.GroupChanged)
		return ok && thin && o.Topic == f.Topic
	default: // each is wanted
		return false
	}
}

// write sends what is queued and ends.
func (m *memberSession) write() {
	for {
		m.mu.Lock()
		if len(m.queue) == 0 || m.err != nil {
			m.writing = false
			if m.closing {
				m.end()
			}
			m.mu.Unlock()
			return
		}
		batch := m.queue
		m.queue = nil
		m.mu.Unlock()
		for i := range batch {
			msg, err := batch[i].message()
			if err == nil {
				err = m.stream.SendMsg(msg)
			}
			if err != nil {
				m.fail(err)
				break
			}
			m.srv.metrics.framesOut.Inc()
		}
	}
}

// finish ends the stream after what was queued.
func (m *memberSession) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return
	}
	m.closing = true
	if !m.writing {
		m.end()
		return
	}
	time.AfterFunc(finishTimeout, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.end()
	})
}

// fail ends the stream at once.
func (m *memberSession) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failLocked(err)
}

func (m *memberSession) failLocked(err error) {
	if m.err == nil {
		m.err = err
	}
	m.queue = nil
	m.end()
}

// opened registers a session by its hello.
func (d *driver) opened(m *memberSession, h session.Hello, most int) (err error) {
	d.turn.call(func() {
		switch {
		case m.over: // its hello was still to be read
			err = errSessionOver
			return
		case d.stopped || d.reg == nil:
			err = rpcerr.ErrShuttingDown
			return
		case len(d.sessions) >= most:
			err = fmt.Errorf("%w: %d sessions on broker %s", rpcerr.ErrLimitReached, most, d.name)
			return
		}
		d.nextID++
		m.id, m.group, m.joined = d.nextID, h.Group, true
		d.sessions[m.id] = m
		d.metrics.sessions.Set(float64(len(d.sessions)))
		d.inTurn(group.Received{Session: m.id, Frame: h})
	})
	return err
}

// maxUnseen frames of one session may wait for the core; then its reader waits.
const maxUnseen = 32

// received hands a frame to the core unless the session has ended.
func (d *driver) received(m *memberSession, f session.ToBroker) {
	defer shared()
	if r, ok := f.(session.Released); ok {
		d.sane(m, r.Leases)
	}
	step := func() {
		if d.sessions[m.id] == m {
			d.inTurn(group.Received{Session: m.id, Frame: f})
		}
	}
	if m.unseen++; m.unseen >= maxUnseen {
		m.unseen = 0
		d.turn.call(step)
		return
	}
	d.turn.do(step)
}

// sane takes offsets that cannot be from releases: the lease is free all the
// same, but progress stays where it was.
func (d *driver) sane(m *memberSession, leases []session.Release) {
	for i := range leases {
		r := &leases[i]
		if !r.HasOffset {
			continue
		}
		if _, high, err := d.st.Bounds(localQueue(r.Queue)); err == nil && r.Offset >= 0 && r.Offset <= high &&
			m.srv.kept.check(m.group, r.Queue, r.Epoch, r.Offset, false) == nil {
			continue
		}
		d.log.Warn("release with an impossible offset", zap.String("group", m.group), zap.String("topic", r.Queue.Topic),
			zap.Int32("queue", r.Queue.ID), zap.Int64("offset", r.Offset))
		r.Offset, r.HasOffset = 0, false
	}
}

// closed takes a session out.
func (d *driver) closed(m *memberSession, byPeer bool) {
	d.turn.do(func() {
		m.over = true
		if !m.joined || d.sessions[m.id] != m {
			return
		}
		delete(d.sessions, m.id)
		d.metrics.sessions.Set(float64(len(d.sessions)))
		d.inTurn(group.Closed{Session: m.id, ByPeer: byPeer})
	})
}

const holderSeparator = "\x00"

func joinHolder(client, instance string) string {
	if instance == "" {
		return client
	}
	return client + holderSeparator + instance
}

func cutHolder(holder string) (client, instance string) {
	client, instance, _ = strings.Cut(holder, holderSeparator)
	return client, instance
}
