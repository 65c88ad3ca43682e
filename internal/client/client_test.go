package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
	"github.com/tacitmq/tacit/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBusy = rpcerr.ErrOverloaded

// produceAll sends n calls and returns their outcomes once all have come.
func produceAll(c *cluster, n int) ([]ProduceResult, []error) {
	res, errs := make([]ProduceResult, n), make([]error, n)
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		c.Produce(&ProduceCall{Broker: "b", Batch: fmt.Append(nil, i), Done: func(r ProduceResult, err error) {
			res[i], errs[i] = r, err
			wg.Done()
		}})
	}
	wg.Wait()
	return res, errs
}

func waitingCalls(p *pipe) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

func TestAnswersInAnyOrderReachTheirCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
			var all []*tacitv1.ProduceRequest
			for {
				m, err := st.Recv()
				if err != nil {
					return err
				}
				if all = append(all, m); len(all) < 100 {
					continue
				}
				slices.Reverse(all)
				for _, m := range all {
					a := &tacitv1.ProduceResponse{Id: m.GetId()}
					if _, err := fmt.Sscan(string(m.GetBatch()), &a.BaseOffset); err != nil {
						return err
					}
					if a.GetBaseOffset() == 7 {
						a.Error = &tacitv1.DataError{Code: 8, Reason: "OVERLOADED", Message: "too much"}
					}
					if err := st.Send(a); err != nil {
						return err
					}
				}
				all = nil
			}
		}
		c := open(t, s, 5*time.Second)
		res, errs := produceAll(c, 100)
		for i := range res {
			switch {
			case i == 7:
				if !errors.Is(errs[i], errBusy) {
					t.Errorf("call 7: %v", errs[i])
				}
			case errs[i] != nil || res[i].Offset != int64(i):
				t.Errorf("call %d: %+v, %v", i, res[i], errs[i])
			}
		}
	})
}

func TestCallsEndAtTheirTimeoutAndLateAnswersAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
			for n := 0; ; n++ {
				m, err := st.Recv()
				if err != nil {
					return err
				}
				if n%2 == 0 { // every second one is answered at once, so the stream lives
					if err := st.Send(&tacitv1.ProduceResponse{Id: m.GetId()}); err != nil {
						return err
					}
					continue
				}
				time.AfterFunc(3*time.Second, func() { _ = st.Send(&tacitv1.ProduceResponse{Id: m.GetId()}) })
			}
		}
		c := open(t, s, 2*time.Second)
		begun := time.Now()
		_, errs := produceAll(c, 1000)
		late := 0
		for _, err := range errs {
			if errors.Is(err, context.DeadlineExceeded) {
				late++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); late != 500 || took > 3*time.Second {
			t.Errorf("%d calls timed out after %v, want 500 after 2 s", late, took)
		}
		time.Sleep(5 * time.Second)
		b, err := c.find("b")
		if err != nil {
			t.Fatal(err)
		}
		if n := waitingCalls(b.produce); n > 0 {
			t.Errorf("%d calls still wait", n)
		}
	})
}

func TestStreamWithoutAnyAnswerIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var mu sync.Mutex
		streams := 0
		s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
			mu.Lock()
			streams++
			mute := streams == 1
			mu.Unlock()
			for {
				m, err := st.Recv()
				if err != nil {
					return err
				}
				if !mute {
					if err := st.Send(&tacitv1.ProduceResponse{Id: m.GetId()}); err != nil {
						return err
					}
				}
			}
		}
		c := open(t, s, 2*time.Second)
		if _, errs := produceAll(c, 10); !errors.Is(errs[0], context.DeadlineExceeded) && !errors.Is(errs[0], rpcerr.ErrUnreachable) {
			t.Errorf("over a mute stream: %v", errs[0])
		}
		time.Sleep(time.Second)
		if _, errs := produceAll(c, 10); errs[0] != nil {
			t.Errorf("after that: %v", errs[0])
		}
	})
}

func TestBrokenStreamFailsItsCallsAtOnceAndIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
			if _, err := st.Recv(); err != nil {
				return err
			}
			return rpcerr.ErrShuttingDown
		}
		c := open(t, s, 5*time.Second)
		for range 3 {
			begun := time.Now()
			_, errs := produceAll(c, 10)
			for _, err := range errs {
				if !errors.Is(err, rpcerr.ErrShuttingDown) {
					t.Errorf("call on a stream that ended: %v", err)
				}
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("took %v", took)
			}
		}
	})
}

func TestDeadBrokerFailsItsCallersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.down["broker:1"] = true
		c := open(t, s, 4*time.Second)
		begun := time.Now()
		_, errs := produceAll(c, 10)
		if errs[0] == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("produce: %v after %v", errs[0], time.Since(begun))
		}
		begun = time.Now()
		if _, err := c.Commit(t.Context(), "b", CommitRequest{Group: "G"}); err == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("commit: %v after %v", err, time.Since(begun))
		}
		begun = time.Now()
		if _, err := c.OpenSession(t.Context(), "b", func(session.ToMember) {}); err == nil || time.Since(begun) > 5*time.Second {
			t.Errorf("session: %v after %v", err, time.Since(begun))
		}
		if _, err := c.Commit(t.Context(), "nobody", CommitRequest{}); !errors.Is(err, rpcerr.ErrUnreachable) {
			t.Errorf("unknown broker: %v", err)
		}
	})
}

func TestCallsOfABrokerThatHangsEndWithinTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.commit = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		c := open(t, s, 2*time.Second)
		begun := time.Now()
		if _, err := c.Commit(t.Context(), "b", CommitRequest{Group: "G"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > 3*time.Second {
			t.Errorf("commit: %v after %v", err, time.Since(begun))
		}
	})
}

func TestFetchTakenBackIsCancelledAtTheBrokerAndNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		cancelled := make(chan uint64, 1)
		s.fetch = func(st grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error {
			for {
				m, err := st.Recv()
				if err != nil {
					return err
				}
				if m.GetCancel() {
					cancelled <- m.GetId()
					if err := st.Send(&tacitv1.FetchResponse{Id: m.GetId()}); err != nil {
						return err
					}
				} else if m.GetOffset() == 5 {
					if err := st.Send(&tacitv1.FetchResponse{Id: m.GetId(), NextOffset: 6, Batches: []byte("batch")}); err != nil {
						return err
					}
				}
			}
		}
		c := open(t, s, 5*time.Second)
		done := make(chan FetchResult, 10)
		call := &FetchCall{Queue: allocate.Queue{Topic: "T", Broker: "b"}, Group: "G", Wait: time.Minute, Done: func(r FetchResult, err error) {
			if err != nil {
				t.Error(err)
			}
			done <- r
		}}
		c.Fetch(call)
		time.Sleep(time.Second)
		if !c.CancelFetch(call) || c.CancelFetch(call) {
			t.Error("a call that waits is taken back, once")
		}
		<-cancelled
		call.Offset = 5
		c.Fetch(call)
		if r := <-done; r.Next != 6 || string(r.Batches) != "batch" {
			t.Errorf("the call used again: %+v", r)
		}
		time.Sleep(time.Second)
		if len(done) > 0 {
			t.Error("the call taken back was answered")
		}
	})
}

// followed is a broker that answers each fetch again and again as it is told, and
// tells which were cancelled.
func followed(s *server) (answer chan<- bool, cancelled <-chan uint64) {
	tell, told := make(chan bool), make(chan uint64, 10)
	s.fetch = func(st grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		go func() { // ends with the stream
			for {
				o, err := st.Recv()
				if err != nil {
					return
				}
				if o.GetCancel() {
					told <- o.GetId()
				}
			}
		}()
		for next := int64(1); ; next++ {
			select {
			case following, ok := <-tell:
				if !ok {
					return nil
				}
				if err := st.Send(&tacitv1.FetchResponse{Id: m.GetId(), NextOffset: next, Batches: []byte("batch"), Following: following}); err != nil {
					return err
				}
			case <-st.Context().Done():
				return nil
			}
		}
	}
	return tell, told
}

func TestFetchThatFollowsIsAnsweredUntilItIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		answer, cancelled := followed(s)
		c := open(t, s, time.Second)
		type outcome struct {
			FetchResult
			err error
		}
		done := make(chan outcome, 10)
		call := &FetchCall{Queue: allocate.Queue{Topic: "T", Broker: "b"}, Group: "G", Wait: 5 * time.Second, Follow: true}
		call.Done = func(r FetchResult, err error) {
			if c.CancelFetch(call) {
				t.Error("a call is taken back while its answer is handed over")
			}
			if !c.Follow(call, r.Next < 3) || c.Follow(call, true) {
				t.Error("what is decided is decided once")
			}
			done <- outcome{r, err}
		}
		c.Fetch(call)
		for next := int64(1); next <= 3; next++ {
			time.Sleep(4 * time.Second) // each answer gives it its time anew
			answer <- true
			if r := <-done; r.err != nil || !r.Following || r.Next != next {
				t.Fatalf("answer %d: %+v", next, r)
			}
		}
		first := <-cancelled
		answer <- true // has crossed the cancel
		if id := <-cancelled; id != first {
			t.Errorf("what nobody waits for is cancelled as %d, not %d", id, first)
		}
		if len(done) > 0 {
			t.Errorf("a call taken back was answered: %+v", <-done)
		}
	})
}

