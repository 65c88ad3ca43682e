package broker

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// fetchEnv has one batch of 256 KiB in each of 8 queues and memory for two of them.
func fetchEnv(t *testing.T) *env {
	cfg := testConfig(t.TempDir())
	cfg.MaxFetchBytes, cfg.MaxFetchMemory = 512<<10, 1<<20
	e := start(t, cfg)
	e.topic("T", 8)
	p := e.producer()
	for q := range int32(8) {
		p.send(batch.Info{Topic: "T", Queue: q}, message.Message{Body: make([]byte, 256<<10)})
	}
	return e
}

const asked = 32

// slowFetcher asks for all queues on a connection of its own and reads nothing.
func (e *env) slowFetcher() *fetcher {
	conn := e.dial()
	e.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	e.t.Cleanup(cancel)
	s, err := tacitv1.NewDataServiceClient(conn).Fetch(ctx, grpc.ForceCodecV2(rawcodec.New()))
	if err != nil {
		e.t.Fatal(err)
	}
	f := &fetcher{t: e.t, s: s}
	for i := range int32(asked) {
		f.ask(rawcodec.FetchRequest{Topic: "T", QueueID: i % 8})
	}
	return f
}

func (e *env) fetchMemoryHeld() (held int64) {
	m := e.srv.fetchMemory
	m.mu.Lock()
	defer m.mu.Unlock()
	for f := range m.streams {
		held += f.holds
	}
	return held
}

// Without a bound for all together, each client that stops reading pins a few
// answers, and a thousand of them pin gigabytes.
func TestClientsThatDoNotReadHoldBoundedMemoryAndLoseTheirStream(t *testing.T) {
	e := fetchEnv(t)
	m := e.srv.fetchMemory
	m.mu.Lock()
	m.stall = time.Second
	m.mu.Unlock()
	var slow []*fetcher
	for range 6 {
		slow = append(slow, e.slowFetcher())
	}
	// One that reads is served all the same, after the others have had their time.
	f := e.fetcher()
	for q := range int32(8) {
		r := f.fetch(rawcodec.FetchRequest{Topic: "T", QueueID: q})
		if err := dataErr(r.Error); err != nil || len(r.Batches) < 256<<10 {
			t.Fatalf("queue %d: %d bytes, %v", q, len(r.Batches), err)
		}
		r.Free()
		if held := e.fetchMemoryHeld(); held > m.size {
			t.Fatalf("%d bytes are held, %d are allowed", held, m.size)
		}
	}
	ended := 0
	for _, s := range slow {
		for range asked {
			if err := s.s.RecvMsg(new(rawcodec.FetchResponse)); err != nil {
				if !errors.Is(err, rpcerr.ErrOverloaded) {
					t.Errorf("a slow client was told %v", err)
				}
				ended++
				break
			}
		}
	}
	if ended == 0 {
		t.Error("no stream was ended")
	}
}

func TestMemoryOfFetchesComesBack(t *testing.T) {
	e := fetchEnv(t)
	f := e.fetcher()
	for range 20 {
		for q := range int32(8) {
			r := f.fetch(rawcodec.FetchRequest{Topic: "T", QueueID: q})
			if err := dataErr(r.Error); err != nil {
				t.Fatal(err)
			}
			r.Free()
		}
	}
	if r := f.fetch(rawcodec.FetchRequest{Topic: "T", Offset: 99}); len(r.Batches) != 0 {
		t.Errorf("%d bytes", len(r.Batches))
	}
	e.stop() // all streams have ended
	if !e.srv.fetchMemory.sem.TryAcquire(e.srv.fetchMemory.size) {
		t.Errorf("%d bytes never came back", e.fetchMemoryHeld())
	}
}
