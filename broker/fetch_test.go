package broker

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// A deadline that passes while its stream ends finds the stream over: its timer has
// fired, so stopping it comes too late.
func TestDeadlineOfAnEndedStreamReturnsAtOnce(t *testing.T) {
	reg := prometheus.NewRegistry()
	e := start(t, testConfig(t.TempDir()), WithRegisterer(reg))
	f := &fetchStream{srv: e.srv, polls: make(map[uint64]*poll), done: make(chan struct{})}
	f.timer = time.AfterFunc(time.Hour, func() {})
	p := &poll{f: f, id: 1, due: -1, deadline: time.Now().Add(-time.Millisecond), state: pollParked}
	f.polls[1] = p
	f.mu.Lock()
	f.park(p)
	f.mu.Unlock()
	f.end()
	over := make(chan struct{})
	go func() { // ends with the test
		f.expire()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(5 * time.Second):
		t.Fatal("expire does not return, and holds the lock")
	}
	if n := gathered(t, reg)["tacit_broker_fetch_parked"]; n != 0 {
		t.Errorf("%v polls are parked after the end of their stream", n)
	}
}

// A poll whose time is up may find a message after all, go on and wait for the next.
// Its deadline must not take that wait away, so it has done with the store before a
// worker can have the poll.
func TestLatePollIsDisarmedBeforeItIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, testConfig(t.TempDir()))
		e.topic("T", 1)
		worker := make(chan func()) // blocks who puts the poll in line
		e.srv.fetchers = &crew{idle: []chan func(){worker}}
		f := &fetchStream{srv: e.srv, done: make(chan struct{})}
		f.timer = time.AfterFunc(time.Hour, func() {})
		defer f.end()
		var woken atomic.Bool
		p := &poll{f: f, id: 1, at: localQueueOf("T", 0), due: -1, deadline: time.Now(), state: pollParked}
		p.waiter.Wake = func(bool) { woken.Store(true) }
		if ready, err := e.srv.store.Arm(&p.waiter, p.at, 0); ready || err != nil {
			t.Fatal(ready, err)
		}
		f.mu.Lock()
		f.park(p)
		f.mu.Unlock()
		go f.expire() // ends when the worker has it
		synctest.Wait()
		e.producer().send(batch.Info{Topic: "T"}, bodies("a")...)
		if woken.Load() {
			t.Error("the poll is in line, and still armed")
		}
		<-worker
	})
}

func TestGaugeOfParkedPollsFallsWhenStreamsEnd(t *testing.T) {
	reg := prometheus.NewRegistry()
	e := start(t, testConfig(t.TempDir()), WithRegisterer(reg))
	e.topic("T", 4)
	f := e.fetcher()
	for id := range int32(4) {
		f.ask(rawcodec.FetchRequest{Topic: "T", QueueID: id, WaitMillis: 20_000})
	}
	e.producer().send(batch.Info{Topic: "T"}, bodies("a")...)
	f.next() // those asked for earlier are parked, or about to be
	if err := f.s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var r rawcodec.FetchResponse
	if err := f.s.RecvMsg(&r); !errors.Is(err, io.EOF) {
		t.Fatalf("after the end of the stream: %v %+v", err, r)
	}
	if n := gathered(t, reg)["tacit_broker_fetch_parked"]; n != 0 {
		t.Errorf("%v polls are parked after the end of their stream", n)
	}
}

// What is stored goes to the reader on the goroutine that stored it. A reader that
// does not read must not keep that one.
func TestReaderThatDoesNotReadKeepsNoProducerWaiting(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Durability = store.None
	e := start(t, cfg)
	const queues, rounds = 8, 40
	e.topic("T", queues)
	conn := e.dial()
	t.Cleanup(func() { _ = conn.Close() })
	s, err := tacitv1.NewDataServiceClient(conn).Fetch(e.ctx(), grpc.ForceCodecV2(rawcodec.New()))
	if err != nil {
		t.Fatal(err)
	}
	deaf := &fetcher{t: t, s: s}
	p := e.producer()
	body := strings.Repeat("x", 20<<10)
	for i := range rounds { // 6.4 MB, more than all windows on the way
		for q := range int32(queues) {
			// The polls wait for what comes next. None is answered to the end.
			deaf.ask(rawcodec.FetchRequest{Topic: "T", QueueID: q, Offset: int64(i), WaitMillis: 10_000})
		}
		for q := range int32(queues) {
			p.send(batch.Info{Topic: "T", Queue: q}, bodies(body)...)
		}
	}
}
