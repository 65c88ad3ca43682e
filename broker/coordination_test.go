package broker

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/coordinator"
	"github.com/tacitmq/tacit/coordination"
	"github.com/tacitmq/tacit/internal/wire"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// groupMember is a bare member of a coordinated group.
type groupMember struct {
	e      *env
	stream grpc.BidiStreamingClient[tacitv1.CoordinateRequest, tacitv1.CoordinateResponse]
	nextID uint64
	id     string
	gen    coordination.Generation
	early  []*tacitv1.CoordinateResponse
}

func (e *env) groupMember() *groupMember {
	e.t.Helper()
	s, err := tacitv1.NewCoordinationServiceClient(e.conn).Coordinate(e.ctx())
	if err != nil {
		e.t.Fatal(err)
	}
	return &groupMember{e: e, stream: s}
}

func (m *groupMember) who() coordination.Identity {
	return coordination.Identity{Group: "g", MemberID: m.id, Generation: m.gen}
}

func (m *groupMember) ask(r coordination.Request) uint64 {
	m.e.t.Helper()
	m.nextID++
	if err := m.stream.Send(wire.CoordinateRequest(m.nextID, r)); err != nil {
		m.e.t.Fatal(err)
	}
	return m.nextID
}

// answer waits for that of one request.
func (m *groupMember) answer(id uint64) coordination.Answer {
	m.e.t.Helper()
	for {
		if i := slices.IndexFunc(m.early, func(r *tacitv1.CoordinateResponse) bool { return r.GetId() == id }); i >= 0 {
			r := m.early[i]
			m.early = slices.Delete(m.early, i, i+1)
			a, err := wire.ToCoordinationAnswer(r)
			if err != nil {
				m.e.t.Fatal(err)
			}
			return a
		}
		r, err := m.stream.Recv()
		if err != nil {
			m.e.t.Fatal(err)
		}
		m.early = append(m.early, r)
	}
}

func (m *groupMember) call(r coordination.Request) coordination.Answer {
	m.e.t.Helper()
	return m.answer(m.ask(r))
}

func (m *groupMember) join() coordination.Join {
	return coordination.Join{
		Identity: m.who(), ClientID: "c", SessionTimeout: 30 * time.Second, RebalanceTimeout: time.Minute,
		Assignors: []string{"range"}, Subscription: coordination.Subscription{Topics: []string{"T"}},
	}
}

// enter joins and syncs as the only member, and returns what it gets.
func (m *groupMember) enter(queues ...allocate.Queue) []allocate.Queue {
	m.e.t.Helper()
	a := m.call(m.join()).(coordination.JoinAnswer)
	if a.Code == coordination.MemberIDRequired {
		m.id = a.MemberID
		a = m.call(m.join()).(coordination.JoinAnswer)
	}
	if a.Code != coordination.OK || a.Leader != m.id {
		m.e.t.Fatalf("join: %+v", a)
	}
	m.gen = a.Generation
	s := m.call(coordination.Sync{Identity: m.who(), Assignments: []coordination.Assignment{{MemberID: m.id, Queues: queues}}}).(coordination.SyncAnswer)
	if s.Code != coordination.OK {
		m.e.t.Fatalf("sync: %+v", s)
	}
	return s.Queues
}

func (m *groupMember) beat() coordination.Code {
	m.e.t.Helper()
	code, _ := m.call(coordination.Heartbeat{Identity: m.who()}).Outcome()
	return code
}

// coordinating is a broker's configuration with no time to wait for more members.
func coordinating(t *testing.T) Config {
	t.Helper()
	cfg := testConfig(t.TempDir())
	cfg.GroupInitialDelay = 0
	return cfg
}

