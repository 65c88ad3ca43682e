package lease

import (
	"errors"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func gen(n uint64) session.Epoch { return session.Epoch{Broker: 1 << 40, Counter: n} }

// claimNow claims queue 0 and returns the answer once all is on disk.
func claimNow(t *testing.T, table *Table, now time.Time, member string, g session.Epoch) error {
	t.Helper()
	table.Claim(now, 7, Key{"g", queue(0)}, member, g)
	for {
		out := table.Flush()
		if len(out.Answers) == 1 && out.Answers[0].Req == 7 {
			return out.Answers[0].Err
		}
		if out.PersistID == 0 {
			t.Fatal("no answer")
		}
		table.Persisted(out.PersistID)
	}
}

// A claim counts once it is on disk, and not before.
func TestClaimCountsOnceItIsOnDisk(t *testing.T) {
	table, _ := attached(t, Config{BrokerEpoch: 1})
	table.Claim(time.Unix(1, 0), 7, Key{"g", queue(0)}, "m1", gen(1))
	out := table.Flush()
	if len(out.Answers) > 0 || len(out.Records) != 1 || !out.Records[0].Claimed || out.Records[0].Holder != "m1" {
		t.Fatalf("%+v", out)
	}
	if err := table.Check("g", queue(0), gen(1)); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("before: %v", err)
	}
	table.Persisted(out.PersistID)
	if err := table.Check("g", queue(0), gen(1)); err != nil {
		t.Errorf("after: %v", err)
	}
}

// A stored claim counts for the next life of the broker, without any time limit.
func TestStoredClaimCountsAfterARestart(t *testing.T) {
	table, holders := New(Config{BrokerEpoch: 2}, []Record{{Key: Key{"g", queue(0)}, Epoch: gen(5), Holder: "m1", Claimed: true}})
	table.SetQueues([]allocate.Queue{queue(0)})
	if len(holders) != 0 {
		t.Errorf("a claimant is no holder: %+v", holders)
	}
	if err := table.Check("g", queue(0), gen(5)); err != nil {
		t.Error(err)
	}
	var o *Outdated
	if err := claimNow(t, table, time.Unix(1, 0), "m0", gen(4)); !errors.As(err, &o) || o.Seen != gen(5) {
		t.Errorf("an older claim: %v", err)
	}
}

// What is granted after a claim has a greater epoch, and ends it; while it is held no claim
// counts.
func TestLeaseAfterAClaimExceedsIt(t *testing.T) {
	table, hs := attached(t, Config{BrokerEpoch: 1}, "c1")
	if err := claimNow(t, table, time.Unix(1, 0), "m1", gen(3)); err != nil {
		t.Fatal(err)
	}
	if m := table.Claimed("g", time.Unix(0, 0)); m != "m1" {
		t.Errorf("claimed by %q", m)
	}
	table.Acquire(hs[0], []allocate.Queue{queue(0)}, "b1")
	mail := settle(table)
	if len(mail) != 1 || len(mail[0].Granted) != 1 || mail[0].Granted[0].Epoch.Compare(gen(3)) <= 0 {
		t.Fatalf("%+v", mail)
	}
	if err := table.Check("g", queue(0), gen(3)); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("under the claim: %v", err)
	}
	if m := table.Claimed("g", time.Time{}); m != "" {
		t.Errorf("still claimed by %q", m)
	}
	if err := claimNow(t, table, time.Unix(2, 0), "m1", gen(9)); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("claim of a held queue: %v", err)
	}
}

// An operator's reset ends a claim: the claimant must claim anew, under a greater
// generation.
func TestResetEndsAClaim(t *testing.T) {
	table, _ := attached(t, Config{BrokerEpoch: 1})
	if err := claimNow(t, table, time.Unix(1, 0), "m1", gen(3)); err != nil {
		t.Fatal(err)
	}
	table.Reset(9, Key{"g", queue(0)}, 0, false)
	settle(table)
	if err := table.Check("g", queue(0), gen(3)); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("under the claim of before: %v", err)
	}
	var o *Outdated
	err := claimNow(t, table, time.Unix(2, 0), "m1", gen(3))
	if !errors.As(err, &o) {
		t.Fatalf("the same claim: %v", err)
	}
	if err := claimNow(t, table, time.Unix(2, 0), "m1", session.Epoch{Broker: o.Seen.Broker + 1, Counter: 1}); err != nil {
		t.Errorf("a greater one: %v", err)
	}
}

// Without a lease nothing is committed to a queue that is claimed, and a claim that nobody
// uses is not a sign of life.
func TestClaimedQueueIsNotFree(t *testing.T) {
	table, _ := attached(t, Config{BrokerEpoch: 1})
	if err := claimNow(t, table, time.Unix(10, 0), "m1", gen(3)); err != nil {
		t.Fatal(err)
	}
	if err := table.commit(Key{"g", queue(0)}, session.Epoch{}, 1); !errors.Is(err, ErrLeaseHeld) {
		t.Errorf("commit without a lease: %v", err)
	}
	if _, idle := table.Idle(Key{"g", queue(0)}); idle {
		t.Error("idle")
	}
	if m := table.Claimed("g", time.Unix(11, 0)); m != "" {
		t.Errorf("%q used it", m)
	}
	table.Used(time.Unix(12, 0), Key{"g", queue(0)})
	if m := table.Claimed("g", time.Unix(11, 0)); m != "m1" {
		t.Errorf("%q used it", m)
	}
	table.Forget("g")
	if err := table.Check("g", queue(0), gen(3)); err != nil {
		t.Errorf("after what is free was forgotten: %v", err)
	}
	table.SetQueues(nil)
	if m := table.Claimed("g", time.Time{}); m != "" {
		t.Errorf("a deleted queue is claimed by %q", m)
	}
}
