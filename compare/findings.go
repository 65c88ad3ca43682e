package compare

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// question is one that a reader has, and the measure that answers it: the less the better.
type question struct {
	scenario, event string
	text            string // what happens, as the beginning of a sentence
	what            string // what is measured
	measure         func(m *Measures) float64
	unit            func(v float64) string
}

// questions does not ask for repeated messages after a crash: that is what was handled
// since the last commit, the same for all models and a matter of chance.
func questions() []question {
	gap := func(m *Measures) float64 { return float64(m.GapTotalMS) }
	longest := func(m *Measures) float64 { return float64(m.GapLongestMS) }
	moved := func(m *Measures) float64 { return float64(m.Moved) }
	sent := func(m *Measures) float64 { return float64(m.Wire.MemberMessages + m.Wire.BrokerMessages) }
	const total, one = "queues stand still, all together, for", "no queue stands still for longer than"
	return []question{
		{"start", "start", "When all members start", one, longest, span},
		{"join", "join", "When one member joins", total, gap, span},
		{"join", "join", "When one member joins", "moved queues are", moved, number},
		{"join", "join", "When one member joins", "messages between members and brokers, heartbeats with them, are", sent, number},
		{"leave", "leave", "When one member leaves", total, gap, span},
		{"crash", "crash", "When a member is killed and its connections close", one, longest, span},
		{"silent-crash", "silent-crash", "When a member's host is gone without a word", one, longest, span},
		{"rolling", "rolling", "When all members restart one after another with new ids", total, gap, span},
		{"rolling-static", "rolling", "When all members restart one after another with stable ids", "moved queues are", moved, number},
		{"ten-join", "ten-join", "When ten members join at once", total, gap, span},
		{"grow", "grow", "When the topic gets more queues", one, longest, span},
		{"coordinator-lost", "lost", "When the broker is lost that coordinates, or whose view counts", "queues of the others stand still, all together, for", gap, span},
		{"coordinator-lost", "back", "When that broker comes back", "none of its queues stands still for longer than", longest, span},
		{"partition", "cut", "When a quarter of the members cannot reach one broker", one, longest, span},
		{"slow-handlers", "join", "When a member joins while handlers take up to two seconds", total, gap, span},
	}
}

func number(v float64) string { return fmt.Sprintf("%.0f", v) }