// A group that is stable goes on when its coordinator is started again, with nothing but
// what is on disk.
func TestRestartOfTheCoordinatorIsNoRebalance(t *testing.T) {
	cfg := coordinating(t)
	e := start(t, cfg)
	e.topic("T", 2)
	found, err := tacitv1.NewCoordinationServiceClient(e.conn).FindCoordinator(e.ctx(), &tacitv1.FindCoordinatorRequest{Group: "g"})
	if err != nil || found.GetBroker() != "b1" {
		t.Fatalf("%v, %v", found, err)
	}
	m := e.groupMember()
	mine := []allocate.Queue{{Topic: "T", Broker: "b1", ID: 0}, {Topic: "T", Broker: "b1", ID: 1}}
	if got := m.enter(mine...); !slices.Equal(got, mine) {
		t.Fatalf("assigned %v", got)
	}
	if code := m.beat(); code != coordination.OK {
		t.Fatalf("heartbeat: %v", code)
	}
	e.stop()
	e = start(t, cfg)
	m.e, m.stream = e, e.groupMember().stream
	if code := m.beat(); code != coordination.OK {
		t.Errorf("heartbeat after the restart: %v", code)
	}
	stale := *m
	stale.gen.Counter--
	if code := stale.beat(); code != coordination.IllegalGeneration {
		t.Errorf("heartbeat of a generation before: %v", code)
	}
}

// A member that is parked hears when the group is complete, on a stream that carries other
// requests meanwhile, and what it shares with others is stored before it is told.
func TestJoinIsParkedUntilAllHaveJoined(t *testing.T) {
	e := start(t, coordinating(t))
	e.topic("T", 2)
	a := e.groupMember()
	a.enter()
	b := e.groupMember()
	first := b.call(b.join()).(coordination.JoinAnswer)
	if b.id = first.MemberID; first.Code != coordination.MemberIDRequired {
		t.Fatalf("%+v", first)
	}
	parked := b.ask(b.join())
	code := a.beat()
	for code != coordination.RebalanceInProgress { // until the join has arrived
		code = a.beat()
	}
	again := a.call(a.join()).(coordination.JoinAnswer)
	joined := b.answer(parked).(coordination.JoinAnswer)
	if again.Code != coordination.OK || joined.Code != coordination.OK || again.Generation != joined.Generation || len(again.Members) != 2 {
		t.Fatalf("%+v\n%+v", again, joined)
	}
	// The end of a stream is nothing to the group.
	if err := b.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
	b.stream = e.groupMember().stream
	b.gen, a.gen = joined.Generation, again.Generation
	late := b.ask(coordination.Sync{Identity: b.who()})
	a.call(coordination.Sync{Identity: a.who(), Assignments: []coordination.Assignment{{MemberID: b.id, Queues: []allocate.Queue{{Topic: "T", Broker: "b1", ID: 1}}}}})
	if got := b.answer(late).(coordination.SyncAnswer); got.Code != coordination.OK || len(got.Queues) != 1 {
		t.Errorf("%+v", got)
	}
}

// The consumer protocol: the coordinator knows the queues of the topic by itself.
func TestCoordinatorAssignsByItself(t *testing.T) {
	e := start(t, coordinating(t))
	e.topic("T", 4)
	m := e.groupMember()
	m.id = "made-by-the-member"
	beat := func() coordination.ConsumerHeartbeatAnswer {
		r := coordination.ConsumerHeartbeat{Identity: m.who(), ClientID: "c", RebalanceTimeout: time.Minute, HasOwned: true}
		if m.gen.IsZero() {
			r.Topics = []string{"T"}
		}
		return m.call(r).(coordination.ConsumerHeartbeatAnswer)
	}
	for {
		a := beat()
		if a.Code != coordination.OK {
			t.Fatalf("%+v", a)
		}
		m.gen = a.Generation
		if len(a.Queues) == 4 {
			break
		}
	}
}

