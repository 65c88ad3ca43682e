package compare

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func small() Options {
	return Options{
		Models: []string{"cooperative-sticky", "tacit"}, Scenarios: []string{"leave", "join"}, Sizes: []Size{{4, 8, 2}},
		Timers: []Timers{EqualTimers}, Phases: []Phase{Spread}, Seeds: []uint64{1, 2},
	}
}

// Each run is made once and told of once, whatever is made at the same time, in the order
// of sizes, timers, phases, scenarios, models and seeds.
func TestEveryRunIsMadeOnce(t *testing.T) {
	var reports []*Report
	for _, parallel := range []int{1, 4} {
		o := small()
		o.Parallel = parallel
		told := 0
		o.Progress = func(done, all int, r *Run) {
			if told++; done != told || all != 8 || r.Error != "" {
				t.Errorf("told %d of %d, want %d of 8: %s", done, all, told, r.Error)
			}
		}
		r, err := Compare(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if told != 8 || len(r.Runs) != 8 {
			t.Fatalf("%d runs, told of %d, want 8", len(r.Runs), told)
		}
		reports = append(reports, r)
	}
	var order []string
	for i, run := range reports[0].Runs {
		order = append(order, run.Scenario+"/"+run.Model)
		if (run.Chart != nil) != (run.Seed == 1) {
			t.Errorf("seed %d: chart %v", run.Seed, run.Chart != nil)
		}
		if other := reports[1].Runs[i]; !slices.Equal(run.Events, other.Events) || run.Seed != other.Seed {
			t.Errorf("run %d differs between one and four at once", i)
		}
	}
	want := []string{"join/tacit", "join/tacit", "join/cooperative-sticky", "join/cooperative-sticky", "leave/tacit", "leave/tacit", "leave/cooperative-sticky", "leave/cooperative-sticky"}
	if !slices.Equal(order, want) {
		t.Errorf("order %q", order)
	}
	if f := reports[0].Findings; len(f) == 0 || f[0].Text != "No queue had two owners in any run of tacit and cooperative-sticky, of 4 each." {
		t.Errorf("findings %+v", f)
	}
}

// A comparison that is stopped returns the runs that had ended.
func TestStoppedComparisonHasWhatWasDone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := small()
	o.Parallel = 1
	o.Progress = func(done, _ int, _ *Run) {
		if done == 3 {
			cancel()
		}
	}
	r, err := Compare(ctx, o)
	if !errors.Is(err, context.Canceled) || r == nil || len(r.Runs) != 3 {
		t.Errorf("%v, %+v", err, r)
	}
}

func TestBadOptionsAreNamed(t *testing.T) {
	for want, change := range map[string]func(*Options){
		`model "kafka": must be one of tacit`:        func(o *Options) { o.Models = []string{"kafka"} },
		`scenario "jion": must be one of start`:      func(o *Options) { o.Scenarios = []string{"join", "jion"} },
		"members 0: must be between 1 and 10000":     func(o *Options) { o.Sizes = []Size{{0, 8, 2}} },
		"queues 100001: must be between 1 and 10000": func(o *Options) { o.Sizes = []Size{{1, 100_001, 2}} },
		"brokers 101: must be between 1 and 100":     func(o *Options) { o.Sizes = []Size{{1, 1, 101}} },
		`timers "slow": must be one of`:              func(o *Options) { o.Timers = []Timers{"slow"} },
		`phase "odd": must be one of`:                func(o *Options) { o.Phases = []Phase{"odd"} },
		"latency -1ns: must be between":              func(o *Options) { o.Network.Latency = -1 },
		"latency 11s: must be between":               func(o *Options) { o.Network.Latency = 11 * time.Second },
		"loss 0.6: must be between 0 and 0.5":        func(o *Options) { o.Network.Loss = 0.6 },
		"1001 seeds: must be at most 1000":           func(o *Options) { o.Seeds = make([]uint64, 1001) },
	} {
		o := small()
		change(&o)
		if r, err := Compare(t.Context(), o); err == nil || r != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// More latency makes everything slower, and loss does not keep a group from settling.
func TestNetworkCounts(t *testing.T) {
	settle := func(n Network) Milliseconds {
		o := small()
		o.Models, o.Scenarios, o.Seeds, o.Network = []string{"tacit"}, []string{"join"}, []uint64{1}, n
		r, err := Compare(t.Context(), o)
		if err != nil || len(r.Runs) != 1 || r.Runs[0].Error != "" || !r.Runs[0].Events[0].Settled {
			t.Fatalf("%v, %+v", err, r)
		}
		return r.Runs[0].Events[0].SettleMS
	}
	near, far, lossy := settle(Network{}), settle(Network{Latency: 50 * time.Millisecond}), settle(Network{Latency: 50 * time.Millisecond, Loss: 0.2})
	if far < near+100 || lossy < far {
		t.Errorf("settled in %v, %v at 50 ms one way, %v with loss", near, far, lossy)
	}
}