// The stream ends while an answer is handed over after which the call should go on:
// that is told after the answer, once.
func TestFetchThatFollowsFailsAfterItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		answer, _ := followed(s)
		c := open(t, s, time.Second)
		var got []string
		handing, goOn := make(chan struct{}), make(chan struct{})
		call := &FetchCall{Queue: allocate.Queue{Topic: "T", Broker: "b"}, Group: "G", Wait: time.Minute, Follow: true}
		call.Done = func(_ FetchResult, err error) {
			if err != nil {
				got = append(got, "failed")
				return
			}
			close(handing)
			<-goOn
			if c.Follow(call, true) {
				t.Error("a call that failed goes on")
			}
			got = append(got, "answered")
		}
		c.Fetch(call)
		answer <- true
		<-handing
		closed := make(chan struct{})
		go func() { // waited for below
			c.Close()
			close(closed)
		}()
		synctest.Wait()
		close(goOn)
		<-closed
		if !slices.Equal(got, []string{"answered", "failed"}) {
			t.Errorf("%q", got)
		}
		if c.CancelFetch(call) {
			t.Error("a call that failed is taken back")
		}
	})
}

// An answer with an error is the last one, whatever else it says.
func TestFetchThatFailsDoesNotFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fetch = func(st grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error {
			m, err := st.Recv()
			if err != nil {
				return err
			}
			_ = st.Send(&tacitv1.FetchResponse{Id: m.GetId(), Following: true, Error: &tacitv1.DataError{Code: int32(codes.Unavailable)}})
			<-st.Context().Done()
			return nil
		}
		c := open(t, s, time.Second)
		done := make(chan bool, 10)
		c.Fetch(&FetchCall{Queue: allocate.Queue{Topic: "T", Broker: "b"}, Group: "G", Follow: true, Done: func(r FetchResult, err error) {
			if err == nil {
				t.Error("no error")
			}
			done <- r.Following
		}})
		if <-done {
			t.Error("a call that is over goes on")
		}
	})
}

// A stream on which nothing is heard any more after an answer is given up with the call that followed it.
func TestStreamThatFallsSilentWhileItIsFollowedIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		answer, _ := followed(s)
		serve, ended := s.fetch, make(chan time.Time, 10)
		s.fetch = func(st grpc.BidiStreamingServer[tacitv1.FetchRequest, tacitv1.FetchResponse]) error {
			defer func() { ended <- time.Now() }()
			return serve(st)
		}
		c := open(t, s, time.Second)
		call := &FetchCall{Queue: allocate.Queue{Topic: "T", Broker: "b"}, Group: "G", Wait: 5 * time.Second, Follow: true}
		failed := make(chan error, 1)
		call.Done = func(_ FetchResult, err error) {
			if err != nil {
				failed <- err
				return
			}
			c.Follow(call, true)
		}
		c.Fetch(call)
		answer <- true
		<-failed
		synctest.Wait()
		if len(ended) == 0 {
			t.Error("the stream goes on")
		}
	})
}

func TestBrokerThatMovesIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
			for {
				m, err := st.Recv()
				if err != nil {
					return err
				}
				if err := st.Send(&tacitv1.ProduceResponse{Id: m.GetId()}); err != nil {
					return err
				}
			}
		}
		c := open(t, s, 5*time.Second)
		if _, errs := produceAll(c, 1); errs[0] != nil {
			t.Fatal(errs[0])
		}
		s.mu.Lock()
		s.down["broker:1"] = true
		s.mu.Unlock()
		s.move("broker:2")
		time.Sleep(time.Second)
		begun := time.Now()
		if _, errs := produceAll(c, 1); errs[0] != nil || time.Since(begun) > time.Second {
			t.Errorf("after the move: %v after %v", errs[0], time.Since(begun))
		}
	})
}

