package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// hold makes member c1 of group g, which holds a queue for a minute.
func (e *env) hold(q *tacitv1.MessageQueue) (*member, *tacitv1.Grant) {
	e.t.Helper()
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, q.GetTopic()))
	m.acquire(q)
	return m, m.granted()
}

// Stored progress moves forward only, however commits overtake each other.
func TestF_OFF_09_ConcurrentCommitsNeverLowerTheOffset(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	const end = 400
	ms := make([]message.Message, end)
	e.producer().send(batch.Info{Topic: "T"}, ms...)
	q := mq("T", 0)
	_, g := e.hold(q)

	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		last := int64(0)
		for {
			select {
			case <-stop:
				return
			default:
			}
			at, _ := e.committed(q)
			if at < last {
				t.Errorf("fell from %d to %d", last, at)
				return
			}
			last = at
		}
	})
	var commits sync.WaitGroup
	for w := range 8 {
		commits.Go(func() {
			for i := w; i <= end; i += 8 {
				if err := e.commit(q, g.GetEpoch(), int64(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	commits.Wait()
	close(stop)
	wg.Wait()
	if at, _ := e.committed(q); at != end {
		t.Errorf("committed %d, want %d", at, end)
	}
}

// Offsets that cannot be are refused and change nothing.
func TestF_OFF_08_NonsenseOffsetsAreRefused(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.fill(0, 5)
	q := mq("T", 0)
	if err := e.commit(q, nil, 3); err != nil {
		t.Fatal(err)
	}
	if err := e.commit(q, nil, -1); !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("-1: %v", err)
	}
	if err := e.commit(q, nil, 5+1_000_000); !errors.Is(err, rpcerr.ErrOffsetOutOfRange) {
		t.Errorf("beyond the end: %v", err)
	}
	if err := e.commit(mq("T", 9), nil, 1); !errors.Is(err, rpcerr.ErrQueueNotFound) {
		t.Errorf("unknown queue: %v", err)
	}
	// A release cannot carry one either; the queue is free all the same.
	m, g := e.hold(q)
	m.release(g, 1_000_000)
	m.acquire(q)
	if again := m.granted(); again.GetOffset() != 3 {
		t.Errorf("after a release with an impossible offset: %v", again)
	}
}

// A group that has progress on any queue of a topic is no new group: it must not
// begin at the end of queues it has not seen.
func TestF_OFF_03_GroupWithProgressIsKnownForQueuesItNeverRead(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	e.topic("U", 1)
	e.fill(0, 1)
	if err := e.commit(mq("T", 0), nil, 1); err != nil {
		t.Fatal(err)
	}
	elsewhere := &tacitv1.MessageQueue{Topic: "T", Broker: "b2", QueueId: 7}
	for _, tc := range []struct {
		group string
		queue *tacitv1.MessageQueue
		want  bool
	}{
		{"g", mq("T", 1), true},
		{"g", elsewhere, true},
		{"g", mq("U", 0), false},
		{"g", mq("gone", 0), false},
		{"new", mq("T", 1), false},
	} {
		resp, err := e.offset.Committed(e.ctx(), &tacitv1.CommittedRequest{Group: tc.group, Queues: []*tacitv1.MessageQueue{tc.queue}})
		if err != nil || resp.GetEverCommitted() != tc.want {
			t.Errorf("%s %v: %v %v, want %v", tc.group, tc.queue, resp, err, tc.want)
		}
	}
}

// With a time, one question finds where to begin on all queues of a new group.
func TestCommittedFindsTheFirstMessageAtATime(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	e.fill(0, 3)
	queues := []*tacitv1.MessageQueue{mq("T", 0), mq("T", 1)}
	for _, tc := range []struct {
		at   time.Time
		want string
	}{
		{time.Unix(1, 0), "0 of 3, 0 of 0"}, {time.Now().Add(time.Hour), "3 of 3, 0 of 0"},
	} {
		resp, err := e.offset.Committed(e.ctx(), &tacitv1.CommittedRequest{Group: "new", Queues: queues, Time: timestamppb.New(tc.at)})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, o := range resp.GetOffsets() {
			got = append(got, fmt.Sprintf("%d of %d", o.GetTimeOffset(), o.GetMaxOffset()))
		}
		if s := strings.Join(got, ", "); s != tc.want || resp.GetEverCommitted() {
			t.Errorf("at %v: %s, want %s", tc.at, s, tc.want)
		}
	}
	_, err := e.offset.Committed(e.ctx(), &tacitv1.CommittedRequest{Group: "new", Queues: queues, Time: &timestamppb.Timestamp{Nanos: -1}})
	if !errors.Is(err, rpcerr.ErrInvalidArgument) {
		t.Errorf("a time that is none: %v", err)
	}
}

// A reset holds: commits of those who held the queue cannot undo it.
func TestF_CTL_06_ResetIsNotUndoneByCommitsInFlight(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.producer().send(batch.Info{Topic: "T"}, make([]message.Message, 100)...)
	q := mq("T", 0)
	reset := func(force bool) error {
		_, err := e.admin.ResetOffsets(e.ctx(), &tacitv1.ResetOffsetsRequest{
			Group: "g", Topic: "T", Force: force, Offsets: []*tacitv1.OffsetTarget{{Queue: q, Offset: 0}},
		})
		return err
	}
	m, g := e.hold(q)
	for round := range 50 {
		if err := e.commit(q, g.GetEpoch(), 50); err != nil {
			t.Fatal(err)
		}
		if err := reset(false); !errors.Is(err, rpcerr.ErrGroupActive) {
			t.Fatalf("reset of a held queue: %v", err)
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() { _ = e.commit(q, g.GetEpoch(), int64(60+i)) }) // accepted before the reset or refused
		}
		if err := reset(true); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if at, _ := e.committed(q); at != 0 {
			t.Fatalf("round %d: committed %d after the reset", round, at)
		}
		await(m, (*tacitv1.SessionResponse).GetLeaseLost)
		m.acquire(q)
		if g = m.granted(); g.GetOffset() != 0 {
			t.Fatalf("round %d: granted at %d", round, g.GetOffset())
		}
	}
}

// A reset of a stopped group takes effect both ways, and a dry run shows exactly
// the later result.
func TestF_CTL_07_DryRunShowsWhatAResetWillDo(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	e.fill(0, 5)
	if err := e.commit(mq("T", 0), nil, 4); err != nil {
		t.Fatal(err)
	}
	req := &tacitv1.ResetOffsetsRequest{Group: "g", Topic: "T", DryRun: true, Offsets: []*tacitv1.OffsetTarget{{Queue: mq("T", 0), Offset: 1}, {Queue: mq("T", 1)}}}
	dry, err := e.admin.ResetOffsets(e.ctx(), req)
	if err != nil {
		t.Fatal(err)
	}
	if at, _ := e.committed(mq("T", 0)); at != 4 {
		t.Fatalf("a dry run moved the offset to %d", at)
	}
	req.DryRun = false
	wet, err := e.admin.ResetOffsets(e.ctx(), req)
	if err != nil || fmt.Sprint(wet.GetChanges()) != fmt.Sprint(dry.GetChanges()) {
		t.Errorf("dry run %v, then %v %v", dry, wet, err)
	}
	if c := wet.GetChanges()[0]; c.GetBefore() != 4 || !c.GetHadBefore() || c.GetAfter() != 1 {
		t.Errorf("change %v", c)
	}
	if at, _ := e.committed(mq("T", 0)); at != 1 {
		t.Errorf("committed %d", at)
	}
	req.Offsets[0].Offset = 6
	if _, err := e.admin.ResetOffsets(e.ctx(), req); !errors.Is(err, rpcerr.ErrOffsetOutOfRange) {
		t.Errorf("beyond the end: %v", err)
	}
}

// poll fetches from a queue until it has n messages.
func (e *env) poll(topic string, queue int32, n int) (out []message.Message) {
	e.t.Helper()
	f := e.fetcher()
	at := int64(0)
	for len(out) < n {
		r := f.fetch(rawcodec.FetchRequest{Topic: topic, QueueID: queue, Offset: at, WaitMillis: 20_000})
		if err := dataErr(r.Error); err != nil {
			e.t.Fatal(err)
		}
		out = append(out, messages(e.t, r.Batches, topic)...)
		at = r.NextOffset
	}
	return out
}

func TestSentBackMessageComesAgainWithItsOrigin(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 2)
	in := message.Message{Tag: "x", Keys: []string{"k"}, Properties: map[string]string{"p": "v"}, Body: []byte("body"), BornTime: time.UnixMilli(1_700_000_000_000)}
	e.producer().send(batch.Info{Topic: "T", Queue: 1}, append(bodies("other"), in)...)
	resp, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 1), Offset: 1, Delay: durationpb.New(20 * time.Millisecond), Cause: "no luck"})
	if err != nil || resp.GetDeadLetter() || resp.GetDuplicate() || resp.GetReconsumeTimes() != 1 || resp.GetDelay().AsDuration() != 20*time.Millisecond {
		t.Fatal(resp, err)
	}
	m := e.poll("%RETRY%g", 0, 1)[0]
	if m.Tag != "x" || m.Key() != "k" || m.Property("p") != "v" || string(m.Body) != "body" || m.ReconsumeTimes != 1 || !m.BornTime.Equal(in.BornTime) {
		t.Errorf("copy %+v", m)
	}
	for name, want := range map[string]string{
		message.PropertyOriginTopic: "T", message.PropertyOriginQueue: "b1/1", message.PropertyOriginOffset: "1", message.PropertyRetryReason: "no luck",
	} {
		if got := m.Property(name); got != want {
			t.Errorf("property %s is %q, want %q", name, got, want)
		}
	}
	if wait := time.Duration(m.StoreTime.UnixMilli()-m.DeliverAt.UnixMilli()) * time.Millisecond; wait < 0 {
		t.Errorf("delivered %v before it was due", -wait)
	}
	// The copy of the copy still names the first origin; then the attempts are used up.
	retry := mq("%RETRY%g", 0)
	if resp, err = e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: retry, Delay: durationpb.New(0), MaxReconsumeTimes: 2}); err != nil || resp.GetReconsumeTimes() != 2 || resp.GetDeadLetter() {
		t.Fatal(resp, err)
	}
	m = e.poll("%RETRY%g", 0, 2)[1]
	if m.ReconsumeTimes != 2 || m.Property(message.PropertyOriginTopic) != "T" || m.Property(message.PropertyOriginOffset) != "1" {
		t.Errorf("second copy %+v", m)
	}
	if resp, err = e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: retry, Offset: 1, MaxReconsumeTimes: 2}); err != nil || !resp.GetDeadLetter() {
		t.Fatal(resp, err)
	}
	if m = e.poll("%DLQ%g", 0, 1)[0]; string(m.Body) != "body" || m.Property(message.PropertyOriginQueue) != "b1/1" || m.ReconsumeTimes != 2 {
		t.Errorf("dead letter %+v", m)
	}
}

