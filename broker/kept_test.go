package broker

import (
	"errors"
	"os"
	"testing"

	"github.com/tacitmq/tacit/internal/rawcodec"
	"github.com/tacitmq/tacit/internal/rpcerr"
	tacitv1 "github.com/tacitmq/tacit/proto/tacit/v1"
)

// A holder that comes back with a place in a log that is lost must not pass over what is
// stored there now: it is given its lease anew, from what is committed.
func TestHolderPastTheEndOfALostLogReadsWhatIsStoredThereNow(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 1)
	e.fill(0, 5)
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, "T"))
	m.acquire(mq("T", 0))
	g := m.granted()
	epoch := g.GetEpoch()
	if err := e.commit(mq("T", 0), epoch, 3); err != nil {
		t.Fatal(err)
	}
	lost := testConfig(t.TempDir()) // a copy, to be put back
	if err := os.CopyFS(lost.DataDir, os.DirFS(cfg.DataDir)); err != nil {
		t.Fatal(err)
	}
	e.fill(0, 3) // and c1 reads it all
	e.stop()

	e = start(t, lost)
	e.fill(0, 4)
	m = e.openSession(e.conn)
	h := hello("g", "c1", 1, "T")
	h.Held = []*tacitv1.OwnedQueue{{Queue: g.GetQueue(), Epoch: epoch}}
	m.hello(h)
	if w := await(m, (*tacitv1.SessionResponse).GetWelcome); len(w.GetGrants()) != 1 || !w.GetGrants()[0].GetKept() {
		t.Fatalf("welcome %v", w)
	}
	f := e.fetcher()
	fetch := func(epoch *tacitv1.Epoch, offset int64) error {
		r := f.fetch(rawcodec.FetchRequest{
			Topic: "T", Group: "g", Offset: offset, WaitMillis: 10_000, EpochBroker: epoch.GetBroker(), EpochCounter: epoch.GetCounter(),
		})
		return dataErr(r.Error)
	}
	if err := e.commit(mq("T", 0), epoch, 8); !errors.Is(err, rpcerr.ErrStaleEpoch) {
		t.Errorf("commit of a place that is lost: %v", err)
	}
	if err := fetch(epoch, 8); !errors.Is(err, rpcerr.ErrStaleEpoch) {
		t.Errorf("fetch from a place that is lost: %v", err)
	}
	if _, err := e.offset.SendBack(e.ctx(), &tacitv1.SendBackRequest{Group: "g", Queue: mq("T", 0), Epoch: epoch, Offset: 5}); !errors.Is(err, rpcerr.ErrStaleEpoch) {
		t.Errorf("a lost message is sent back: %v", err)
	}
	m.send(&tacitv1.SessionRequest{Frame: &tacitv1.SessionRequest_Released{Released: &tacitv1.Released{
		Leases: []*tacitv1.LeaseRelease{{Queue: g.GetQueue(), Epoch: epoch, Offset: 8, HasOffset: true}},
	}}})
	m.acquire(mq("T", 0))
	if g = m.granted(); g.GetOffset() != 3 {
		t.Errorf("granted anew: %v", g)
	}
	if err := fetch(g.GetEpoch(), 3); err != nil {
		t.Errorf("fetch under the new lease: %v", err)
	}
}

// A holder that was at the end when the broker stopped goes on, however much comes.
func TestHolderGoesOnAfterARestart(t *testing.T) {
	cfg := testConfig(t.TempDir())
	e := start(t, cfg)
	e.topic("T", 1)
	e.fill(0, 5)
	m := e.openSession(e.conn)
	m.hello(hello("g", "c1", 1, "T"))
	m.acquire(mq("T", 0))
	g := m.granted()
	e.stop()

	e = start(t, cfg)
	e.fill(0, 4)
	m = e.openSession(e.conn)
	h := hello("g", "c1", 1, "T")
	h.Held = []*tacitv1.OwnedQueue{{Queue: g.GetQueue(), Epoch: g.GetEpoch()}}
	m.hello(h)
	await(m, (*tacitv1.SessionResponse).GetWelcome)
	f := e.fetcher()
	for _, offset := range []int64{5, 9} { // the end then, the end now
		r := f.fetch(rawcodec.FetchRequest{
			Topic: "T", Group: "g", Offset: offset, WaitMillis: 1, EpochBroker: g.GetEpoch().GetBroker(), EpochCounter: g.GetEpoch().GetCounter(),
		})
		if r.Error != nil {
			t.Errorf("fetch from %d: %v", offset, r.Error)
		}
	}
}
