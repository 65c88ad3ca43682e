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
	// Live plays on real servers and clients in place of virtual time; models and
	// scenarios that cannot are left out if they are not named.
	Live bool
	// Parallel is how many simulated runs are made at once; 0: one for each core. Live
	// ones are made alone.
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
	net    Network
	live   bool
	chart  bool
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
	if o.Live {
		return o.checkLive()
	}
	return nil
}

// Compare makes all the runs of one or more comparisons for one report; Parallel and
// Progress are those of the first. If ctx ends it returns what is done so far
// with the error of ctx; runs that could not be made say so themselves.
func Compare(ctx context.Context, first Options, more ...Options) (*Report, error) {
	r := &Report{Begun: time.Now().UTC().Truncate(time.Second), Machine: ThisMachine()}
	var simulated, live []job
	var ms []model
	var scs []Scenario
	all := append([]Options{first}, more...)
	for i := range all {
		o := &all[i]
		if err := o.complete(); err != nil {
			return nil, err
		}
		m, err := picked(models(), func(m model) string { return m.Name }, o.Models, "model")
		if err != nil {
			return nil, err
		}
		sc, err := picked(Scenarios(), func(s Scenario) string { return s.Name }, o.Scenarios, "scenario")
		if err != nil {
			return nil, err
		}
		if o.Live {
			m = slices.DeleteFunc(m, func(m model) bool { return m.consumer(m.own) == nil })
			sc = slices.DeleteFunc(sc, func(s Scenario) bool { return simulatedOnly[s.Name] != "" })
			live = append(live, o.jobs(m, sc)...)
		} else {
			simulated = append(simulated, o.jobs(m, sc)...)
		}
		ms, scs = append(ms, m...), append(scs, sc...)
	}
	for _, m := range models() {
		if slices.ContainsFunc(ms, func(o model) bool { return o.Name == m.Name }) {
			r.Models = append(r.Models, m.Model)
		}
	}
	for _, s := range Scenarios() {
		if slices.ContainsFunc(scs, func(o Scenario) bool { return o.Name == s.Name }) {
			r.Scenes = append(r.Scenes, s.Scene)
		}
	}
	begun := time.Now()
	for _, run := range all[0].run(ctx, simulated, live) {
		if run != nil {
			r.Runs = append(r.Runs, *run)
		}
	}
	r.TookMS = float64(time.Since(begun).Milliseconds())
	r.Findings = findings(r)
	return r, ctx.Err()
}

// jobs lists the runs, so that what belongs together comes together. A chart is kept of
// the first seed only.
func (o *Options) jobs(ms []model, scs []Scenario) (out []job) {
	for _, size := range o.Sizes {
		for _, t := range o.Timers {
			for _, p := range o.Phases {
				for _, sc := range scs {
					for _, m := range ms {
						for _, seed := range o.Seeds {
							out = append(out, job{m, sc, size, t, p, seed, o.Network, o.Live, seed == o.Seeds[0]})
						}
					}
				}
			}
		}
	}
	return out
}

// make makes the run.
func (j *job) make(ctx context.Context) *Run {
	var run Run
	var err error
	if j.live {
		run, err = playLive(ctx, j.m, j.sc, j.size, j.timers, j.phase, j.seed)
	} else {
		run, err = simulate(j.m, j.sc, j.size, j.timers, j.phase, j.net, j.seed)
	}
	if err != nil {
		run.Error = err.Error()
	}
	if !j.chart {
		run.Chart = nil
	}
	return &run
}

// run makes the runs, simulated ones several at once and then live ones alone, and returns
// them in the order of the jobs; nil are those that had not ended when ctx did.
func (o *Options) run(ctx context.Context, simulated, live []job) []*Run {
	jobs := slices.Concat(simulated, live)
	out := make([]*Run, len(jobs))
	var mu sync.Mutex
	next, done := 0, 0
	work := func(until int) {
		for {
			mu.Lock()
			i := next
			if i >= until || ctx.Err() != nil {
				mu.Unlock()
				return
			}
			next++
			mu.Unlock()
			run := jobs[i].make(ctx)
			mu.Lock()
			if !jobs[i].live || ctx.Err() == nil { // a live run that was broken off says nothing
				out[i] = run
				done++
				if o.Progress != nil {
					o.Progress(done, len(jobs), run)
				}
			}
			mu.Unlock()
		}
	}
	var wg sync.WaitGroup
	for range min(o.Parallel, len(simulated)) {
		wg.Go(func() { work(len(simulated)) })
	}
	wg.Wait()
	work(len(jobs))
	return out
}
