package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

const (
	// maxFrames is how many frames may wait to be written: a broker that reads
	// none of so many is as good as dead.
	maxFrames = 10_000
	// flushTimeout bounds how long a close waits for what was sent before it.
	flushTimeout = time.Second
)

var errSlow = errors.New("broker does not read its session stream")

type sessionStream = grpc.BidiStreamingClient[tacitv1.SessionRequest, tacitv1.SessionResponse]

// memberSession is an open session stream. One goroutine reads, one writes.
type memberSession struct {
	broker string
	stream sessionStream
	cancel context.CancelFunc

	mu     sync.Mutex
	out    []session.ToBroker
	ending bool // write what there is, then half-close
	err    error

	wake chan struct{} // capacity 1
	wg   sync.WaitGroup
}

func (c *cluster) OpenSession(ctx context.Context, name string, receive func(session.ToMember)) (Session, error) {
	b, err := c.find(name)
	if err != nil {
		return nil, fmt.Errorf("open session to broker %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	opening := time.AfterFunc(dialTimeout, cancel)
	stream, err := b.session.Session(ctx)
	if !opening.Stop() && err == nil {
		err = context.DeadlineExceeded
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open session to broker %s: %w", name, unreachable(err))
	}
	s := &memberSession{broker: name, stream: stream, cancel: cancel, wake: make(chan struct{}, 1)}
	s.wg.Go(func() { s.read(receive) }) // Wait waits for both
	s.wg.Go(s.write)
	return s, nil
}

func (s *memberSession) Send(frame session.ToBroker) {
	s.mu.Lock()
	s.out = append(s.out, frame)
	slow := len(s.out) > maxFrames
	s.mu.Unlock()
	if slow {
		s.end(errSlow)
		return
	}
	s.kick()
}

func (s *memberSession) kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// end ends the stream; the first reason is the one that counts.
func (s *memberSession) end(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
	}
	s.mu.Unlock()
	s.cancel()
	s.kick()
}

func (s *memberSession) Close(flush bool) {
	if flush {
		s.mu.Lock()
		s.ending = true
		s.mu.Unlock()
		s.kick()
		force := time.AfterFunc(flushTimeout, s.cancel)
		s.wg.Wait()
		force.Stop()
	}
	s.end(errClosed)
	s.wg.Wait()
}

func (s *memberSession) Wait() error {
	s.wg.Wait()
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("session to broker %s: %w", s.broker, s.err)
}

func (s *memberSession) read(receive func(session.ToMember)) {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
				err = fmt.Errorf("%w: broker ended the stream", rpcerr.ErrUnreachable)
			}
			s.end(unreachable(err))
			return
		}
		frame, err := wire.ToMemberFrame(m)
		if err != nil {
			s.end(fmt.Errorf("frame from broker: %w", err))
			return
		}
		receive(frame)
	}
}

func (s *memberSession) write() {
	var batch []session.ToBroker
	for {
		s.mu.Lock()
		batch, s.out = s.out, batch[:0]
		ended, ending := s.err != nil, s.ending
		s.mu.Unlock()
		if ended {
			return
		}
		for i, f := range batch {
			if err := s.stream.Send(wire.Request(f)); err != nil {
				return // the reader gets the stream's real error
			}
			batch[i] = nil
		}
		switch {
		case len(batch) > 0:
		case ending:
			_ = s.stream.CloseSend() // the reader tells how the stream ended
			return
		default:
			<-s.wake
		}
	}
}
