package rpcerr

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

// failing answers every call with err, the streaming one after one message.
type failing struct {
	tacitv1.UnimplementedNameServerServiceServer
	err   error
	panic any
}

func (f *failing) GetRoutes(context.Context, *tacitv1.GetRoutesRequest) (*tacitv1.GetRoutesResponse, error) {
	if f.panic != nil {
		panic(f.panic)
	}
	return &tacitv1.GetRoutesResponse{}, f.err
}

func (f *failing) WatchRoutes(_ *tacitv1.WatchRoutesRequest, s grpc.ServerStreamingServer[tacitv1.WatchRoutesResponse]) error {
	if err := s.Send(&tacitv1.WatchRoutesResponse{Index: 1}); err != nil {
		return err
	}
	if f.panic != nil {
		panic(f.panic)
	}
	return f.err
}

type reported struct {
	method string
	err    error
}

// serve returns a client of f and what the server reports.
func serve(t *testing.T, f *failing) (tacitv1.NameServerServiceClient, chan reported) {
	t.Helper()
	reports := make(chan reported, 16)
	srv := grpc.NewServer(ServerOptions(func(_ context.Context, method string, err error) {
		reports <- reported{method, err}
	})...)
	tacitv1.RegisterNameServerServiceServer(srv, f)
	lis := bufconn.Listen(1 << 16)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }() // ended by the cleanup below
	conn, err := grpc.NewClient("passthrough:///bufconn", append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return tacitv1.NewNameServerServiceClient(conn), reports
}

// call returns the errors of the unary and of the streaming call.
func call(t *testing.T, c tacitv1.NameServerServiceClient) (unary, stream error) {
	t.Helper()
	_, unary = c.GetRoutes(t.Context(), &tacitv1.GetRoutesRequest{})
	s, err := c.WatchRoutes(t.Context(), &tacitv1.WatchRoutesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatalf("first message: %v", err)
	}
	_, stream = s.Recv()
	return unary, stream
}

func TestEverySentinelCrossesTheWireWithItsText(t *testing.T) {
	f := &failing{}
	c, reports := serve(t, f)
	for _, want := range table() {
		s, _ := errors.AsType[*sentinel](want)
		f.err = fmt.Errorf("topic %q: %w", "orders", want)
		unary, stream := call(t, c)
		for name, got := range map[string]error{"unary": unary, "stream": stream} {
			if !errors.Is(got, want) {
				t.Errorf("%s %s: came back as %v", s.reason, name, got)
			}
			if got.Error() != f.err.Error() {
				t.Errorf("%s %s: text %q, want %q", s.reason, name, got, f.err)
			}
			if status.Code(got) != s.code {
				t.Errorf("%s %s: code %v, want %v", s.reason, name, status.Code(got), s.code)
			}
			for _, other := range table() {
				if other != want && errors.Is(got, other) { //nolint:errorlint // identity is meant
					t.Errorf("%s %s: also matches %v", s.reason, name, other)
				}
			}
			e, ok := errors.AsType[*Error](got)
			if !ok || e.Reason() != s.reason || e.Code() != s.code {
				t.Errorf("%s %s: error value %+v", s.reason, name, e)
			}
		}

		d, known := Data(f.err)
		if !known {
			t.Errorf("%s: not known to Data", s.reason)
		}
		if back := FromData(d); !errors.Is(back, want) || back.Error() != f.err.Error() || status.Code(back) != s.code {
			t.Errorf("%s: back from data as %v", s.reason, back)
		}
		code, reason, text, _ := Parts(f.err)
		if back := FromParts(code, reason, text); !errors.Is(back, want) || back.Error() != f.err.Error() {
			t.Errorf("%s: back from parts as %v", s.reason, back)
		}
	}
	select {
	case r := <-reports:
		t.Errorf("reported %v", r)
	default:
	}
}

// An error that is declared and forgotten in the table would not come back.
func TestTableHasEveryDeclaredSentinelOnce(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "rpcerr.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := 0
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Err") {
			declared++
		}
		return true
	})
	if declared == 0 || declared != len(table()) {
		t.Errorf("%d sentinels are declared, the table has %d", declared, len(table()))
	}
	reasons, texts := map[string]bool{}, map[string]bool{}
	for _, err := range table() {
		s, ok := errors.AsType[*sentinel](err)
		if !ok || s.reason == "" || s.text == "" || s.code == codes.OK || s.code > codes.Unauthenticated {
			t.Fatalf("bad line %+v", err)
		}
		if reasons[s.reason] || texts[s.text] {
			t.Errorf("%s is there twice", s.reason)
		}
		reasons[s.reason], texts[s.text] = true, true
	}
}

