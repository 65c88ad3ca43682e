package broker

import (
	"errors"
	"testing"

	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

func generation(n uint64) *tacitv1.Epoch { return &tacitv1.Epoch{Broker: 1 << 50, Counter: n} } // above the epochs of a broker, which are times

func (e *env) claim(member string, g *tacitv1.Epoch, queues ...*tacitv1.MessageQueue) *tacitv1.ClaimResponse {
	e.t.Helper()
	r, err := e.offset.Claim(e.ctx(), &tacitv1.ClaimRequest{Group: "g", MemberId: member, Generation: g, Queues: queues})
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

func claimErr(r *tacitv1.ClaimResult) error {
	return dataErr(&rawcodec.Error{Code: r.GetCode(), Reason: r.GetReason(), Message: r.GetMessage()})
}

// What a greater generation has claimed is refused to smaller ones: fetches, commits,
// messages sent back and claims, also after the broker was started again.
func TestClaimFencesSmallerGenerations(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 2)
	e.fill(0, 5)
	q := mq("T", 0)
	if r := e.claim("m1", generation(1), q).GetResults()[0]; r.GetCode() != 0 || r.GetHasOffset() {
		t.Fatalf("first claim: %v", r)
	}
	if err := e.commit(q, generation(1), 3); err != nil {
		t.Fatal(err)
	}
	fetch := func(g *tacitv1.Epoch) error {
		r := e.fetcher().fetch(rawcodec.FetchRequest{Topic: "T", Group: "g", Offset: 3, EpochBroker: g.GetBroker(), EpochCounter: g.GetCounter()})
		return dataErr(r.Error)
	}
	if err := fetch(generation(1)); err != nil {
		t.Fatal(err)
	}
	if r := e.claim("m2", generation(2), q).GetResults()[0]; r.GetCode() != 0 || !r.GetHasOffset() || r.GetOffset() != 3 {
		t.Fatalf("next claim: %v", r)
	}
	for _, restarted := range []bool{false, true} {
		if restarted {
			e.stop()
			e = start(t, cfg)
		}
		if err := fetch(generation(1)); !errors.Is(err, rpcerr.ErrStaleEpoch) {
			t.Errorf("fetch: %v", err)
		}
		if err := e.commit(q, generation(1), 5); !errors.Is(err, rpcerr.ErrStaleEpoch) {
			t.Errorf("commit: %v", err)
		}
		if _, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: q, Epoch: generation(1), Offset: 4}); !errors.Is(err, rpcerr.ErrStaleEpoch) {
			t.Errorf("send back: %v", err)
		}
		r := e.claim("m1", generation(1), q).GetResults()[0]
		if !errors.Is(claimErr(r), rpcerr.ErrStaleEpoch) || r.GetSeen().GetCounter() != 2 {
			t.Errorf("claim: %v", r)
		}
		if r := e.claim("m3", generation(2), q).GetResults()[0]; !errors.Is(claimErr(r), rpcerr.ErrStaleEpoch) {
			t.Errorf("claim of another member under the same generation: %v", r)
		}
		if r := e.claim("m2", generation(2), q).GetResults()[0]; r.GetCode() != 0 {
			t.Errorf("claim once more: %v", r)
		}
		if err := fetch(generation(2)); err != nil {
			t.Errorf("fetch of the claimant: %v", err)
		}
	}
	if at, _ := e.committed(q); at != 3 {
		t.Errorf("committed %d, want 3", at)
	}
}

// A group has one model at a time: who comes with the other one is refused while the
// first is in use, and is told why.
func TestGroupHasOneModelAtATime(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	q := mq("T", 0)
	m, g := e.hold(q)
	r := e.claim("m1", generation(1), q).GetResults()[0]
	if err := claimErr(r); !errors.Is(err, rpcerr.ErrLeaseHeld) || !contains(err, "without a coordinator") {
		t.Errorf("claim of a leased queue: %v", err)
	}
	if err := e.commit(q, g.GetEpoch(), 0); err != nil {
		t.Fatal(err)
	}
	m.release(g, 0)
	for { // until the release has arrived
		if r = e.claim("m1", generation(2), q).GetResults()[0]; r.GetCode() == 0 {
			break
		}
	}
	reset := &tacitv1.ResetOffsetsRequest{Group: "g", Topic: "T", Offsets: []*tacitv1.OffsetTarget{{Queue: q}}}
	if _, err := e.admin.ResetOffsets(e.ctx(), reset); !errors.Is(err, rpcerr.ErrGroupActive) {
		t.Errorf("reset of a group in use: %v", err)
	}
	other := e.openSession(e.conn)
	other.hello(hello("g", "c2", 2, "T"))
	if refused := await(other, (*tacitv1.SessionResponse).GetRefused); refused.GetReason() != tacitv1.Reason_REASON_MODE_MISMATCH {
		t.Errorf("a member without a coordinator is told %v", refused)
	}
}

// Claims that cannot be are refused by name, and others of the same request are not.
func TestBadClaimsAreRefusedByName(t *testing.T) {
	e := start(t, testConfig(t.TempDir()))
	e.topic("T", 1)
	for want, r := range map[string]*tacitv1.ClaimRequest{
		"group":      {MemberId: "m", Generation: generation(1)},
		"member_id":  {Group: "g", Generation: generation(1)},
		"generation": {Group: "g", MemberId: "m"},
		"queues":     {Group: "g", MemberId: "m", Generation: generation(1), Queues: make([]*tacitv1.MessageQueue, maxOffsets+1)},
	} {
		if _, err := e.offset.Claim(e.ctx(), r); err == nil || !contains(err, want) {
			t.Errorf("want %s, got %v", want, err)
		}
	}
	rs := e.claim("m1", generation(1), mq("T", 7), mq("T", 0), mq("none", 0)).GetResults()
	if len(rs) != 3 || !errors.Is(claimErr(rs[0]), rpcerr.ErrQueueNotFound) || rs[1].GetCode() != 0 || !errors.Is(claimErr(rs[2]), rpcerr.ErrTopicNotFound) {
		t.Errorf("%v", rs)
	}
}
