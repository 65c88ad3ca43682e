package lease

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func life(id string, random uint64) Life {
	return Life{Group: "g", ClientID: id, Incarnation: session.Incarnation{Counter: 1, Random: random}, Timeout: time.Second}
}

// attached returns a table with the queues 0 to 2 and holders with live sessions
// 1, 2, ...
func attached(t *testing.T, cfg Config, ids ...string) (*Table, []*Holder) {
	t.Helper()
	table, _ := New(cfg, nil)
	table.SetQueues([]allocate.Queue{queue(0), queue(1), queue(2)})
	var out []*Holder
	for i, id := range ids {
		h := table.Holder(life(id, uint64(i)))
		table.Attach(time.Unix(0, 0), h, uint64(i+1), time.Second, nil)
		out = append(out, h)
	}
	table.Flush()
	return table, out
}

// settle puts everything on disk and returns what was sent meanwhile.
func settle(table *Table) (mail []Mail) {
	for out := table.Flush(); ; out = table.Flush() {
		mail = append(mail, out.Mail...)
		if out.PersistID == 0 {
			return mail
		}
		table.Persisted(out.PersistID)
	}
}

// Epochs grow over lives of the broker, even if it was given an epoch of old.
func TestEpochsGrowOverStoredOnes(t *testing.T) {
	stored := []Record{
		{Key: Key{"g", queue(0)}, Epoch: session.Epoch{Broker: 7, Counter: 40}, Holder: "c1", TimeoutMillis: 1000},
		{Key: Key{"g", queue(1)}, Epoch: session.Epoch{Broker: 3, Counter: 90}},
	}
	for _, brokerEpoch := range []uint64{2, 7, 8} {
		table, holders := New(Config{BrokerEpoch: brokerEpoch}, stored)
		table.SetQueues([]allocate.Queue{queue(0), queue(1)})
		if len(holders) != 1 || holders[0].ClientID != "c1" || holders[0].Holds() != 1 || holders[0].Timeout != time.Second {
			t.Fatalf("stored holders %+v", holders)
		}
		h := table.Holder(life("c2", 1))
		table.Attach(time.Unix(0, 0), h, 1, time.Second, nil)
		table.Acquire(h, []allocate.Queue{queue(1)}, "b1")
		out := table.Flush()
		if len(out.Records) != 1 || out.Records[0].Epoch.Compare(stored[0].Epoch) <= 0 {
			t.Errorf("broker epoch %d: granted %+v after %v", brokerEpoch, out.Records, stored[0].Epoch)
		}
	}
}

// Of two stored records of one queue the later one counts.
func TestLaterStoredRecordCounts(t *testing.T) {
	old := Record{Key: Key{"g", queue(0)}, Epoch: session.Epoch{Broker: 1, Counter: 1}, Holder: "c1"}
	late := Record{Key: Key{"g", queue(0)}, Epoch: session.Epoch{Broker: 1, Counter: 2}, Holder: "c2"}
	for _, stored := range [][]Record{{old, late}, {late, old}} {
		table, holders := New(Config{BrokerEpoch: 2}, stored)
		if len(holders) != 1 || holders[0].ClientID != "c2" {
			t.Errorf("holders %+v", holders)
		}
		if d := table.Describe("g"); len(d) != 1 || d[0].Holder != "c2" || d[0].Epoch != late.Epoch {
			t.Errorf("leases %+v", d)
		}
	}
}

// A longer timeout is on disk before the holder may rely on it.
func TestLongerTimeoutIsStoredBeforeTheWelcome(t *testing.T) {
	table, hs := attached(t, Config{BrokerEpoch: 1}, "c1")
	table.Acquire(hs[0], []allocate.Queue{queue(0)}, "b1")
	settle(table)
	named := []session.Owned{{Queue: queue(0), Epoch: session.Epoch{Broker: 1, Counter: 1}}}

	table.Attach(time.Unix(1, 0), hs[0], 2, time.Second, named)
	if out := table.Flush(); out.PersistID != 0 || len(out.Welcomes) != 1 {
		t.Errorf("the same timeout: %+v", out)
	}
	table.Attach(time.Unix(1, 0), hs[0], 3, 1500*time.Microsecond+time.Minute, named)
	out := table.Flush()
	if len(out.Welcomes) != 0 || len(out.Records) != 1 || out.Records[0].TimeoutMillis != 60_002 {
		t.Fatalf("a longer one: %+v", out)
	}
	table.Persisted(out.PersistID)
	if out := table.Flush(); len(out.Welcomes) != 1 || !out.Welcomes[0].Grants[0].Kept {
		t.Errorf("after it is on disk: %+v", out)
	}
}