// One message sent back again and again for the same attempt makes one copy:
// restarts add attempts, they do not multiply them.
func TestF_LIF_02_RepeatedSendBackMakesOneCopy(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 1)
	e.fill(0, 1)
	req := &tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Delay: durationpb.New(0)}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := e.offset.SendBack(e.ctx(), req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.poll("%RETRY%g", 0, 1)
	e.stop()
	e = start(t, cfg)
	if resp, err := e.offset.SendBack(e.ctx(), req); err != nil || !resp.GetDuplicate() {
		t.Errorf("after a restart: %v %v", resp, err)
	}
	if err := e.srv.pruneOnce(e.ctx()); err != nil {
		t.Error(err)
	}
	if resp, err := e.offset.SendBack(e.ctx(), req); err != nil || !resp.GetDuplicate() {
		t.Errorf("after a sweep, with no progress: %v %v", resp, err)
	}
	if _, high, err := e.srv.store.Bounds(localQueueOf("%RETRY%g", 0)); err != nil || high != 1 {
		t.Errorf("retry topic holds %d copies, %v", high, err)
	}
	// Once the group is past the message nothing needs to be remembered.
	if err := e.commit(mq("T", 0), nil, 1); err != nil {
		t.Fatal(err)
	}
	if err := e.srv.pruneOnce(e.ctx()); err != nil {
		t.Error(err)
	}
	if n := e.countSentBack(); n != 0 {
		t.Errorf("%d attempts remembered", n)
	}
}

