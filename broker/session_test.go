package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// member is a bare session stream: what a test sends and sees is on the wire.
type member struct {
	t      testing.TB
	s      grpc.BidiStreamingClient[tacitv1.SessionRequest, tacitv1.SessionResponse]
	cancel context.CancelFunc
}

func (e *env) openSession(conn *grpc.ClientConn, opts ...grpc.CallOption) *member {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	e.t.Cleanup(cancel)
	s, err := tacitv1.NewSessionServiceClient(conn).Session(ctx, opts...)
	if err != nil {
		e.t.Fatal(err)
	}
	return &member{t: e.t, s: s, cancel: cancel}
}

func hello(group, id string, random uint64, topic string) *tacitv1.Hello {
	return &tacitv1.Hello{
		Group: group, ClientId: id, Incarnation: &tacitv1.Incarnation{Counter: 1, Random: random},
		SessionTimeout: durationpb.New(time.Minute),
		Subscriptions:  []*tacitv1.Subscription{{Topic: topic, Filter: "*"}},
		Offers:         []*tacitv1.StrategyOffer{{Strategy: "Sticky"}},
	}
}

func (m *member) hello(h *tacitv1.Hello) {
	m.t.Helper()
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Hello{Hello: h}})
}

func (m *member) send(r *tacitv1.SessionRequest) {
	m.t.Helper()
	if err := m.s.Send(r); err != nil {
		m.t.Fatal(err)
	}
}

// await reads frames until pick returns one.
func await[F any](m *member, pick func(*tacitv1.SessionResponse) F) F {
	m.t.Helper()
	var none F
	for {
		r, err := m.s.Recv()
		if err != nil {
			m.t.Fatalf("waiting for a %T: %v", none, err)
		}
		if f := pick(r); any(f) != any(none) {
			return f
		}
	}
}

func (m *member) acquire(queues ...*tacitv1.MessageQueue) {
	m.t.Helper()
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Acquire{Acquire: &tacitv1.Acquire{Queues: queues, ViewBroker: "b1"}}})
}

func (m *member) granted() *tacitv1.Grant {
	m.t.Helper()
	return await(m, (*tacitv1.SessionResponse).GetGranted).GetGrants()[0]
}

func (m *member) release(g *tacitv1.Grant, offset int64) {
	m.t.Helper()
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Released{Released: &tacitv1.Released{
		Leases: []*tacitv1.LeaseRelease{{Queue: g.GetQueue(), Epoch: g.GetEpoch(), Offset: offset, HasOffset: true}},
	}}})
}

func mq(topic string, id int32) *tacitv1.MessageQueue {
	return &tacitv1.MessageQueue{Topic: topic, Broker: "b1", QueueId: id}
}

// commit commits for group g.
func (e *env) commit(q *tacitv1.MessageQueue, epoch *tacitv1.Epoch, offset int64) error {
	e.t.Helper()
	resp, err := e.offset.Commit(e.ctx(), &tacitv1.CommitRequest{Group: "g", Offsets: []*tacitv1.OffsetCommit{{Queue: q, Offset: offset, Epoch: epoch}}})
	if err != nil {
		e.t.Fatal(err)
	}
	r := resp.GetResults()[0]
	return rpcerr.FromParts(codesOf(r.GetCode()), r.GetReason(), r.GetMessage())
}

// committed is the progress of group g.
func (e *env) committed(q *tacitv1.MessageQueue) (int64, bool) {
	e.t.Helper()
	resp, err := e.offset.Committed(e.ctx(), &tacitv1.CommittedRequest{Group: "g", Queues: []*tacitv1.MessageQueue{q}})
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.GetOffsets()[0].GetOffset(), resp.GetOffsets()[0].GetHasOffset()
}

// fill puts n messages into a queue of topic T.
func (e *env) fill(queue int32, n int) {
	e.t.Helper()
	p := e.producer()
	for range n {
		p.send(batch.Info{Topic: "T", Queue: queue}, bodies("m")...)
	}
}

