package compare

import (
	"slices"
	"testing"
)

func modelOf(t *testing.T, name string) model {
	t.Helper()
	all := models()
	i := slices.IndexFunc(all, func(m model) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("no model %q", name)
	}
	return all[i]
}

// In every scenario tacit settles, has no queue with two owners, and where members or
// queues come and go it moves the minimum and stops nothing else.
func TestTacitSettlesWithOneOwnerAndTheLeastMoves(t *testing.T) {
	exact := []string{"start", "join", "leave", "crash", "silent-crash", "ten-join", "scale", "grow", "broker-lost", "coordinator-lost", "nameserver-lost"}
	for _, sc := range Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			t.Parallel()
			run, err := simulate(modelOf(t, "tacit"), sc, Size{12, 48, 2}, OwnTimers, Spread, Network{}, 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(run.Events) == 0 {
				t.Fatal("nothing happened")
			}
			for _, e := range run.Events {
				if !e.Settled || e.TwiceQueues > 0 || e.OutOfOrder > 0 || slices.Contains(exact, sc.Name) && (e.Moved != e.Minimum || e.Stopped > 0) {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// Equal seeds make equal runs, whatever else runs in the process.
func TestSeedDecidesARun(t *testing.T) {
	sc := Scenarios()[slices.IndexFunc(Scenarios(), func(s Scenario) bool { return s.Name == "partition" })]
	var first Run
	for i := range 3 {
		run, err := simulate(modelOf(t, "tacit"), sc, Size{8, 32, 2}, OwnTimers, Spread, Network{}, 7)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = run
		}
		if !slices.Equal(run.Events, first.Events) || !slices.Equal(run.Chart.Bars, first.Chart.Bars) {
			t.Errorf("run %d differs:\n%+v\n%+v", i, run.Events, first.Events)
		}
	}
}

// run plays one scenario of a small group.
func run(t *testing.T, m, scenario string, size Size, timers Timers, phase Phase, seed uint64) Run {
	t.Helper()
	i := slices.IndexFunc(Scenarios(), func(s Scenario) bool { return s.Name == scenario })
	if i < 0 {
		t.Fatalf("no scenario %q", scenario)
	}
	r, err := simulate(modelOf(t, m), Scenarios()[i], size, timers, phase, Network{}, seed)
	if err != nil {
		t.Fatalf("%s, %s: %v", m, scenario, err)
	}
	return r
}

// Neither strategy, nor the timers, nor how the heartbeats lie gives a queue of tacit two
// owners in any scenario.
func TestNoRunOfTacitHasTwoOwners(t *testing.T) {
	for _, m := range []string{"tacit", "tacit-rendezvous"} {
		for _, sc := range Scenarios() {
			t.Run(m+"/"+sc.Name, func(t *testing.T) {
				t.Parallel()
				for i, timers := range []Timers{OwnTimers, FastTimers, EqualTimers} {
					phase := []Phase{InStep, Spread}[i%2]
					r := run(t, m, sc.Name, Size{6, 24, 2}, timers, phase, uint64(i))
					for _, e := range r.Events {
						if e.TwiceQueues > 0 || !e.Settled || e.Lost > 0 {
							t.Errorf("%s timers, %s: %+v", timers, phase, e)
						}
					}
				}
			})
		}
	}
}

// With equal timers a join at 16 members and 128 queues leaves queues without an owner for
// at most a twentieth of the time of the cooperative protocol, and moves the minimum.
func TestJoinStopsATwentiethOfWhatTheCooperativeProtocolStops(t *testing.T) {
	for _, phase := range []Phase{InStep, Spread} {
		for seed := range uint64(2) {
			size := Size{16, 128, 2}
			ours := run(t, "tacit", "join", size, EqualTimers, phase, seed).Events[0]
			theirs := run(t, "cooperative-sticky", "join", size, EqualTimers, phase, seed).Events[0]
			if ours.GapTotalMS*20 > theirs.GapTotalMS || ours.Moved != ours.Minimum || theirs.Moved != theirs.Minimum {
				t.Errorf("%s, seed %d:\n%+v\n%+v", phase, seed, ours, theirs)
			}
		}
	}
}

// The coordinated models settle in every scenario. Without faults no queue has two owners,
// what the sticky ones move is the minimum, and only eager ones stop what stays.
func TestCoordinatedModelsSettleInEveryScenario(t *testing.T) {
	calm := []string{"start", "join", "leave", "crash", "silent-crash", "ten-join", "scale", "grow", "rolling-static", "slow-handlers"}
	least := []string{"join", "leave", "crash", "silent-crash", "ten-join"}
	for _, m := range models() {
		if !m.Coordinated {
			continue
		}
		for _, sc := range Scenarios() {
			t.Run(m.Name+"/"+sc.Name, func(t *testing.T) {
				t.Parallel()
				r := run(t, m.Name, sc.Name, Size{6, 24, 2}, FastTimers, Spread, 1)
				for _, e := range r.Events {
					if !e.Settled || slices.Contains(calm, sc.Name) && e.TwiceQueues > 0 {
						t.Errorf("%+v", e)
					}
					eager := m.fast.coord.Assignors != nil && !m.fast.coord.Assignors[0].Cooperative()
					sticky := m.Name != "eager-range" && m.Name != "eager-roundrobin"
					if slices.Contains(least, sc.Name) && (sticky && e.Moved != e.Minimum || !eager && e.Stopped > 0 || eager && e.Stopped == 0 && e.Moved < 24) {
						t.Errorf("%+v", e)
					}
				}
			})
		}
	}
}

// Members of RocketMQ poll the routes each for itself: for up to a poll and a tick they
// share other queues, and some queues have two owners.
func TestRocketMQHasTwoOwnersWhileRoutesDiffer(t *testing.T) {
	e := run(t, "rocketmq", "grow", Size{8, 32, 2}, OwnTimers, Spread, 1).Events[0]
	longest := e.TwiceTotalMS / Milliseconds(max(1, e.TwiceQueues))
	if e.TwiceQueues == 0 || longest < 1000 || longest > 50_000 || e.Repeated == 0 || e.Moved <= e.Minimum {
		t.Errorf("%+v", e)
	}
}
