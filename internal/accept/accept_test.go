package accept

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// scripted accepts or fails as it is told.
type scripted struct {
	net.Listener
	err error
}

func (s *scripted) Accept() (net.Conn, error) {
	if s.err != nil {
		return nil, s.err
	}
	c, _ := net.Pipe()
	return c, nil
}

func (*scripted) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func noFiles() error { return failed(syscall.EMFILE) }

// failed is what a TCP listener returns.
func failed(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept", err)}
}

// A server without file descriptors says so at once, goes on saying it once a minute, and says when it is over.
func TestListenerWithoutFilesSaysSoAtMostOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		s := &scripted{}
		l := Logged(s, zap.New(core))
		accept := func(want error) {
			t.Helper()
			c, err := l.Accept()
			if !errors.Is(err, want) || (err == nil) != (c != nil) {
				t.Fatalf("accepted %v, %v, want %v", c, err, want)
			}
		}
		said := func(messages ...string) {
			t.Helper()
			all := logs.TakeAll()
			if len(all) != len(messages) {
				t.Fatalf("said %v, want %q", all, messages)
			}
			for i, m := range messages {
				if all[i].Message != m {
					t.Errorf("said %q, want %q", all[i].Message, m)
				}
			}
		}
		accept(nil)
		said()
		s.err = noFiles()
		accept(syscall.EMFILE)
		said("connection cannot be accepted")
		for range 119 {
			time.Sleep(time.Second) // as gRPC does
			accept(syscall.EMFILE)
		}
		if all := logs.TakeAll(); len(all) != 1 || all[0].ContextMap()["failures"] != int64(60) || all[0].ContextMap()["address"] != "127.0.0.1:1" {
			t.Errorf("in two minutes said %v", all)
		}
		time.Sleep(time.Second)
		accept(syscall.EMFILE)
		said("connection cannot be accepted")
		accept(syscall.EMFILE) // one that is not said
		s.err = nil
		accept(nil)
		accept(nil)
		said("connections are accepted again")
		for range 10 { // on and off
			s.err = noFiles()
			accept(syscall.EMFILE)
			s.err = nil
			accept(nil)
		}
		said()
		time.Sleep(time.Hour)
		s.err = io.ErrUnexpectedEOF // gRPC ends with it, and returns it
		accept(io.ErrUnexpectedEOF)
		s.err = net.ErrClosed
		accept(net.ErrClosed)
		said()
	})
}

// gRPC goes on only after errors that say they are temporary.
func TestFailureKeepsWhatItIs(t *testing.T) {
	l := Logged(&scripted{err: noFiles()}, zap.NewNop())
	_, err := l.Accept()
	if e, ok := err.(interface{ Temporary() bool }); !ok || !e.Temporary() {
		t.Errorf("error is %v", err)
	}
}
