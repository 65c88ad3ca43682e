package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tacitmq/tacit/compare"
)

// setup is what a group was and where it ran.
type setup struct {
	way                      compare.Way
	members, queues, brokers int
	latency                  compare.Milliseconds
	loss                     float64
}

func (s setup) String() string {
	out := fmt.Sprintf("%s: %s, %s, %s", s.way, counted(s.members, "member"), counted(s.queues, "queue"), counted(s.brokers, "broker"))
	if s.latency > 0 {
		out += ", latency " + span(float64(s.latency))
	}
	if s.loss > 0 {
		out += fmt.Sprintf(", loss %.3g %%", 100*s.loss)
	}
	return out
}

func (s setup) compare(o setup) int {
	return cmp.Or(strings.Compare(string(o.way), string(s.way)), // simulated first
		s.members-o.members, s.queues-o.queues, s.brokers-o.brokers, cmp.Compare(s.latency, o.latency), cmp.Compare(s.loss, o.loss))
}

// condition is all that runs which are compared with each other have in common.
type condition struct {
	setup
	timers compare.Timers
	phase  compare.Phase
}

func (c condition) String() string {
	out := c.setup.String() + "; " + timersText(c.timers)
	if c.phase != "" {
		out += "; heartbeats " + string(c.phase)
	}
	return out
}

func timersText(t compare.Timers) string {
	switch t {
	case compare.OwnTimers:
		return "each model's own timers"
	case compare.FastTimers:
		return "each model's timers for fast detection"
	case compare.EqualTimers:
		return "equal timers"
	default:
		return "timers " + string(t)
	}
}

// stat is a measure over the seeds.
type stat struct{ median, least, most float64 }

// event is one event of a cell, over its seeds.
type event struct {
	name      string
	runs      int
	unsettled int    // runs of these that did not settle
	why       string // the first of them
	stats     []stat // by measure
}

// cell is one model in one scenario under one condition.
type cell struct {
	condition
	model, scenario string
	seeds           []uint64
	errors          []string
	settings        []compare.Setting
	events          []event
	charted         *compare.Run // the first that has a chart
}

// cellKey finds a cell.
type cellKey struct {
	condition
	model, scenario string
}

// grouped is a report in the order in which it is shown.
type grouped struct {
	models     []compare.Model
	scenes     []compare.Scene
	conditions []condition // the first is what is shown first
	setups     []setup
	cells      map[cellKey]*cell
	seeds      []uint64
	errors     int // runs that could not be made
}

// group puts runs together that differ in their seed alone.
func group(r *compare.Report) *grouped {
	g := &grouped{models: slices.Clone(r.Models), scenes: slices.Clone(r.Scenes), cells: make(map[cellKey]*cell)}
	runs := make(map[cellKey][]*compare.Run)
	of := make(map[condition]int)
	for i := range r.Runs {
		run := &r.Runs[i]
		c := condition{setup{run.Way, run.Members, run.Queues, run.Brokers, run.Latency, run.Loss}, run.Timers, run.Phase}
		k := cellKey{c, run.Model, run.Scenario}
		runs[k] = append(runs[k], run)
		of[c]++
		if !slices.Contains(g.seeds, run.Seed) {
			g.seeds = append(g.seeds, run.Seed)
		}
		if run.Error != "" {
			g.errors++
		}
		// What a report has runs of it shows, described or not.
		if !slices.ContainsFunc(g.models, func(m compare.Model) bool { return m.Name == run.Model }) {
			g.models = append(g.models, compare.Model{Name: run.Model})
		}
		if !slices.ContainsFunc(g.scenes, func(s compare.Scene) bool { return s.Name == run.Scenario }) {
			g.scenes = append(g.scenes, compare.Scene{Name: run.Scenario})
		}
	}
	slices.Sort(g.seeds)
	for k, rs := range runs {
		g.cells[k] = newCell(k, rs)
	}
	g.order(of)
	return g
}

// order sorts conditions: the setup with the most runs first, then by size.
func (g *grouped) order(of map[condition]int) {
	bySetup := make(map[setup]int)
	for c, n := range of {
		g.conditions = append(g.conditions, c)
		bySetup[c.setup] += n
	}
	for s := range bySetup {
		g.setups = append(g.setups, s)
	}
	slices.SortFunc(g.setups, setup.compare)
	var main setup
	for _, s := range g.setups { // the first of equals
		if bySetup[s] > bySetup[main] {
			main = s
		}
	}
	timers := []compare.Timers{compare.OwnTimers, compare.EqualTimers, compare.FastTimers}
	phases := []compare.Phase{compare.Spread, compare.InStep, ""}
	slices.SortFunc(g.conditions, func(a, b condition) int {
		return cmp.Or(
			first(a.setup == main, b.setup == main), a.compare(b.setup),
			place(timers, a.timers)-place(timers, b.timers), cmp.Compare(a.timers, b.timers),
			place(phases, a.phase)-place(phases, b.phase), cmp.Compare(a.phase, b.phase),
		)
	})
}

