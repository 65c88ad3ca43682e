package routes

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/route"
)

func TestWatcherFollowsTopicsOfInterest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.server("n1:1")
		ns := Static("n1:1")
		b := n.broker("b1", ns, "t", "u")
		var mu sync.Mutex
		var told []string
		w, _ := run(t, n, ns, WithNotify(func(changed []route.Topic) {
			mu.Lock()
			defer mu.Unlock()
			for _, r := range changed {
				told = append(told, r.Name+"="+strings.Join(r.Brokers(), ","))
			}
		}))
		expect := func(want ...string) {
			t.Helper()
			time.Sleep(1500 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
			told = nil
		}
		expect()
		w.SetTopics("t", "x")
		expect("t=b1")
		w.AddTopics("u")
		expect("u=b1")
		time.Sleep(12 * time.Second) // warm: now x is known not to exist
		expect("x=")
		b.set("t", "x")
		expect("u=", "x=b1")
		w.SetTopics("x")
		expect()
		if got := hosts(w, "t"); got != "unknown" {
			t.Errorf("a topic without interest has %s", got)
		}
		if got := w.Topics(); len(got) != 1 || got[0].Name != "x" {
			t.Errorf("topics %v", got)
		}
	})
}

// During an outage of the only name server the known routes stay; after its start with nothing all brokers are back within one registration interval.
func TestF_NSV_05_RoutesOutliveTheNameServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		stop := n.server("n1:1")
		ns := Static("n1:1")
		n.broker("b1", ns, "t")
		n.broker("b2", ns, "t")
		removed := false
		w, _ := run(t, n, ns, WithNotify(func(changed []route.Topic) {
			for _, r := range changed {
				removed = removed || len(r.Hosts) < 2 && len(r.Hosts) > 0
			}
		}))
		w.SetTopics("t")
		time.Sleep(20 * time.Second)
		if got := hosts(w, "t"); got != "b1,b2" {
			t.Fatalf("hosts %s", got)
		}
		removed = false
		stop()
		for range 30 {
			time.Sleep(time.Second)
			if got := hosts(w, "t"); got != "b1,b2" {
				t.Fatalf("during the outage: hosts %s", got)
			}
		}
		if err := w.Ready(); !errors.Is(err, rpcerr.ErrUnreachable) || !strings.Contains(err.Error(), "n1:1") {
			t.Errorf("ready: %v", err)
		}
		n.server("n1:1")
		for range 20 { // empty, warming, partly registered: nothing is lost
			time.Sleep(time.Second)
			if got := hosts(w, "t"); got != "b1,b2" {
				t.Fatalf("after the start: hosts %s", got)
			}
		}
		if removed {
			t.Error("a route was told without one of its brokers")
		}
		m, err := Get(t.Context(), ns, n.dial, "t")
		if err != nil || len(m.Topics) != 1 || len(m.Topics[0].Hosts) != 2 || m.Warming {
			t.Errorf("the name server has %+v, %v", m, err)
		}
	})
}