func TestSendBackIsFencedByEpoch(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.fill(0, 1)
	q := mq("T", 0)
	m, g := e.hold(q)
	m.release(g, 0)
	m.acquire(q)
	g2 := m.granted()
	if _, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: q, Epoch: g.GetEpoch()}); !errors.Is(err, rpcerr.ErrStaleEpoch) {
		t.Errorf("old epoch: %v", err)
	}
	if _, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: q, Epoch: g2.GetEpoch()}); err != nil {
		t.Errorf("present epoch: %v", err)
	}
}

func TestSendBackOutOfRangeIsRefusedByName(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	e.fill(0, 1)
	for name, tc := range map[string]struct {
		req  *tacitv1.SendBackRequest
		want error
	}{
		"group":       {&tacitv1.SendBackRequest{Group: "a b", Queue: mq("T", 0)}, rpcerr.ErrInvalidArgument},
		"no queue":    {&tacitv1.SendBackRequest{Group: "g"}, rpcerr.ErrInvalidArgument},
		"topic":       {&tacitv1.SendBackRequest{Group: "g", Queue: mq("U", 0)}, rpcerr.ErrTopicNotFound},
		"queue":       {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 1)}, rpcerr.ErrQueueNotFound},
		"offset":      {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Offset: -1}, rpcerr.ErrInvalidArgument},
		"end":         {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Offset: 1}, rpcerr.ErrMessageNotFound},
		"beyond":      {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Offset: 2}, rpcerr.ErrOffsetOutOfRange},
		"delay level": {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), DelayLevel: 19}, rpcerr.ErrInvalidArgument},
		"delay":       {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Delay: durationpb.New(-1)}, rpcerr.ErrInvalidArgument},
		"reconsume":   {&tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), MaxReconsumeTimes: -1}, rpcerr.ErrInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := e.offset.SendBack(e.ctx(), tc.req); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestDelayOfAnAttemptIsRocketMQs(t *testing.T) {
	for attempt, want := range map[int32]time.Duration{
		1: 10 * time.Second, 2: 30 * time.Second, 3: time.Minute, 12: 10 * time.Minute, 13: 20 * time.Minute, 16: 2 * time.Hour, 40: 2 * time.Hour,
	} {
		if got := retryDelay(attempt); got != want {
			t.Errorf("attempt %d waits %v, want %v", attempt, got, want)
		}
	}
}