// What cannot be a request ends the stream that it came on, with a text that names the
// field, and no other.
func TestBadRequestsToACoordinatorAreRefusedByName(t *testing.T) {
	e := start(t, coordinating(t))
	e.topic("T", 1)
	good := e.groupMember()
	good.enter()
	for want, m := range map[string]*tacitv1.CoordinateRequest{
		"group":                          {Id: 1, Identity: &tacitv1.GroupIdentity{}, Request: &tacitv1.CoordinateRequest_Heartbeat{}},
		"request":                        {Id: 1, Identity: &tacitv1.GroupIdentity{Group: "g"}},
		"member_id of":                   {Id: 1, Identity: &tacitv1.GroupIdentity{Group: "g", MemberId: strings.Repeat("m", wire.MaxMemberID+1)}},
		"join.client_id":                 {Id: 1, Identity: &tacitv1.GroupIdentity{Group: "g"}, Request: &tacitv1.CoordinateRequest_Join{Join: &tacitv1.JoinGroup{}}},
		"waits for its answer":           nil, // two joins of one id
		"requests wait for their answer": {},  // too many
	} {
		bad := e.groupMember()
		switch {
		case m == nil:
			first := bad.call(bad.join()).(coordination.JoinAnswer)
			bad.id = first.MemberID
			for range 2 {
				_ = bad.stream.Send(wire.CoordinateRequest(9, bad.join()))
			}
		case m.GetIdentity() == nil:
			for i := range maxOpenRequests + 1 { // all are parked: the first member does not join again
				j := bad.join()
				j.Instance = fmt.Sprint("i", i)
				_ = bad.stream.Send(wire.CoordinateRequest(uint64(100+i), j))
			}
		default:
			_ = bad.stream.Send(m)
		}
		for {
			_, err := bad.stream.Recv()
			if err == nil {
				continue
			}
			if !strings.Contains(err.Error(), want) || status.Code(err) != codes.InvalidArgument {
				t.Errorf("want %q, got %v", want, err)
			}
			break
		}
	}
	if code := good.beat(); code != coordination.OK && code != coordination.RebalanceInProgress {
		t.Errorf("another stream: %v", code)
	}
}

// Records are what they were when they are read again, and damage names the group.
func TestGroupRecordsComeBackAsTheyWere(t *testing.T) {
	qs := []allocate.Queue{{Topic: "T", Broker: "b1", ID: 1}}
	gen := coordination.Generation{Broker: 3, Counter: 4}
	for _, r := range []coordinator.Record{
		coordinator.Classic{Group: "g", Generation: gen, Assignor: "range", Leader: "m", Members: []coordinator.ClassicMember{{
			MemberID: "m", Instance: "i", ClientID: "c", SessionTimeout: time.Second, RebalanceTimeout: time.Minute, Assignors: []string{"range"},
			Subscription: coordination.Subscription{Topics: []string{"T"}, Owned: qs, Generation: gen, Rack: "r"}, Assigned: qs,
		}}},
		coordinator.ConsumerGroup{Group: "g", Epoch: gen, TargetEpoch: gen, Assignor: "uniform"},
		coordinator.ConsumerMember{Group: "g", MemberID: "m", Instance: "i", ClientID: "c", Rack: "r", RebalanceTimeout: time.Minute, Topics: []string{"T"}, Assignor: "uniform"},
		coordinator.ConsumerTarget{Group: "g", MemberID: "m", Queues: qs},
		coordinator.ConsumerCurrent{Group: "g", MemberID: "m", Epoch: gen, Previous: gen, Assigned: qs, Revoking: qs, Away: true},
	} {
		key := recordKey(r.Key())
		b, err := encodeRecord(r)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decodeRecord(key, b)
		if err != nil {
			t.Fatal(err)
		}
		again, err := encodeRecord(back)
		if err != nil || string(again) != string(b) || back.Key() != r.Key() {
			t.Errorf("%+v\n%+v, %v", r, back, err)
		}
		if _, err := decodeRecord(key+"x", b); err == nil || !strings.Contains(err.Error(), `"g"`) {
			t.Errorf("under another key: %v", err)
		}
		if _, err := decodeRecord(key, append(slices.Clone(b), 0xff)); err == nil || !strings.Contains(err.Error(), `"g"`) {
			t.Errorf("damaged: %v", err)
		}
	}
	none, err := proto.Marshal(&tacitv1.GroupRecord{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeRecord("g\x00a\x00", none); err == nil {
		t.Error("an empty record is taken")
	}
}