// Whatever name servers come and go, also all at once, no route loses a broker
// that lives, and one that is told a change passes it on.
func TestLivingBrokersStayWhateverNameServersDo(t *testing.T) {
	for seed := range uint64(4) {
		synctest.Test(t, func(t *testing.T) {
			chance := rand.New(rand.NewPCG(seed, 1))
			n := newNetwork(t)
			addresses := []string{"n1:1", "n2:1", "n3:1"}
			source := &changing{now: addresses}
			stops := map[string]func(){}
			for _, a := range addresses {
				stops[a] = n.server(a)
			}
			var brokers []*broker
			for _, name := range []string{"b1", "b2"} {
				brokers = append(brokers, n.broker(name, source, "t"))
			}
			w, _ := run(t, n, source)
			w.SetTopics("t", "u")
			time.Sleep(15 * time.Second)
			for step := range 40 {
				a := addresses[chance.IntN(len(addresses))]
				switch chance.IntN(6) {
				case 0, 1:
					if stop := stops[a]; stop != nil {
						stop()
						delete(stops, a)
					}
				case 2, 3:
					if stops[a] == nil {
						stops[a] = n.server(a)
					}
				case 4: // one leaves the list for a while, but never all
					rest := slices.DeleteFunc(slices.Clone(addresses), func(b string) bool { return b == a })
					source.set(nil, rest...)
				default:
					source.set(nil, addresses...)
				}
				time.Sleep(time.Duration(chance.IntN(20_000)) * time.Millisecond)
				if got := hosts(w, "t"); got != "b1,b2" {
					t.Fatalf("seed %d, step %d: hosts %s", seed, step, got)
				}
			}
			source.set(nil, addresses...)
			for _, a := range addresses {
				if stops[a] == nil {
					n.server(a)
				}
			}
			brokers[0].set("t", "u")
			brokers[1].set("u")
			time.Sleep(30 * time.Second)
			if got := hosts(w, "t") + " " + hosts(w, "u"); got != "b1 b1,b2" {
				t.Fatalf("seed %d, at rest: hosts %s", seed, got)
			}
		})
	}
}

// A server that takes connections and says nothing is given up and dialled again, and harms nobody.
func TestSilentServerIsDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.server("n1:1")
		n.hole["n2:1"] = true
		n.broker("b1", Static("n1:1"), "t")
		w, _ := run(t, n, Static("n1:1", "n2:1"))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if r, err := w.Wait(ctx, "t"); err != nil || len(r.Hosts) != 1 {
			t.Errorf("got %v, %v", r, err)
		}
		time.Sleep(time.Minute)
		n.mu.Lock()
		dials := n.dials["n2:1"]
		n.hole["n2:1"] = false
		n.mu.Unlock()
		if dials < 5 {
			t.Errorf("dialled %d times in a minute", dials)
		}
		n.server("n2:1")
		n.broker("b2", Static("n2:1"), "t")
		time.Sleep(20 * time.Second)
		if got := hosts(w, "t"); got != "b1,b2" {
			t.Errorf("hosts %s", got)
		}
	})
}

// So is one that speaks HTTP/2 and answers no watch: the connection may end at
// something that is no name server any more.
func TestMuteServerIsDialledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		lis := bufconn.Listen(1 << 16)
		mute := &deafServer{opened: make(chan struct{}, 100)}
		mute.mute.Store(true)
		stopServing := serveDeaf(t, lis, mute)
		defer stopServing()
		n.lis["n1:1"] = lis
		w, stop := run(t, n, Static("n1:1"))
		defer stop()
		w.SetTopics("t")
		time.Sleep(FirstAnswer + time.Second)
		if err := w.Ready(); !errors.Is(err, rpcerr.ErrUnreachable) || !strings.Contains(err.Error(), "no answer within 5s") {
			t.Errorf("ready: %v", err)
		}
		time.Sleep(time.Minute)
		n.mu.Lock()
		dials := n.dials["n1:1"]
		n.mu.Unlock()
		if dials < 5 || n.connections("n1:1") > 1 {
			t.Errorf("dialled %d times in a minute, %d connections are open", dials, n.connections("n1:1"))
		}
		mute.mute.Store(false)
		time.Sleep(FirstAnswer + backoffMax + time.Second)
		if err := w.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
	})
}

// The restart of one name server does not make the gaps of another count; its end does.
func TestLastWordCountsThroughARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		stop := n.server("n1:1")
		n.server("n2:1")
		n.broker("b1", Static("n1:1", "n2:1"), "t")
		n.broker("b2", Static("n1:1"), "t") // is cut off from n2
		w, _ := run(t, n, Static("n1:1", "n2:1"))
		w.SetTopics("t")
		time.Sleep(15 * time.Second)
		stop()
		for range 5 { // and a pause before it is dialled again
			time.Sleep(time.Second)
			if got := hosts(w, "t"); got != "b1,b2" {
				t.Fatalf("while n1 restarts: hosts %s", got)
			}
		}
		stop = n.server("n1:1")
		for range 20 {
			time.Sleep(time.Second)
			if got := hosts(w, "t"); got != "b1,b2" {
				t.Fatalf("after n1 restarted: hosts %s", got)
			}
		}
		stop()
		time.Sleep(SilenceLimit + backoffMax + 2*time.Second)
		if got := hosts(w, "t"); got != "b1" {
			t.Errorf("after n1 went: hosts %s", got)
		}
	})
}

func TestWaitTellsWhatKeepsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		wait := func(w *Watcher, topic string) error {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := w.Wait(ctx, topic)
			return err
		}
		down, _ := run(t, n, Static("n9:1"))
		if err := wait(down, "t"); !errors.Is(err, rpcerr.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("no server: %v", err)
		}
		n.server("n1:1")
		w, _ := run(t, n, Static("n1:1", "n9:1"))
		n.broker("b1", Static("n1:1"), "t")
		if err := wait(w, "x"); !errors.Is(err, rpcerr.ErrWarming) {
			t.Errorf("while warming: %v", err)
		}
		time.Sleep(12 * time.Second)
		if err := wait(w, "x"); !errors.Is(err, rpcerr.ErrTopicNotFound) {
			t.Errorf("warm: %v", err)
		}
		if err := wait(w, "t"); err != nil {
			t.Errorf("a topic that is there: %v", err)
		}
		if err := w.Ready(); err != nil {
			t.Errorf("ready: %v", err)
		}
	})
}

// A watch that died without a word is noticed by the next reading.
func TestRoutesAreReadAgainEachTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		lis := bufconn.Listen(1 << 16)
		deaf := &deafServer{NameServerServiceServer: nil, opened: make(chan struct{}, 100)}
		stopServing := serveDeaf(t, lis, deaf)
		defer stopServing()
		n.lis["n1:1"] = lis
		w, stop := run(t, n, Static("n1:1"), WithReread(5*time.Second))
		defer stop()
		w.SetTopics("t")
		time.Sleep(time.Minute)
		if got := len(deaf.opened); got < 10 || got > 15 {
			t.Errorf("%d watches in a minute", got)
		}
		w.Refresh()
		w.Refresh()
		before := len(deaf.opened)
		time.Sleep(300 * time.Millisecond)
		if got := len(deaf.opened) - before; got != 1 {
			t.Errorf("two refreshes in a row opened %d watches", got)
		}
		stop()
	})
}

func TestGetAsksAllAndNamesWhoFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(t)
		n.server("n1:1")
		n.server("n2:1")
		n.broker("b1", Static("n1:1"), "t", "u")
		n.broker("b2", Static("n2:1"), "t")
		time.Sleep(12 * time.Second)
		all, err := Get(t.Context(), Static("n1:1", "n2:1", "n9:1"), n.dial)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range all.Topics {
			got = append(got, r.Name+"="+strings.Join(r.Brokers(), ","))
		}
		for _, b := range all.Brokers {
			got = append(got, b.Name)
		}
		if want := []string{"t=b1,b2", "u=b1", "b1", "b2"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if all.Warming || len(all.Failed) != 1 || all.Failed["n9:1"] == nil {
			t.Errorf("warming %v, failed %v", all.Warming, all.Failed)
		}
		if _, err := Get(t.Context(), Static("n8:1", "n9:1"), n.dial, "t"); !errors.Is(err, rpcerr.ErrUnreachable) || !strings.Contains(err.Error(), "n8:1") || !strings.Contains(err.Error(), "n9:1") {
			t.Errorf("nobody there: %v", err)
		}
		if _, err := Get(t.Context(), Static("n1:1"), n.dial, "a b"); !errors.Is(err, rpcerr.ErrInvalidArgument) {
			t.Errorf("bad topic: %v", err)
		}
	})
}