// After a takeover the former owner can neither commit nor pull, and the new one
// goes on where it stopped.
func TestF_HND_06_FormerOwnerIsFencedAndItsProgressKept(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.fill(0, 10)
	q := mq("T", 0)

	m1 := e.openSession(e.conn)
	m1.hello(hello("g", "c1", 1, "T"))
	if w := await(m1, (*tacitv1.SessionResponse).GetWelcome); w.GetBroker() != "b1" || w.GetBrokerEpoch() == 0 || w.GetSessionTimeout().AsDuration() != time.Minute {
		t.Fatalf("welcome %v", w)
	}
	m1.acquire(q)
	g1 := m1.granted()
	if g1.GetHasOffset() {
		t.Fatalf("first grant %v", g1)
	}
	if err := e.commit(q, g1.GetEpoch(), 4); err != nil {
		t.Fatal(err)
	}

	m2 := e.openSession(e.conn)
	m2.hello(hello("g", "c2", 2, "T"))
	await(m2, (*tacitv1.SessionResponse).GetWelcome)
	m2.acquire(q)
	await(m1, (*tacitv1.SessionResponse).GetLeaseWanted)
	m1.release(g1, 7)
	g2 := m2.granted()
	if g2.GetOffset() != 7 || !g2.GetHasOffset() {
		t.Errorf("second grant %v, want offset 7", g2)
	}
	if err := e.commit(q, g1.GetEpoch(), 9); !errors.Is(err, rpcerr.ErrStaleEpoch) {
		t.Errorf("commit under the old epoch: %v", err)
	}
	if err := e.commit(q, nil, 9); !errors.Is(err, rpcerr.ErrLeaseHeld) {
		t.Errorf("commit without epoch: %v", err)
	}
	f := e.fetcher()
	r := f.fetch(rawcodec.FetchRequest{Group: "g", Topic: "T", Offset: 7, EpochBroker: g1.GetEpoch().GetBroker(), EpochCounter: g1.GetEpoch().GetCounter()})
	if err := dataErr(r.Error); !errors.Is(err, rpcerr.ErrStaleEpoch) {
		t.Errorf("fetch under the old epoch: %v", err)
	}
	if err := e.commit(q, g2.GetEpoch(), 8); err != nil {
		t.Error(err)
	}
	if at, _ := e.committed(q); at != 8 {
		t.Errorf("committed %d", at)
	}
}

// A poll that was parked under a lease must not hand out messages once the lease is gone.
func TestParkedPollChecksItsEpochWhenItWakes(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, "T"))
	m.acquire(mq("T", 0))
	g := m.granted()
	f := e.fetcher()
	f.ask(rawcodec.FetchRequest{
		Group: "g", Topic: "T", WaitMillis: 20_000,
		EpochBroker: g.GetEpoch().GetBroker(), EpochCounter: g.GetEpoch().GetCounter(),
	})
	// Once an answer to a later request is there, the poll is parked or will check anyway.
	f.ask(rawcodec.FetchRequest{Topic: "T"})
	f.next()
	m.release(g, 0)
	m.acquire(mq("T", 0))
	m.granted()
	e.fill(0, 1)
	if r := f.next(); !errors.Is(dataErr(r.Error), rpcerr.ErrStaleEpoch) || len(r.Batches) > 0 {
		t.Errorf("got %+v %v", r, dataErr(r.Error))
	}
}

func TestLeasesAreFreeAtOnceWhenThePeerCloses(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(m *member, conn *grpc.ClientConn)
	}{
		{"half-close", func(m *member, _ *grpc.ClientConn) { _ = m.s.CloseSend() }},
		{"cancel", func(m *member, _ *grpc.ClientConn) { m.cancel() }},
		{"connection", func(_ *member, conn *grpc.ClientConn) { _ = conn.Close() }},
		{"goodbye", func(m *member, _ *grpc.ClientConn) {
			m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Goodbye{Goodbye: &tacitv1.Goodbye{}}})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := start(t, testConfig(t.TempDir()))
			e.topic("T", 1)
			conn := e.dial()
			defer conn.Close()
			m1 := e.openSession(conn)
			m1.hello(hello("g", "c1", 1, "T"))
			m1.acquire(mq("T", 0))
			m1.granted()
			m2 := e.openSession(e.conn)
			m2.hello(hello("g", "c2", 2, "T"))
			m2.acquire(mq("T", 0))
			await(m1, (*tacitv1.SessionResponse).GetLeaseWanted)
			begun := time.Now()
			tc.end(m1, conn)
			m2.granted()
			if took := time.Since(begun); took > 5*time.Second {
				t.Errorf("granted after %v", took)
			}
		})
	}
}

