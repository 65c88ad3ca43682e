package broker

import (
	"bytes"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// bursting panics at the next message that it is to read, once it is armed.
type bursting struct {
	grpc.ServerStream
	armed *atomic.Bool
}

func (b bursting) RecvMsg(m any) error {
	err := b.ServerStream.RecvMsg(m)
	if err == nil && b.armed.CompareAndSwap(true, false) {
		panic("nobody thought of this message")
	}
	return err
}

// A message that makes what reads a stream panic ends that stream; the broker and all other streams go on.
func TestPanicEndsItsStreamAlone(t *testing.T) {
	var armed atomic.Bool
	e := start(t, testConfig(t.TempDir()), WithServerOptions(grpc.ChainStreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return h(srv, bursting{ss, &armed})
		})))
	e.topic("T", 1)
	other := e.producer()
	info := batch.Info{Topic: "T"}
	for name, burst := range map[string]func() error{
		"produce": func() error {
			p := e.producer()
			_ = p.s.SendMsg(&rawcodec.ProduceRequest{ID: 1, Batch: encodeBatch(t, info, bodies("a")...)})
			return p.s.RecvMsg(&rawcodec.ProduceResponse{})
		},
		"fetch": func() error {
			f := e.fetcher()
			_ = f.s.SendMsg(&rawcodec.FetchRequest{ID: 1, Topic: "T"})
			return f.s.RecvMsg(&rawcodec.FetchResponse{})
		},
		"session": func() error {
			s, err := e.session.Session(e.ctx())
			if err != nil {
				return err
			}
			_ = s.Send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Heartbeat{Heartbeat: &tacitv1.Heartbeat{Seq: 1}}})
			_, err = s.Recv()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			armed.Store(true)
			if err := burst(); err == nil || codeOf(err) != "Internal" || contains(err, "nobody thought") {
				t.Errorf("the stream ended with %v", err)
			}
			other.send(info, bodies("b")...)
		})
	}
}

// A session that ends by a panic after its hello is out of the broker's books like any other.
func TestPanicOfASessionLeavesNothingOfIt(t *testing.T) {
	var armed atomic.Bool
	reg := prometheus.NewRegistry()
	e := start(t, testConfig(t.TempDir()), WithRegisterer(reg), WithServerOptions(grpc.ChainStreamInterceptor(
		func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
			return h(srv, bursting{ss, &armed})
		})))
	e.topic("T", 1)
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, "T"))
	await(m, (*tacitv1.SessionResponse).GetWelcome)
	armed.Store(true)
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Heartbeat{Heartbeat: &tacitv1.Heartbeat{Seq: 1}}})
	for {
		if _, err := m.s.Recv(); err != nil {
			if codeOf(err) != "Internal" || contains(err, "nobody thought") {
				t.Errorf("the stream ended with %v", err)
			}
			break
		}
	}
	e.srv.driver.turn.call(func() {}) // what its end wanted done is
	if n := gathered(t, reg)["tacit_broker_sessions"]; n != 0 {
		t.Errorf("%v sessions after the end of the only one", n)
	}
	if n := gathered(t, reg)["tacit_broker_stream_panics_total"]; n != 1 {
		t.Errorf("%v panics counted", n)
	}
}

// A panic in the core ends the process, also where it is done on the goroutine of a guarded stream.
func TestPanicInTheCoreEndsTheProcess(t *testing.T) {
	const child = "TACIT_TEST_CORE_PANIC"
	if os.Getenv(child) != "" {
		e := start(t, testConfig(t.TempDir()))
		_ = e.srv.guard(func() error {
			e.srv.driver.turn.call(func() { panic("lease is half granted") })
			os.Exit(0)
			return nil
		})
		os.Exit(0)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanicInTheCoreEndsTheProcess$") //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("panic in shared state: lease is half granted")) {
		t.Errorf("process ended with %v:\n%s", err, out)
	}
}
