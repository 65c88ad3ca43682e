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
			run, err := simulate(modelOf(t, "tacit"), sc, Size{16, 128, 2}, OwnTimers, Spread, Network{}, 1)
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

func TestRocketMQHasTwoOwnersWhenAMemberJoins(t *testing.T) {
	run, err := simulate(modelOf(t, "rocketmq"), Scenarios()[1], Size{16, 128, 2}, OwnTimers, Spread, Network{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if e := run.Events[0]; e.TwiceQueues == 0 || e.Repeated == 0 || e.Moved <= e.Minimum {
		t.Errorf("%+v", e)
	}
}