// Of two that ask for a queue at the same instant exactly one gets it.
func TestF_OWN_05_OneOfTwoAskersGetsTheLease(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	runs := 300
	if testing.Short() {
		runs = 50
	}
	for run := range runs {
		group := fmt.Sprintf("g%d", run)
		ctx, cancel := context.WithCancel(context.Background())
		var ms [2]*member
		for i := range ms {
			s, err := e.session.Session(ctx)
			if err != nil {
				t.Fatal(err)
			}
			ms[i] = &member{t: t, s: s, cancel: cancel}
			ms[i].hello(hello(group, fmt.Sprintf("c%d", i), uint64(i+1), "T"))
		}
		for _, m := range ms {
			await(m, (*tacitv1.SessionResponse).GetWelcome)
		}
		// Whoever is granted is then told that the other waits: one frame each way
		// decides the run.
		got := make(chan int, 2)
		for i, m := range ms {
			go func() { // both end with this run
				m.acquire(mq("T", 0))
				for {
					r, err := m.s.Recv()
					if err != nil {
						return
					}
					if r.GetGranted() != nil {
						got <- i
					}
				}
			}()
		}
		first := <-got
		deadline := time.After(2 * time.Millisecond)
		select {
		case second := <-got:
			t.Fatalf("run %d: %d was granted, then %d", run, first, second)
		case <-deadline:
		}
		cancel()
	}
}