func TestLeasesStayWhenTheBrokerEndsTheStream(t *testing.T) {
	for name, end := range map[string]func(m *member) error{
		"no frame": func(m *member) error { return m.s.Send(&tacitv1.SessionRequest{}) },
		"no protobuf": func(m *member) error {
			return m.s.SendMsg(&rawcodec.Encoded{Data: mem.BufferSlice{mem.SliceBuffer("\xff")}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := start(t, testConfig(t.TempDir()))
			e.topic("T", 1)
			m1 := e.openSession(e.conn, grpc.ForceCodecV2(rawcodec.New()))
			h1 := hello("g", "c1", 1, "T")
			h1.SessionTimeout = durationpb.New(2 * time.Second)
			m1.hello(h1)
			m1.acquire(mq("T", 0))
			m1.granted()
			m2 := e.openSession(e.conn)
			m2.hello(hello("g", "c2", 2, "T"))
			m2.acquire(mq("T", 0))
			await(m1, (*tacitv1.SessionResponse).GetLeaseWanted)
			begun := time.Now()
			if err := end(m1); err != nil { // out of protocol
				t.Fatal(err)
			}
			for {
				if _, err := m1.s.Recv(); err != nil {
					break
				}
			}
			m2.granted()
			if took := time.Since(begun); took < 1900*time.Millisecond {
				t.Errorf("granted after %v, the session timeout is 2s", took)
			}
		})
	}
}

func TestSessionMustBeginWithAHello(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	for name, req := range map[string]*tacitv1.SessionRequest{
		"heartbeat": {Frame: &tacitv1.SessionRequest_Heartbeat{Heartbeat: &tacitv1.Heartbeat{Seq: 1}}},
		"nothing":   {},
		"bad group": {Frame: &tacitv1.SessionRequest_Hello{Hello: &tacitv1.Hello{Group: "a b", ClientId: "c"}}},
	} {
		t.Run(name, func(t *testing.T) {
			m := e.openSession(e.conn)
			m.send(req)
			for {
				_, err := m.s.Recv()
				if err == nil {
					continue
				}
				if !errors.Is(err, rpcerr.ErrInvalidArgument) {
					t.Errorf("got %v", err)
				}
				return
			}
		})
	}
}

func TestMembersAreToldWhenTheBrokerStops(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, "T"))
	await(m, (*tacitv1.SessionResponse).GetWelcome)
	stopped := make(chan struct{})
	go func() { e.stop(); close(stopped) }() // waited for below
	if r := await(m, (*tacitv1.SessionResponse).GetRefused); r.GetReason() != tacitv1.Reason_REASON_SHUTDOWN {
		t.Errorf("got %v", r)
	}
	if _, err := m.s.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("stream ended with %v", err)
	}
	<-stopped
}

// Who held a queue when the broker went gets it back; nobody else does before the
// holder's session timeout has passed.
func TestRestartKeepsLeasesForTheirHolders(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 1)
	e.fill(0, 5)
	m1 := e.openSession(e.conn)
	m1.hello(hello("g", "c1", 1, "T"))
	m1.acquire(mq("T", 0))
	g := m1.granted()
	if err := e.commit(mq("T", 0), g.GetEpoch(), 3); err != nil {
		t.Fatal(err)
	}
	e.stop()

	e = start(t, cfg)
	m2 := e.openSession(e.conn)
	m2.hello(hello("g", "c2", 2, "T"))
	m2.acquire(mq("T", 0))
	m1 = e.openSession(e.conn)
	h := hello("g", "c1", 1, "T")
	h.Held = []*tacitv1.OwnedQueue{{Queue: g.GetQueue(), Epoch: g.GetEpoch()}}
	m1.hello(h)
	w := await(m1, (*tacitv1.SessionResponse).GetWelcome)
	if len(w.GetGrants()) != 1 || !w.GetGrants()[0].GetKept() {
		t.Fatalf("welcome %v", w)
	}
	if err := e.commit(mq("T", 0), g.GetEpoch(), 4); err != nil {
		t.Error(err)
	}
	await(m1, (*tacitv1.SessionResponse).GetLeaseWanted)
	m1.release(g, 5)
	if g2 := m2.granted(); g2.GetOffset() != 5 {
		t.Errorf("grant %v", g2)
	}
}

func TestSlowReaderIsGivenUpAndKeepsNobodyWaiting(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	m := &memberSession{srv: e.srv, done: make(chan struct{}), writing: true} // as if Send were blocked
	for i := range maxFrames {
		m.push(outgoing{frame: testGrant(i)})
	}
	select {
	case <-m.done:
		t.Fatal("given up too early")
	default:
	}
	m.push(outgoing{frame: testGrant(0)})
	<-m.done
	if !errors.Is(m.err, errSlowReader) {
		t.Errorf("got %v", m.err)
	}
}

func TestAddressOfAConnectionTellsHowItEnded(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want int32
	}{
		{"end", io.EOF, connPeerClosed},
		{"timeout", &net.OpError{Op: "read", Err: errors.New("connection timed out")}, connBroken},
	} {
		c := &conn{}
		c.note(tc.err)
		if got := c.state.Load(); got != tc.want {
			t.Errorf("%s: state %d, want %d", tc.name, got, tc.want)
		}
	}
}

// A stream that ends just after its hello leaves no member and no session behind,
// also if the hello is read after the end was noticed.
func TestStreamThatEndsWithItsHelloLeavesNothing(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	conn := e.dial()
	defer conn.Close()
	for i := range uint64(1000) {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := tacitv1.NewSessionServiceClient(conn).Session(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Hello{Hello: hello("g", fmt.Sprint("c", i), i, "T")}}); err != nil {
			t.Fatal(err)
		}
		for range i % 100 {
			runtime.Gosched() // the end comes sooner or later after the hello
		}
		cancel()
	}
	conn.Close()
	n := -1
	for deadline := time.Now().Add(20 * time.Second); n != 0 && time.Now().Before(deadline); runtime.Gosched() {
		e.srv.driver.turn.call(func() { n = len(e.srv.driver.sessions) })
	}
	if n != 0 {
		t.Errorf("%d sessions stay", n)
	}
}
