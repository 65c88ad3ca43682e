package broker

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

func frame(length int, kind byte, stream uint32) []byte {
	b := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, 0}
	return binary.BigEndian.AppendUint32(b, stream)
}

// Foreign bytes and forged lengths close their own connection and cost others
// nothing: no memory, no answer.
func TestF_RBS_05_ForgedLengthsCostNoMemoryAndDisturbNobody(t *testing.T) {
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 1)
	go func() { _ = e.srv.grpc.Serve(listener{lis}) }() // ends with the broker
	conn, err := grpc.NewClient(lis.Addr().String(), append(rpcerr.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	admin := tacitv1.NewAdminServiceClient(conn)
	works := func() {
		t.Helper()
		if _, err := admin.ListTopics(e.ctx(), &tacitv1.ListTopicsRequest{}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.producer().try(encodeBatch(t, batch.Info{Topic: "T"}, bodies("a")...)); err != nil {
			t.Fatal(err)
		}
	}
	works()
	settings := append([]byte(preface), frame(0, 4, 0)...)
	junk := make([]byte, 4096)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(junk)
	kinds := map[string][]byte{
		"HTTP/1":         []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"TLS":            {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
		"ssh":            []byte("SSH-2.0-OpenSSH_9.6\r\n"),
		"random":         junk,
		"frame of 2^24":  append(slices.Clone(settings), frame(1<<24-1, 0, 1)...),
		"half a preface": []byte(preface[:10]),
		"headers cut":    append(slices.Clone(settings), frame(1<<14, 1, 1)...),
		"settings of 3":  append(append([]byte(preface), frame(3, 4, 0)...), 1, 2, 3),
	}
	before := heapBytes()
	var held []net.Conn
	for i := range 1000 {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
		n := 0
		for _, b := range kinds {
			if n++; n == i%len(kinds)+1 {
				if _, err := c.Write(b); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	works()
	for _, c := range held {
		_ = c.Close()
	}
	works()
	// Connections take a moment to be let go of.
	deadline := time.Now().Add(20 * time.Second)
	for heapBytes() > before+before/10+(8<<20) {
		if time.Now().After(deadline) {
			t.Fatalf("heap grew from %d to %d bytes", before, heapBytes())
		}
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A batch too large is refused by name; a message larger than any frame may be
// ends its stream before it is read.
func TestMessageThatIsTooLargeIsRefused(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	s, err := e.data.Produce(e.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&tacitv1.ProduceRequest{Id: 1, Batch: make([]byte, 6<<20)}); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Recv(); err != nil || !errors.Is(rpcerr.FromData(r.GetError()), rpcerr.ErrMessageTooLarge) {
		t.Fatal(r, err)
	}
	if err := s.Send(&tacitv1.ProduceRequest{Id: 1, Batch: make([]byte, 17<<20)}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err == nil || codeOf(err) != "ResourceExhausted" {
		t.Errorf("got %v", err)
	}
	e.topic("T", 1)
}

// No bytes on a data stream end the broker or another's stream.
func TestF_RBS_06_OddFramesEndNothing(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	good := encodeBatch(t, batch.Info{Topic: "T"}, message.Message{Tag: "x", Keys: []string{"k"}, Properties: map[string]string{"a": "b"}, Body: []byte("body")})
	p := e.producer()
	p.send(batch.Info{Topic: "T"}, bodies("first")...)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		b := slices.Clone(good)
		switch i % 3 {
		case 0:
			b = b[:rnd.IntN(len(b))]
		case 1:
			for range 1 + rnd.IntN(4) {
				b[rnd.IntN(len(b))] ^= byte(1 + rnd.IntN(255))
			}
		case 2:
			binary.LittleEndian.PutUint32(b[rnd.IntN(batch.HeaderSize-4):], rnd.Uint32())
		}
		// Bytes 8 to 47 are the broker's own to fill in.
		same := len(b) == len(good) && bytes.Equal(b[:8], good[:8]) && bytes.Equal(b[48:], good[48:])
		if _, err := p.try(b); err == nil && !same {
			t.Fatalf("accepted a mutated batch %x", b)
		}
	}
	for i, got := range texts(e.poll("T", 0, 1)) {
		if want := "body"; got != want && i > 0 {
			t.Errorf("log holds %q", got)
		}
	}
}

func FuzzProduce(f *testing.F) {
	e := start(f, testConfig(f.TempDir()))
	e.topic("T", 1)
	f.Add(encodeBatch(f, batch.Info{Topic: "T"}, bodies("a")...))
	f.Add(encodeBatch(f, batch.Info{Topic: "T", DueTime: 1 << 60, ProducerID: 1}, bodies("a")...))
	p := e.producer()
	var mu sync.Mutex
	f.Fuzz(func(t *testing.T, b []byte) {
		mu.Lock()
		defer mu.Unlock()
		p.n++
		var r rawcodec.ProduceResponse
		if err := errors.Join(p.s.SendMsg(&rawcodec.ProduceRequest{ID: p.n, Batch: b}), p.s.RecvMsg(&r)); err != nil || r.ID != p.n {
			t.Fatalf("no answer: %v", err)
		}
	})
}

// A message that arrives just when a poll is parked is delivered at once.
func TestF_STL_01_NoWakeUpIsLost(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p, f := e.producer(), e.fetcher()
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	at := int64(0)
	for i := range rounds {
		id := f.ask(rawcodec.FetchRequest{Topic: "T", Offset: at, WaitMillis: 60_000})
		for range rnd.IntN(2000) {
			runtime.Gosched()
		}
		begun := time.Now()
		p.send(batch.Info{Topic: "T"}, bodies("m")...)
		r := f.next()
		if took := time.Since(begun); r.ID != id || r.NextOffset != at+1 || took > 5*time.Second {
			t.Fatalf("round %d: %+v after %v", i, r, took)
		}
		at = r.NextOffset
	}
}

// Requests are pipelined: a client need not wait for an answer, and one that
// reads none is stopped without harm to others.
func TestClientThatReadsNoAnswersIsHeldBackAlone(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	conn := e.dial()
	defer conn.Close()
	deaf, err := tacitv1.NewDataServiceClient(conn).Produce(e.ctx(), grpc.ForceCodecV2(rawcodec.New()))
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	b := encodeBatch(t, batch.Info{Topic: "T"}, bodies(string(make([]byte, 1000)))...)
	const n = 3000
	go func() { // ends below
		for i := range n {
			if err := deaf.SendMsg(&rawcodec.ProduceRequest{ID: uint64(i), Batch: b}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for range 50 {
		e.producer().send(batch.Info{Topic: "T"}, bodies("other")...)
	}
	// All were taken; the answers come when they are read, in any order.
	seen := make(map[uint64]bool)
	for len(seen) < n {
		var r rawcodec.ProduceResponse
		if err := deaf.RecvMsg(&r); err != nil {
			t.Fatal(err)
		}
		for _, a := range append([]rawcodec.ProduceResponse{r}, r.More...) {
			if err := dataErr(a.Error); err != nil || seen[a.ID] {
				t.Fatalf("answer %+v: %v", a, err)
			}
			seen[a.ID] = true
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// What a client has sent before it is done sending is all answered.
func TestHalfClosedProduceStreamGetsItsAnswers(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	p := e.producer()
	for i := range 100 {
		if err := p.s.SendMsg(&rawcodec.ProduceRequest{ID: uint64(i), Batch: encodeBatch(t, batch.Info{Topic: "T"}, bodies("m")...)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	n := 0
	for {
		var r rawcodec.ProduceResponse
		err := p.s.RecvMsg(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || r.Error != nil {
			t.Fatal(err, dataErr(r.Error))
		}
		n += 1 + len(r.More)
	}
	if n != 100 {
		t.Errorf("%d answers", n)
	}
}

// Many queues are polled on one stream, each is answered for itself.
func TestThousandPollsWaitOnOneStream(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	const queues = 1024
	e.topic("T", queues)
	f := e.fetcher()
	before := runtime.NumGoroutine()
	ids := make(map[uint64]int32)
	for q := range int32(queues) {
		ids[f.ask(rawcodec.FetchRequest{Topic: "T", QueueID: q, WaitMillis: 60_000})] = q
	}
	f.ask(rawcodec.FetchRequest{Topic: "T", QueueID: 0}) // the line is worked off in order
	f.next()
	if n := runtime.NumGoroutine() - before; n > 20 {
		t.Errorf("%d polls cost %d goroutines", queues, n)
	}
	p := e.producer()
	for q := range int32(queues) {
		p.send(batch.Info{Topic: "T", Queue: q}, bodies(fmt.Sprint(q))...)
	}
	for range queues {
		r := f.next()
		q, ok := ids[r.ID]
		if got := texts(messages(t, r.Batches, "T")); !ok || !slices.Equal(got, []string{fmt.Sprint(q)}) {
			t.Fatalf("answer %d for queue %d: %q", r.ID, q, got)
		}
		delete(ids, r.ID)
	}
}
