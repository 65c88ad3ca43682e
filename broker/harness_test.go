package broker

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is a running broker with a real store, reached through memory.
type env struct {
	t    testing.TB
	srv  *Server
	lis  *bufconn.Listener
	conn *grpc.ClientConn
	stop func()

	data    tacitv1.DataServiceClient
	session tacitv1.SessionServiceClient
	offset  tacitv1.OffsetServiceClient
	admin   tacitv1.AdminServiceClient
}

func testConfig(dir string) Config {
	c := Default()
	c.Name, c.DataDir = "b1", dir
	c.SegmentBytes = 8 << 20
	c.MinFreeBytes = 1 << 20
	return c
}

// start runs a broker; it ends with the test or by stop.
func start(t testing.TB, cfg Config, opts ...Option) *env {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	log := zap.NewNop()
	if testing.Verbose() {
		log = zaptest.NewLogger(t)
	}
	srv, err := New(cfg, append([]Option{WithListener(lis), WithLogger(log)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }() // ended by stop
	e := &env{t: t, srv: srv, lis: lis}
	e.conn = e.dial()
	e.data, e.session = tacitv1.NewDataServiceClient(e.conn), tacitv1.NewSessionServiceClient(e.conn)
	e.offset, e.admin = tacitv1.NewOffsetServiceClient(e.conn), tacitv1.NewAdminServiceClient(e.conn)
	e.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("broker: %v", err)
		}
		_ = e.conn.Close()
	})
	t.Cleanup(e.stop)
	return e
}

// dial opens another connection.
func (e *env) dial() *grpc.ClientConn {
	e.t.Helper()
	conn, err := grpc.NewClient("passthrough:///broker", append(rpcerr.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return e.lis.DialContext(ctx) }))...)
	if err != nil {
		e.t.Fatal(err)
	}
	return conn
}

func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	e.t.Cleanup(cancel)
	return ctx
}

// topic creates a topic.
func (e *env) topic(name string, queues int32) {
	e.t.Helper()
	if _, err := e.admin.PutTopic(e.ctx(), &tacitv1.PutTopicRequest{Config: &tacitv1.TopicConfig{Topic: name, ReadQueues: queues, WriteQueues: queues}}); err != nil {
		e.t.Fatal(err)
	}
}

func encodeBatch(t testing.TB, info batch.Info, ms ...message.Message) []byte {
	t.Helper()
	var enc batch.Encoder
	for i := range ms {
		enc.Append(&ms[i])
	}
	b, err := enc.Finish(nil, info)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bodies makes messages with these bodies.
func bodies(s ...string) (out []message.Message) {
	for _, b := range s {
		out = append(out, message.Message{Body: []byte(b)})
	}
	return out
}

// producer is a raw produce stream.
type producer struct {
	t testing.TB
	s grpc.ClientStream
	n uint64
}

func (e *env) producer() *producer {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e.t.Cleanup(cancel)
	s, err := e.data.Produce(ctx, grpc.ForceCodecV2(rawcodec.New()))
	if err != nil {
		e.t.Fatal(err)
	}
	return &producer{t: e.t, s: s}
}

// try sends a batch and returns its answer.
func (p *producer) try(b []byte) (*rawcodec.ProduceResponse, error) {
	p.t.Helper()
	p.n++
	if err := p.s.SendMsg(&rawcodec.ProduceRequest{ID: p.n, Batch: b}); err != nil {
		p.t.Fatal(err)
	}
	var r rawcodec.ProduceResponse
	if err := p.s.RecvMsg(&r); err != nil {
		p.t.Fatal(err)
	}
	if r.ID != p.n {
		p.t.Fatalf("answer to %d, not %d", r.ID, p.n)
	}
	return &r, dataErr(r.Error)
}

func (p *producer) send(info batch.Info, ms ...message.Message) *rawcodec.ProduceResponse {
	p.t.Helper()
	r, err := p.try(encodeBatch(p.t, info, ms...))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func dataErr(e *rawcodec.Error) error {
	if e == nil {
		return nil
	}
	return rpcerr.FromData(&tacitv1.DataError{Code: e.Code, Reason: e.Reason, Message: e.Message})
}

// fetcher is a raw fetch stream.
type fetcher struct {
	t testing.TB
	s grpc.ClientStream
	n uint64
}

func (e *env) fetcher() *fetcher {
	e.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	e.t.Cleanup(cancel)
	s, err := e.data.Fetch(ctx, grpc.ForceCodecV2(rawcodec.New()))
	if err != nil {
		e.t.Fatal(err)
	}
	return &fetcher{t: e.t, s: s}
}

func (f *fetcher) ask(r rawcodec.FetchRequest) uint64 {
	f.t.Helper()
	f.n++
	r.ID = f.n
	if err := f.s.SendMsg(&r); err != nil {
		f.t.Fatal(err)
	}
	return r.ID
}

func (f *fetcher) next() *rawcodec.FetchResponse {
	f.t.Helper()
	var r rawcodec.FetchResponse
	if err := f.s.RecvMsg(&r); err != nil {
		f.t.Fatal(err)
	}
	return &r
}

func (f *fetcher) fetch(r rawcodec.FetchRequest) *rawcodec.FetchResponse {
	f.t.Helper()
	id := f.ask(r)
	resp := f.next()
	if resp.ID != id {
		f.t.Fatalf("answer to %d, not %d", resp.ID, id)
	}
	return resp
}

// messages decodes batches.
func messages(t testing.TB, b []byte, topic string) (out []message.Message) {
	t.Helper()
	var dec batch.Decoder
	for len(b) > 0 {
		h, err := batch.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if err := batch.Verify(b, &h); err != nil {
			t.Fatal(err)
		}
		it, err := dec.Open(&h, nil)
		if err != nil {
			t.Fatal(err)
		}
		var r batch.Record
		for {
			ok, err := it.Next(&r)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			var m message.Message
			r.Fill(&m, &h, topic, "b1")
			out = append(out, m)
		}
		b = b[h.Length:]
	}
	return out
}

func texts(ms []message.Message) (out []string) {
	for _, m := range ms {
		out = append(out, string(m.Body))
	}
	return out
}

func codesOf(c int32) codes.Code { return codes.Code(c) } //nolint:gosec // a test's

func testGrant(i int) session.ToMember {
	return session.Granted{Grants: []session.Grant{{Offset: int64(i)}}}
}

func localQueueOf(topic string, id int32) store.Queue { return store.Queue{Topic: topic, ID: id} }

func (e *env) countSentBack() (n int) {
	e.t.Helper()
	if err := e.srv.store.State().Scan(sentBackSpace, "", func(string, []byte) bool { n++; return true }); err != nil {
		e.t.Fatal(err)
	}
	return n
}

func timestampOf(t time.Time) *timestamppb.Timestamp { return timestamppb.New(t) }

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

func codeOf(err error) string { return status.Code(err).String() }

func fetchOf(queue, waitMillis int32) rawcodec.FetchRequest {
	return rawcodec.FetchRequest{Topic: "T", QueueID: queue, WaitMillis: waitMillis}
}