func TestSessionKeepsTheOrderOfFramesAndFlushesAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		got := make(chan uint64, 1000)
		s.session = func(st grpc.BidiStreamingServer[tacitv1.SessionRequest, tacitv1.SessionResponse]) error {
			for {
				m, err := st.Recv()
				if err != nil {
					close(got)
					return err
				}
				seq := m.GetHeartbeat().GetSeq()
				got <- seq
				if err := st.Send(&tacitv1.SessionResponse{Frame: &tacitv1.SessionResponse_HeartbeatAck{HeartbeatAck: &tacitv1.HeartbeatAck{Seq: seq}}}); err != nil {
					return err
				}
			}
		}
		c := open(t, s, 5*time.Second)
		var back []uint64
		ses, err := c.OpenSession(t.Context(), "b", func(m session.ToMember) { back = append(back, m.(session.HeartbeatAck).Seq) })
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(200) {
			ses.Send(session.Heartbeat{Seq: i})
		}
		ses.Close(true)
		if err := ses.Wait(); err == nil {
			t.Error("a session that ended has no reason")
		}
		n := uint64(0)
		for seq := range got {
			if seq != n {
				t.Fatalf("frame %d came as number %d", seq, n)
			}
			n++
		}
		if n != 200 || len(back) != 200 || !slices.IsSorted(back) {
			t.Errorf("%d frames arrived and %d came back", n, len(back))
		}
	})
}

func TestSettingsShareOneClusterUntilItsLastUserCloses(t *testing.T) {
	cfg := Config{NameServers: []string{"127.0.0.1:1"}}
	open := func() Cluster {
		c, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b := open(), open()
	if a.(*reference).cluster != b.(*reference).cluster {
		t.Error("equal settings have two clusters")
	}
	other, err := Open(Config{NameServers: []string{"127.0.0.1:2"}})
	if err != nil {
		t.Fatal(err)
	}
	if other.(*reference).cluster == a.(*reference).cluster {
		t.Error("different settings share a cluster")
	}
	other.Close()
	a.Close()
	a.Close() // once counts
	if b.(*reference).closed {
		t.Error("the cluster ended before its last user")
	}
	b.Close()
	again := open()
	if again.(*reference).cluster == b.(*reference).cluster {
		t.Error("a closed cluster is handed out again")
	}
	again.Close()
}

func TestBadSettingsAreNamed(t *testing.T) {
	for _, cfg := range []Config{{}, {NameServers: []string{"no-port"}}, {NameServers: []string{"a:1"}, CallTimeout: -1}} {
		if c, err := Open(cfg); err == nil {
			c.Close()
			t.Errorf("accepted: %+v", cfg)
		}
	}
}

// A caller may be the goroutine that reads for everybody: it must not wait for a
// broker that reads nothing, also when it writes by itself.
func TestCallersDoNotWaitForABrokerThatReadsNothing(t *testing.T) {
	s := newServer(t)
	first := make(chan struct{})
	s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
		m, err := st.Recv()
		if err != nil {
			return err
		}
		if err := st.Send(&tacitv1.ProduceResponse{Id: m.GetId()}); err != nil {
			return err
		}
		close(first)
		<-st.Context().Done() // and reads no more
		return st.Context().Err()
	}
	c := open(t, s, time.Minute)
	produceAll(c, 1)
	<-first
	var ended sync.WaitGroup
	for range 2000 { // 20 MB, more than all windows on the way
		ended.Add(1)
		c.Produce(&ProduceCall{Broker: "b", Batch: make([]byte, 10<<10), Done: func(ProduceResult, error) { ended.Done() }})
	}
	c.Close()
	ended.Wait()
}

// Calls of one goroutine reach the broker in their order, whoever writes them.
func TestCallsAreWrittenInTheirOrder(t *testing.T) {
	s := newServer(t)
	var got []string
	s.produce = func(st grpc.BidiStreamingServer[tacitv1.ProduceRequest, tacitv1.ProduceResponse]) error {
		for {
			m, err := st.Recv()
			if err != nil {
				return err
			}
			got = append(got, string(m.GetBatch()[:4]))
			if err := st.Send(&tacitv1.ProduceResponse{Id: m.GetId()}); err != nil {
				return err
			}
		}
	}
	c := open(t, s, time.Minute)
	const n = 3000
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		size := 4 + i%7*3000 // some go beyond what callers write
		c.Produce(&ProduceCall{Broker: "b", Batch: append(fmt.Appendf(nil, "%04d", i), make([]byte, size)...), Done: func(ProduceResult, error) { wg.Done() }})
		if i%100 == 0 {
			wg.Wait() // nothing is under way
		}
	}
	wg.Wait()
	if len(got) != n || !slices.IsSorted(got) {
		t.Errorf("%d of %d calls came, in order: %v", len(got), n, slices.IsSorted(got))
	}
}