func TestUnknownErrorsAreInternalWithoutText(t *testing.T) {
	f := &failing{err: errors.New("password is hunter2")}
	c, reports := serve(t, f)
	unary, stream := call(t, c)
	for name, got := range map[string]error{"unary": unary, "stream": stream} {
		if !errors.Is(got, ErrInternal) || status.Code(got) != codes.Internal || strings.Contains(got.Error(), "hunter2") {
			t.Errorf("%s: got %v", name, got)
		}
	}
	for _, method := range []string{tacitv1.NameServerService_GetRoutes_FullMethodName, tacitv1.NameServerService_WatchRoutes_FullMethodName} {
		if r := <-reports; r.method != method || !errors.Is(r.err, f.err) {
			t.Errorf("reported %v, want %v of %s", r, f.err, method)
		}
	}
}

func TestPanicOfAHandlerIsInternalAndReported(t *testing.T) {
	f := &failing{panic: "index out of range"}
	c, reports := serve(t, f)
	unary, stream := call(t, c)
	if !errors.Is(unary, ErrInternal) || !errors.Is(stream, ErrInternal) {
		t.Errorf("got %v and %v", unary, stream)
	}
	for range 2 {
		if r := <-reports; !strings.Contains(r.err.Error(), "index out of range") || !strings.Contains(r.err.Error(), "rpcerr_test.go") {
			t.Errorf("report lacks the cause or the stack: %v", r.err)
		}
	}
}

func TestFieldsCrossTheWire(t *testing.T) {
	f := &failing{}
	c, _ := serve(t, f)
	for _, tc := range []struct {
		err         error
		field, text string
	}{
		{Invalid("queue_id", "%d: must be 0 or greater", -1), "queue_id", "queue_id -1: must be 0 or greater"},
		{In(In(Invalid("topic", `"": must not be empty`), "subscriptions[2]"), "hello"), "hello.subscriptions[2].topic", `hello.subscriptions[2].topic "": must not be empty`},
		{message.CheckTopic("a b"), "topic", `topic "a b": must be letters, digits or any of %|_-`},
		{In(message.CheckGroup("a b"), "hello"), "hello.group", `hello.group "a b": must be letters, digits or any of %|_-`},
	} {
		f.err = tc.err
		unary, stream := call(t, c)
		for name, got := range map[string]error{"unary": unary, "stream": stream} {
			fe, ok := errors.AsType[*FieldError](got)
			if !ok || fe.Field != tc.field || got.Error() != tc.text || !errors.Is(got, ErrInvalidArgument) || status.Code(got) != codes.InvalidArgument {
				t.Errorf("%s: got %v (field %+v), want %q of field %s", name, got, fe, tc.text, tc.field)
			}
		}
	}
}