// first orders what has a property before what has not.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

// place is the index of v, or behind all.
func place[T comparable](all []T, v T) int {
	if i := slices.Index(all, v); i >= 0 {
		return i
	}
	return len(all)
}

func newCell(k cellKey, runs []*compare.Run) *cell {
	slices.SortStableFunc(runs, func(a, b *compare.Run) int { return cmp.Compare(a.Seed, b.Seed) })
	c := &cell{condition: k.condition, model: k.model, scenario: k.scenario}
	byEvent := make(map[string][]*compare.EventResult)
	for _, run := range runs {
		c.seeds = append(c.seeds, run.Seed)
		if c.settings == nil {
			c.settings = run.Settings
		}
		if run.Error != "" {
			c.errors = append(c.errors, run.Error)
			continue
		}
		if c.charted == nil && run.Chart != nil {
			c.charted = run
		}
		for i := range run.Events {
			e := &run.Events[i]
			if byEvent[e.Name] == nil {
				c.events = append(c.events, event{name: e.Name})
			}
			byEvent[e.Name] = append(byEvent[e.Name], e)
		}
	}
	for i := range c.events {
		c.events[i].measure(byEvent[c.events[i].name])
	}
	return c
}

func (e *event) measure(results []*compare.EventResult) {
	e.runs = len(results)
	for _, r := range results {
		if !r.Settled {
			e.unsettled++
			if e.why == "" {
				e.why = r.Why
			}
		}
	}
	for _, m := range measures() {
		values := make([]float64, len(results))
		for i, r := range results {
			values[i] = m.of(&r.Measures)
		}
		e.stats = append(e.stats, statOf(values))
	}
}

// statOf wants at least one value; it sorts them.
func statOf(values []float64) stat {
	slices.Sort(values)
	n := len(values)
	return stat{(values[(n-1)/2] + values[n/2]) / 2, values[0], values[n-1]}
}

// event finds the event of a name.
func (c *cell) event(name string) *event {
	if c == nil {
		return nil
	}
	for i := range c.events {
		if c.events[i].name == name {
			return &c.events[i]
		}
	}
	return nil
}

// events returns the names of a scenario's events under a condition, in their order.
func (g *grouped) events(cond condition, scenario string) (names []string) {
	for _, m := range g.models {
		c := g.cells[cellKey{cond, m.Name, scenario}]
		if c == nil {
			continue
		}
		for _, e := range c.events {
			if !slices.Contains(names, e.name) {
				names = append(names, e.name)
			}
		}
	}
	return names
}

// has says whether a scenario was run under a condition.
func (g *grouped) has(cond condition, scenario string) bool {
	return slices.ContainsFunc(g.models, func(m compare.Model) bool { return g.cells[cellKey{cond, m.Name, scenario}] != nil })
}

// sentence says what was compared.
func (g *grouped) sentence(r *compare.Report) string {
	var ways []string
	for _, s := range g.setups {
		if !slices.Contains(ways, string(s.way)) {
			ways = append(ways, string(s.way))
		}
	}
	sizes := "in groups of "
	if len(g.setups) == 1 {
		sizes = "in a group of "
	}
	var named []string
	for _, s := range g.setups {
		if n := fmt.Sprintf("%d members × %d queues", s.members, s.queues); !slices.Contains(named, n) {
			named = append(named, n)
		}
	}
	if len(named) > 4 {
		named = []string{named[0], "…", named[len(named)-1]}
	}
	return fmt.Sprintf("%s of sharing queues in %s, %s: %s %s %s, made in %s.",
		counted(len(g.models), "model"), counted(len(g.scenes), "scenario"), strings.Join(ways, " and "),
		counted(len(r.Runs), "run"), sizes, strings.Join(named, ", "), span(r.TookMS))
}

func seedsText(seeds []uint64) string {
	var parts []string
	for i := 0; i < len(seeds); {
		j := i
		for j+1 < len(seeds) && seeds[j+1] == seeds[j]+1 {
			j++
		}
		switch {
		case j > i+1:
			parts = append(parts, fmt.Sprintf("%d to %d", seeds[i], seeds[j]))
		case j > i:
			parts = append(parts, fmt.Sprint(seeds[i]), fmt.Sprint(seeds[j]))
		default:
			parts = append(parts, fmt.Sprint(seeds[i]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// whenText is a time for people, to the minute.
func whenText(t time.Time) string {
	if t.IsZero() {
		return "not known"
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}
