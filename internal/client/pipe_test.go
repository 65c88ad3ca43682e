package client

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/rawcodec"
)

// goingDown is a server that answers the first data on a connection with the word that it has looked at no stream.
func goingDown(conn net.Conn) {
	defer conn.Close()
	const data, settings, goAway, ack = 0, 4, 7, 1 // types of HTTP/2 frames, and a flag
	out := make(chan []byte, 10)
	defer close(out)
	go func() { // ends with out
		for b := range out {
			_, _ = conn.Write(b)
		}
	}()
	frame := func(kind, flags byte, payload ...byte) {
		out <- append([]byte{0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 0}, payload...)
	}
	if _, err := io.CopyN(io.Discard, conn, int64(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	frame(settings, 0)
	for {
		var head [9]byte
		if _, err := io.ReadFull(conn, head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(head[0])<<16|int64(head[1])<<8|int64(head[2])); err != nil {
			return
		}
		switch {
		case head[3] == settings && head[4]&ack == 0:
			frame(settings, ack)
		case head[3] == data:
			frame(goAway, 0, make([]byte, 8)...)
		}
	}
}

// A broker that is going down may not have looked at a stream that is new: gRPC then opens it once more, on another
// connection. Whoever makes a call meanwhile does not wait for that connection.
func TestCallersDoNotWaitWhileAStreamIsOpenedOnceMore(t *testing.T) {
	here, there := net.Pipe()
	waits := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { goingDown(there) }) // ends with the connection
	var dials atomic.Int32
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return here, nil
		}
		close(waits)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	cc, err := grpc.NewClient("passthrough:///b", DialOptions(dial)...)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	p := newProducePipe(cc, rawcodec.New())
	defer p.close()
	call := func() *produceCall {
		return &produceCall{ProduceCall: &ProduceCall{Broker: "b", Done: func(ProduceResult, error) {}}, batch: make([]byte, 100), limit: time.Minute}
	}
	p.start(call())
	<-waits
	begun := time.Now()
	p.start(call())
	if took := time.Since(begun); took > dialTimeout/2 {
		t.Errorf("the caller waited %v", took)
	}
}

// A call may be taken back while it is made again to a broker that has moved.
func TestCallIsTakenBackWhileItIsMadeToAnotherBroker(t *testing.T) {
	down := func(context.Context) (grpc.ClientStream, error) { return nil, io.EOF }
	pipes := [2]*pipe{newPipe(down, receiveFetched), newPipe(down, receiveFetched)}
	defer pipes[0].close()
	defer pipes[1].close()
	var c cluster
	ended := make(chan struct{}, 1)
	call := &FetchCall{Done: func(FetchResult, error) { ended <- struct{}{} }}
	var wg sync.WaitGroup
	defer wg.Wait()
	var over atomic.Bool
	defer over.Store(true)
	wg.Go(func() {
		for !over.Load() {
			if c.CancelFetch(call) {
				ended <- struct{}{}
			}
		}
	})
	for i := range 1000 {
		f := newFetchCall(call, time.Minute)
		call.pipe.Store(pipes[i%2])
		pipes[i%2].start(f)
		<-ended
		if n := waitingCalls(pipes[i%2]); n > 0 {
			t.Fatalf("%d calls wait after the only one has ended", n)
		}
	}
}
