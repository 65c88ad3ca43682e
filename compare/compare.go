package compare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Limits of what can be asked for.
const (
	MaxMembers = 10_000
	MaxQueues  = 100_000
	MaxBrokers = 100
	MaxSeeds   = 1_000
)

// Options say what is compared. Empty lists mean all, but for sizes and seeds: one of
// 16 members, 128 queues and 2 brokers, and one seed.
type Options struct {
	Models    []string
	Scenarios []string
	Sizes     []Size
	Timers    []Timers
	Phases    []Phase
	Seeds     []uint64
	Network   Network
	// Parallel is how many runs are made at once; 0: one for each core.
	Parallel int
	// Progress is told of each run that has ended, one at a time.
	Progress func(done, all int, r *Run)
}

// ModelNames returns the names of all models.
func ModelNames() (out []string) {
	for _, m := range models() {
		out = append(out, m.Name)
	}
	return out
}

// ModelTexts describes all models.
func ModelTexts() (out []Model) {
	for _, m := range models() {
		out = append(out, m.Model)
	}
	return out
}

// ScenarioNames returns the names of all scenarios.
func ScenarioNames() (out []string) {
	for _, s := range Scenarios() {
		out = append(out, s.Name)
	}
	return out
}

// Check says what is wrong with a size.
func (s Size) Check() error {
	var errs []error
	within := func(what string, n, most int) {
		if n < 1 || n > most {
			errs = append(errs, fmt.Errorf("%s %d: must be between 1 and %d", what, n, most))
		}
	}
	within("members", s.Members, MaxMembers)
	within("queues", s.Queues, MaxQueues)
	within("brokers", s.Brokers, MaxBrokers)
	return errors.Join(errs...)
}

// job is one run to be made.
type job struct {
	m      model
	sc     Scenario
	size   Size
	timers Timers
	phase  Phase
	seed   uint64
}

// picked returns those of all that are named, in their own order.
func picked[T any](all []T, name func(T) string, named []string, what string) ([]T, error) {
	if len(named) == 0 {
		return all, nil
	}
	for _, n := range named {
		if !slices.ContainsFunc(all, func(t T) bool { return name(t) == n }) {
			var names []string
			for _, t := range all {
				names = append(names, name(t))
			}
			return nil, fmt.Errorf("%s %q: must be one of %s", what, n, strings.Join(names, ", "))
		}
	}
	var out []T
	for _, t := range all {
		if slices.Contains(named, name(t)) {
			out = append(out, t)
		}
	}
	return out, nil
}

func (o *Options) complete() error {
	if len(o.Sizes) == 0 {
		o.Sizes = []Size{{16, 128, 2}}
	}
	if len(o.Seeds) == 0 {
		o.Seeds = []uint64{1}
	}
	if len(o.Timers) == 0 {
		o.Timers = []Timers{OwnTimers, FastTimers, EqualTimers}
	}
	if len(o.Phases) == 0 {
		o.Phases = []Phase{InStep, Spread}
	}
	if o.Parallel <= 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	if len(o.Seeds) > MaxSeeds {
		return fmt.Errorf("%d seeds: must be at most %d", len(o.Seeds), MaxSeeds)
	}
	for _, s := range o.Sizes {
		if err := s.Check(); err != nil {
			return fmt.Errorf("size %dx%dx%d: %w", s.Members, s.Queues, s.Brokers, err)
		}
	}
	for _, t := range o.Timers {
		if !slices.Contains([]Timers{OwnTimers, FastTimers, EqualTimers}, t) {
			return fmt.Errorf("timers %q: must be one of own, fast, equal", t)
		}
	}
	for _, p := range o.Phases {
		if p != InStep && p != Spread {
			return fmt.Errorf("phase %q: must be one of %s, %s", p, InStep, Spread)
		}
	}
	if o.Network.Latency < 0 || o.Network.Latency > 10*time.Second {
		return fmt.Errorf("latency %v: must be between 0s and 10s", o.Network.Latency)
	}
	if o.Network.Loss < 0 || o.Network.Loss > 0.5 {
		return fmt.Errorf("loss %v: must be between 0 and 0.5", o.Network.Loss)
	}
	return nil
}

// Compare makes all the runs in virtual time. If ctx ends it returns what is done so far
// with the error of ctx; runs that could not be made say so themselves.
func Compare(ctx context.Context, o Options) (*Report, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	ms, err := picked(models(), func(m model) string { return m.Name }, o.Models, "model")
	if err != nil {
		return nil, err
	}
	scs, err := picked(Scenarios(), func(s Scenario) string { return s.Name }, o.Scenarios, "scenario")
	if err != nil {
		return nil, err
	}
	r := &Report{Begun: time.Now().UTC().Truncate(time.Second), Machine: ThisMachine()}
	for _, m := range ms {
		r.Models = append(r.Models, m.Model)
	}
	for _, s := range scs {
		r.Scenes = append(r.Scenes, s.Scene)
	}
	begun := time.Now()
	jobs := o.jobs(ms, scs)
	runs := o.run(ctx, jobs)
	for _, run := range runs {
		if run != nil {
			r.Runs = append(r.Runs, *run)
		}
	}
	r.TookMS = float64(time.Since(begun).Milliseconds())
	r.Findings = findings(r)
	return r, ctx.Err()
}

// jobs lists the runs, so that what belongs together comes together.
func (o *Options) jobs(ms []model, scs []Scenario) (out []job) {
	for _, size := range o.Sizes {
		for _, t := range o.Timers {
			for _, p := range o.Phases {
				for _, sc := range scs {
					for _, m := range ms {
						for _, seed := range o.Seeds {
							out = append(out, job{m, sc, size, t, p, seed})
						}
					}
				}
			}
		}
	}
	return out
}

// run makes the runs, several at once, and returns them in the order of the jobs; nil
// are those that were not begun when ctx ended. A chart is kept of the first seed only.
func (o *Options) run(ctx context.Context, jobs []job) []*Run {
	out := make([]*Run, len(jobs))
	var mu sync.Mutex
	var wg sync.WaitGroup
	next, done := 0, 0
	for range min(o.Parallel, len(jobs)) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(jobs) || ctx.Err() != nil {
					return
				}
				j := jobs[i]
				run, err := simulate(j.m, j.sc, j.size, j.timers, j.phase, o.Network, j.seed)
				if err != nil {
					run.Error = err.Error()
				}
				if j.seed != o.Seeds[0] {
					run.Chart = nil
				}
				mu.Lock()
				out[i] = &run
				done++
				if o.Progress != nil {
					o.Progress(done, len(jobs), &run)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return out
}
