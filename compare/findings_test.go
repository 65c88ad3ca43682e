package compare

import (
	"strings"
	"testing"
)

// made is a report of runs of two models, by the total gap of a join.
func made(ours, theirs Measures) *Report {
	r := &Report{Models: []Model{{Name: "alone"}, {Name: "led", Coordinated: true}}}
	for _, m := range []struct {
		name string
		Measures
	}{{"alone", ours}, {"led", theirs}} {
		m.Settled = m.Why == ""
		r.Runs = append(r.Runs, Run{
			Model: m.name, Scenario: "join", Way: Simulated, Timers: OwnTimers, Members: 4, Queues: 8, Brokers: 1,
			Events: []EventResult{{Name: "join", Measures: m.Measures}},
		})
	}
	return r
}

// Who wins is said by the numbers alone, whoever it is.
func TestFindingsFollowTheNumbers(t *testing.T) {
	gap := func(ms Milliseconds) Measures { return Measures{GapTotalMS: ms} }
	const join = "When one member joins, queues stand still, all together, for "
	for name, c := range map[string]struct {
		ours, theirs Measures
		text, winner string
	}{
		"ours":       {gap(10), gap(2000), join + "10 ms with alone, 2.0 s with led.", "alone"},
		"theirs":     {gap(2000), gap(10), join + "10 ms with led, 2.0 s with alone.", "led"},
		"close":      {gap(100), gap(105), join + "100 ms with alone, 105 ms with led.", ""},
		"equal":      {gap(7), gap(7), join + "7 ms with alone as with led.", ""},
		"zero":       {gap(0), gap(7), join + "0 ms with alone, 7 ms with led.", "alone"},
		"long":       {gap(7), gap(200_000), join + "7 ms with alone, 200 s with led.", "alone"},
		"unsettled":  {Measures{Why: "lost"}, gap(7), join + "0 ms with alone, 7 ms with led; not all of these runs settled.", ""},
		"two owners": {Measures{TwiceQueues: 3, TwiceTotalMS: 1500}, gap(7), "alone had queues with two owners at once in 1 of 1 runs; at worst (join) 3 queues, all together for 1.5 s.", ""},
		"one owner":  {Measures{TwiceQueues: 1, TwiceTotalMS: 15}, gap(7), "No queue had two owners in any run of led, of 1 each.", "led"},
	} {
		found := false
		for _, f := range findings(made(c.ours, c.theirs)) {
			if f.Text == c.text {
				found = true
				if f.Winner != c.winner {
					t.Errorf("%s: winner %q, want %q", name, f.Winner, c.winner)
				}
			}
		}
		if !found {
			t.Errorf("%s: no %q in %+v", name, c.text, findings(made(c.ours, c.theirs)))
		}
	}
}

// Equal answers with several timers are one sentence, others are not; sizes are told apart.
func TestFindingsOfSeveralTimersAndSizes(t *testing.T) {
	r := made(Measures{GapTotalMS: 10}, Measures{GapTotalMS: 2000})
	equal := made(Measures{GapTotalMS: 20}, Measures{GapTotalMS: 1000})
	for i := range equal.Runs {
		equal.Runs[i].Timers = EqualTimers
	}
	r.Runs = append(r.Runs, equal.Runs...)
	text := func() string {
		var all []string
		for _, f := range findings(r) {
			all = append(all, f.Text)
		}
		return strings.Join(all, "\n")
	}
	if got, want := text(), "for 10 ms with alone, 2.0 s with led; with equal timers 20 ms and 1.0 s."; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
	r.Runs[2].Events[0].GapTotalMS, r.Runs[3].Events[0].GapTotalMS = 1000, 20
	got := text()
	for _, want := range []string{
		"joins, with their own timers, queues stand still, all together, for 10 ms with alone, 2.0 s with led.",
		"joins, with equal timers, queues stand still, all together, for 20 ms with led, 1.0 s with alone.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	large := made(Measures{GapTotalMS: 30}, Measures{GapTotalMS: 3000})
	for i := range large.Runs {
		large.Runs[i].Members, large.Runs[i].Queues = 64, 1024
	}
	r.Runs = append(r.Runs, large.Runs...)
	if got, want := text(), "for 30 ms with alone, 3.0 s with led (simulated, 64 × 1024)."; !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}