// span writes milliseconds for people.
func span(v float64) string {
	d := time.Duration(v * float64(time.Millisecond))
	switch {
	case d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f ms", v)
}

// telling is by how much one model must be better than another for that to be said.
const telling = 1.1

// findings are the sentences that the runs bear: for each size, who has two owners at once,
// and for each question the best of the models with and without a coordinator, with each
// setting of timers.
func findings(r *Report) (out []Finding) {
	groups := grouped(r)
	for _, g := range groups {
		g.many = len(groups) > 1
		out = append(out, g.owners()...)
		for _, q := range questions() {
			out = append(out, g.ask(q)...)
		}
	}
	return out
}

// runs of one size, made in one way; phases and seeds are not told apart.
type runs struct {
	way    Way
	size   Size
	many   bool // there are others
	models []Model
	all    []*Run
}

func grouped(r *Report) (out []*runs) {
	for i := range r.Runs {
		run := &r.Runs[i]
		size := Size{run.Members, run.Queues, run.Brokers}
		j := slices.IndexFunc(out, func(g *runs) bool { return g.way == run.Way && g.size == size })
		if j < 0 {
			j = len(out)
			out = append(out, &runs{way: run.Way, size: size, models: r.Models})
		}
		out[j].all = append(out[j].all, run)
	}
	return out
}

// where names the group of runs if there is a choice.
func (g *runs) where() string {
	if !g.many {
		return ""
	}
	return fmt.Sprintf(" (%s, %d × %d)", g.way, g.size.Members, g.size.Queues)
}

// timers are those of the runs.
func (g *runs) timers() (out []Timers) {
	for _, t := range []Timers{OwnTimers, FastTimers, EqualTimers} {
		if slices.ContainsFunc(g.all, func(r *Run) bool { return r.Timers == t }) {
			out = append(out, t)
		}
	}
	return out
}

func timersText(t Timers) string {
	switch t {
	case FastTimers:
		return "with fast detection"
	case EqualTimers:
		return "with equal timers"
	case OwnTimers:
	}
	return "with their own timers"
}

// owners says who had two owners of a queue at once, and who had not.
func (g *runs) owners() (out []Finding) {
	var never []string
	most := 0
	for _, m := range g.models {
		made, with := 0, 0
		var worst EventResult
		where := ""
		for _, r := range g.all {
			if r.Model != m.Name || r.Error != "" {
				continue
			}
			made++
			if slices.ContainsFunc(r.Events, func(e EventResult) bool { return e.TwiceQueues > 0 }) {
				with++
			}
			for _, e := range r.Events {
				if e.TwiceTotalMS > worst.TwiceTotalMS {
					worst, where = e, r.Scenario
				}
			}
		}
		most = max(most, made)
		switch {
		case made == 0:
		case with > 0:
			queues := fmt.Sprintf("%d queues", worst.TwiceQueues)
			if worst.TwiceQueues == 1 {
				queues = "one queue"
			}
			out = append(out, Finding{Text: fmt.Sprintf(
				"%s had queues with two owners at once in %d of %d runs; at worst (%s) %s, all together for %s%s.",
				m.Name, with, made, where, queues, span(float64(worst.TwiceTotalMS)), g.where(),
			)})
		default:
			never = append(never, m.Name)
		}
	}
	if len(never) > 0 {
		f := Finding{Text: fmt.Sprintf("No queue had two owners in any run of %s, of %d each%s.", enumerate(never), most, g.where())}
		if len(never) == 1 {
			f.Winner = never[0]
		}
		out = slices.Insert(out, 0, f)
	}
	return out
}

func enumerate(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// score is what one model has of a measure.
type score struct {
	model   Model
	median  float64
	settled bool // in every run
}

// duel is the best of the models without a coordinator and the best of those with one,
// the better one first.
type duel struct {
	timers Timers
	a, b   score
}

// winner is the first one's name if it is clearly better.
func (d *duel) winner() string {
	if d.a.settled && d.b.settled && d.b.median > d.a.median*telling {
		return d.a.model.Name
	}
	return ""
}

// ask answers a question: in one sentence if the best are the same with all timers.
func (g *runs) ask(q question) (out []Finding) {
	var duels []duel
	for _, t := range g.timers() {
		if d, ok := g.duel(q, t); ok {
			duels = append(duels, d)
		}
	}
	for len(duels) > 0 {
		same := 1
		for same < len(duels) && duels[same].a.model == duels[0].a.model && duels[same].b.model == duels[0].b.model && duels[same].winner() == duels[0].winner() {
			same++
		}
		out = append(out, g.sentence(q, duels[:same], len(duels) > same || len(out) > 0))
		duels = duels[same:]
	}
	return out
}

func (g *runs) sentence(q question, ds []duel, several bool) Finding {
	var b strings.Builder
	for i, d := range ds {
		switch {
		case i > 0:
			fmt.Fprintf(&b, "; %s %s and %s", timersText(d.timers), q.unit(d.a.median), q.unit(d.b.median))
			continue
		case several:
			fmt.Fprintf(&b, "%s, %s, ", q.text, timersText(d.timers))
		default:
			fmt.Fprintf(&b, "%s, ", q.text)
		}
		if x, y := q.unit(d.a.median), q.unit(d.b.median); x == y {
			fmt.Fprintf(&b, "%s %s with %s as with %s", q.what, x, d.a.model.Name, d.b.model.Name)
		} else {
			fmt.Fprintf(&b, "%s %s with %s, %s with %s", q.what, x, d.a.model.Name, y, d.b.model.Name)
		}
	}
	if !ds[0].a.settled || !ds[0].b.settled {
		b.WriteString("; not all of these runs settled")
	}
	return Finding{Text: b.String() + g.where() + ".", Winner: ds[0].winner()}
}

func (g *runs) duel(q question, t Timers) (d duel, ok bool) {
	var with, without []score
	for _, m := range g.models {
		var values []float64
		settled := true
		for _, r := range g.all {
			if r.Model != m.Name || r.Timers != t || r.Scenario != q.scenario || r.Error != "" {
				continue
			}
			for i := range r.Events {
				if e := &r.Events[i]; e.Name == q.event {
					values = append(values, q.measure(&e.Measures))
					settled = settled && e.Settled
				}
			}
		}
		if len(values) == 0 {
			continue
		}
		slices.Sort(values)
		s := score{m, values[len(values)/2], settled}
		if m.Coordinated {
			with = append(with, s)
		} else {
			without = append(without, s)
		}
	}
	if len(with) == 0 || len(without) == 0 {
		return d, false
	}
	a, b := best(without), best(with)
	if b.median < a.median {
		a, b = b, a
	}
	return duel{t, a, b}, true
}

// best is the least of those that settled; of several that are about as good the first, so
// that chance does not choose between models of one kind.
func best(scores []score) score {
	least := slices.MinFunc(scores, func(a, b score) int {
		if a.settled != b.settled {
			if a.settled {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.median, b.median)
	})
	for _, s := range scores {
		if s.settled == least.settled && s.median <= least.median*telling {
			return s
		}
	}
	return least
}