// Free leases are remembered until they are forgotten; who comes back after that
// starts anew.
func TestForgottenLeaseIsGrantedAnew(t *testing.T) {
	for _, forget := range []bool{false, true} {
		table, hs := attached(t, Config{BrokerEpoch: 1}, "c1", "c2")
		table.Acquire(hs[0], []allocate.Queue{queue(0), queue(1)}, "b1")
		settle(table)
		table.Drop(time.Unix(5, 0), hs[0])
		settle(table)
		if since, idle := table.Idle(Key{"g", queue(0)}); !idle || !since.Equal(time.Unix(5, 0)) {
			t.Errorf("idle %v since %v", idle, since)
		}
		if since, idle := table.Idle(Key{"g", queue(2)}); !idle || !since.IsZero() {
			t.Errorf("never held: idle %v since %v", idle, since)
		}
		if forget {
			table.Forget("g")
		}
		h := table.Holder(life("c1", 0))
		table.Attach(time.Unix(6, 0), h, 9, time.Second, []session.Owned{{Queue: queue(0), Epoch: session.Epoch{Broker: 1, Counter: 1}}})
		out := table.Flush()
		table.Persisted(out.PersistID)
		out = table.Flush()
		if g := out.Welcomes[0].Grants; len(g) != 1 || g[0].Kept == forget {
			t.Errorf("forgotten %v: %+v", forget, g)
		}
		if n := len(table.Describe("g")); forget && n != 1 {
			t.Errorf("%d leases remembered", n)
		}
	}
}

// All that changes at once is one batch and one piece of mail for each session.
func TestChangesAreCoalesced(t *testing.T) {
	table, hs := attached(t, Config{BrokerEpoch: 1}, "c1", "c2")
	all := []allocate.Queue{queue(0), queue(1), queue(2)}
	table.Acquire(hs[0], all, "b1")
	settle(table)
	table.Acquire(hs[1], all, "b1")
	if mail := settle(table); len(mail) != 1 || len(mail[0].Wanted) != 1 || len(mail[0].Wanted[0].Queues) != 3 {
		t.Errorf("wanted: %+v", mail)
	}
	table.Drop(time.Unix(1, 0), hs[0])
	out := table.Flush()
	if len(out.Records) != 3 || len(out.Mail) != 0 {
		t.Fatalf("drop: %+v", out)
	}
	table.Persisted(out.PersistID)
	if out = table.Flush(); len(out.Mail) != 1 || len(out.Mail[0].Granted) != 3 || !slices.IsSortedFunc(out.Mail[0].Granted, func(a, b session.Grant) int { return a.Queue.Compare(b.Queue) }) {
		t.Errorf("granted: %+v", out.Mail)
	}
	if s := table.Stats(); s.Grants != 6 || s.Dropped != 3 || s.Wanted != 3 {
		t.Errorf("stats %+v", s)
	}
}

// A commit without a lease counts while nobody holds it, also while a grant is on
// its way to the disk.
func TestCommitWithoutLease(t *testing.T) {
	table, hs := attached(t, Config{BrokerEpoch: 1}, "c1")
	k := Key{"g", queue(0)}
	commit := func(e session.Epoch) error {
		table.Commit(1, k, e, 5)
		out := table.Flush()
		table.Persisted(out.PersistID)
		return append(out.Answers, table.Flush().Answers...)[0].Err
	}
	if err := commit(session.Epoch{}); err != nil {
		t.Errorf("free: %v", err)
	}
	if err := commit(session.Epoch{Broker: 1, Counter: 1}); !errors.Is(err, ErrNotMember) {
		t.Errorf("an epoch of a queue that was never held: %v", err)
	}
	table.Acquire(hs[0], []allocate.Queue{queue(0)}, "b1")
	out := table.Flush()
	for range 2 { // granting, then held
		if table.Commit(2, k, session.Epoch{}, 5); !errors.Is(table.Flush().Answers[0].Err, ErrLeaseHeld) {
			t.Error("a commit without a lease counts beside a holder")
		}
		table.Persisted(out.PersistID)
		table.Flush()
	}
	if err := commit(session.Epoch{Broker: 1, Counter: 1}); err != nil {
		t.Errorf("held: %v", err)
	}
}

// An heir does not inherit a queue that was deleted under its predecessor.
func TestDeletedQueueIsNotInherited(t *testing.T) {
	table, hs := attached(t, Config{BrokerEpoch: 1}, "c1")
	table.Acquire(hs[0], []allocate.Queue{queue(0), queue(1)}, "b1")
	settle(table)
	table.SetQueues([]allocate.Queue{queue(0)})
	settle(table)
	heir := table.Holder(life("c1", 9))
	table.Inherit(time.Unix(1, 0), hs[0], heir, 7)
	out := table.Flush()
	table.Persisted(out.PersistID)
	out = table.Flush()
	if len(out.Welcomes) != 1 || len(out.Welcomes[0].Grants) != 1 || out.Welcomes[0].Grants[0].Queue != queue(0) {
		t.Errorf("inherited %+v", out.Welcomes)
	}
	if heir.Holds() != 1 || hs[0].Holds() != 0 || len(table.Describe("g")) != 1 {
		t.Errorf("heir holds %d, the one before %d: %+v", heir.Holds(), hs[0].Holds(), table.Describe("g"))
	}
}