func TestContextErrorsStayContextErrors(t *testing.T) {
	f := &failing{}
	c, _ := serve(t, f)
	for _, want := range []error{context.Canceled, context.DeadlineExceeded} {
		f.err = fmt.Errorf("wait for disk: %w", want)
		if unary, stream := call(t, c); !errors.Is(unary, want) || !errors.Is(stream, want) {
			t.Errorf("got %v and %v, want %v", unary, stream, want)
		}
		code, reason, text, known := Parts(f.err)
		if !known || !errors.Is(FromParts(code, reason, text), want) {
			t.Errorf("%v does not come back from its parts", want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.GetRoutes(ctx, &tacitv1.GetRoutesRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled call returned %v", err)
	}
}

func TestStatusesOfOthersAreKept(t *testing.T) {
	f := &failing{err: status.Error(codes.Unimplemented, "no such method")}
	c, reports := serve(t, f)
	unary, stream := call(t, c)
	for name, got := range map[string]error{"unary": unary, "stream": stream} {
		if status.Code(got) != codes.Unimplemented || got.Error() != "no such method" {
			t.Errorf("%s: got %v", name, got)
		}
	}
	// A newer peer's reason is not known here; its code is.
	f.err = &sentinel{codes.Aborted, "OF_TOMORROW", "news"}
	if unary, _ := call(t, c); status.Code(unary) != codes.Aborted || unary.Error() != "news" {
		t.Errorf("got %v", unary)
	}
	if len(reports) > 0 {
		t.Errorf("reported %v", <-reports)
	}
	f.err = nil
	if unary, stream := call(t, c); unary != nil || !errors.Is(stream, io.EOF) {
		t.Errorf("without failure: %v and %v", unary, stream)
	}
}

func TestTextIsBoundedAndValid(t *testing.T) {
	long := fmt.Errorf("%s%w", strings.Repeat("é", maxText)+"\xff", ErrBadBatch)
	d, _ := Data(long)
	if len(d.GetMessage()) > maxText+3 || !utf8.ValidString(d.GetMessage()) {
		t.Errorf("text of %d bytes, valid %v", len(d.GetMessage()), utf8.ValidString(d.GetMessage()))
	}
	if d, _ := Data(fmt.Errorf("\xff\xfe: %w", ErrBadBatch)); !utf8.ValidString(d.GetMessage()) {
		t.Errorf("text %q is no valid string", d.GetMessage())
	}
}

func TestWithKeepsBothErrors(t *testing.T) {
	inner := errors.New("epoch 3.4 is not 3.5")
	err := fmt.Errorf("commit: %w", With(ErrStaleEpoch, inner))
	if !errors.Is(err, ErrStaleEpoch) || !errors.Is(err, inner) || err.Error() != "commit: epoch 3.4 is not 3.5" {
		t.Errorf("got %v", err)
	}
	if st, known := Status(err); !known || st.Code() != codes.Aborted {
		t.Errorf("status %v", st)
	}
}

func TestEveryRefusalHasASentinel(t *testing.T) {
	seen := map[error]bool{}
	for r := session.ReasonModeMismatch; r <= session.ReasonReplaced; r++ {
		err := Refusal(r, "because")
		s, ok := errors.AsType[*sentinel](err)
		if !ok || !strings.HasSuffix(err.Error(), ": because") || seen[s] {
			t.Errorf("%v: %v", r, err)
		}
		seen[s] = true
		if Refusal(r, "") != error(s) { //nolint:errorlint // identity is meant
			t.Errorf("%v without text is not its sentinel", r)
		}
	}
	if err := Refusal(200, "news"); err == nil || !strings.Contains(err.Error(), "news") {
		t.Errorf("unknown reason: %v", err)
	}
}

func TestTemporary(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("x"), false},
		{fmt.Errorf("x: %w", ErrShuttingDown), true},
		{ErrOverloaded, true},
		{ErrDiskFull, true},
		{ErrLimitReached, false},
		{ErrStaleEpoch, false},
		{ErrTopicNotFound, false},
		{context.Canceled, false},
		{context.DeadlineExceeded, true},
		{FromError(status.Error(codes.Unavailable, "connection refused")), true},
		{status.Error(codes.Unavailable, "connection refused"), true},
		{FromError(status.Error(codes.Canceled, "gone")), false},
	} {
		if got := Temporary(tc.err); got != tc.want {
			t.Errorf("Temporary(%v) = %v", tc.err, got)
		}
	}
}

func TestNilStaysNil(t *testing.T) {
	if d, known := Data(nil); d != nil || !known {
		t.Errorf("Data(nil) = %v", d)
	}
	if st, _ := Status(nil); st.Err() != nil {
		t.Errorf("Status(nil) = %v", st)
	}
	if FromError(nil) != nil || FromData(nil) != nil || FromParts(codes.OK, "", "") != nil || In(nil, "x") != nil {
		t.Error("nil became an error")
	}
	if err := FromData(&tacitv1.DataError{Message: "says OK"}); err == nil || status.Code(err) != codes.Unknown {
		t.Errorf("an error with code OK: %v", err)
	}
}

func FuzzFromData(f *testing.F) {
	f.Add(int32(5), "TOPIC_NOT_FOUND", "topic not found")
	f.Add(int32(-7), "", "\xff")
	f.Fuzz(func(t *testing.T, code int32, reason, text string) {
		err := FromData(&tacitv1.DataError{Code: code, Reason: reason, Message: text})
		if err == nil {
			t.Fatal("an error vanished")
		}
		_ = err.Error()
		if d, known := Data(err); d == nil || known && d.GetCode() == 0 {
			t.Fatalf("%v became %v", err, d)
		}
	})
}
