package compare

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// Live runs of real members and brokers show what the simulation does: one owner for each
// queue, the least moves, nothing lost, what is sent and what it costs.
func TestLiveRunsSettleWithOneOwnerAndTheLeastMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("runs by the clock on the wall")
	}
	o := Options{
		Live: true, Models: []string{"tacit"}, Scenarios: []string{"join", "leave", "crash"}, Sizes: []Size{{4, 8, 2}},
		Timers: []Timers{FastTimers}, Phases: []Phase{InStep}, Seeds: []uint64{1},
	}
	r, err := Compare(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 3 {
		t.Fatalf("%d runs, want 3", len(r.Runs))
	}
	for _, run := range r.Runs {
		if run.Error != "" || run.Way != Live || len(run.Events) != 1 || run.Chart == nil || len(run.Chart.Lag) == 0 {
			t.Errorf("%s: %+v", run.Scenario, run)
			continue
		}
		e := run.Events[0]
		if !e.Settled || e.Moved != e.Minimum || e.Moved == 0 || e.TwiceQueues > 0 || e.Lost > 0 || e.OutOfOrder > 0 || e.Wire.MemberMessages == 0 || e.Wire.BrokerBytes == 0 || e.WatchedMS == 0 {
			t.Errorf("%s: %+v", run.Scenario, e)
		}
		if run.Scenario != "crash" && e.Repeated > 0 {
			t.Errorf("%s: %d messages came twice", run.Scenario, e.Repeated)
		}
	}
}

// A live run that is broken off is no result.
func TestLiveRunThatIsStoppedIsNoResult(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, err := Compare(ctx, Options{Live: true, Models: []string{"tacit"}, Scenarios: []string{"join"}, Sizes: []Size{{2, 2, 1}}})
	if !errors.Is(err, context.Canceled) || len(r.Runs) != 0 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestWhatCannotRunLiveIsNamed(t *testing.T) {
	for want, o := range map[string]Options{
		`model "rocketmq" runs simulated only: live are tacit`: {Models: []string{"rocketmq"}},
		`scenario "pause" runs simulated only: members share`:  {Scenarios: []string{"join", "pause"}},
		"live members 201: must be at most 200":                {Sizes: []Size{{201, 8, 2}}},
		"live queues 2049: must be at most 2048":               {Sizes: []Size{{2, 2049, 2}}},
		"live brokers 17: must be at most 16":                  {Sizes: []Size{{2, 32, 17}}},
		"live queues 1: must be at least one":                  {Sizes: []Size{{2, 1, 2}}},
		"latency and loss are of simulated runs":               {Network: Network{Loss: 0.1}},
	} {
		o.Live = true
		if r, err := Compare(t.Context(), o); err == nil || r != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// Handlers of one member begin in any order; only between members does order count.
func TestHandlersSideBySideAreNotOutOfOrder(t *testing.T) {
	q := allocate.Queue{Topic: topic, Broker: "b"}
	for _, c := range []struct {
		sideBySide bool
		second     string
		want       int
	}{{false, "a", 1}, {true, "a", 0}, {true, "b", 1}, {false, "b", 1}} {
		tl := newTally()
		tl.sideBySide = c.sideBySide
		tl.handedOut("a", q, 1)
		if n := tl.counts(); n.lost != 1 || n.disordered != 0 {
			t.Errorf("%+v: %+v before the earlier message", c, n)
		}
		tl.handedOut(c.second, q, 0)
		if n := tl.counts(); n.lost != 0 || n.disordered != c.want {
			t.Errorf("%+v: %+v", c, n)
		}
	}
}
