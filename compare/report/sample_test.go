package report

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tacitmq/tacit/compare"
)

// sampleModels are as many as a whole comparison has.
func sampleModels() []compare.Model {
	return []compare.Model{
		{Name: "tacit", Text: "no coordinator: each member computes the same from an agreed view"},
		{Name: "tacit-rendezvous", Text: "as tacit, with the stateless strategy"},
		{Name: "rocketmq", Text: "no coordinator, the list of a random broker"},
		{Name: "eager-range", Coordinated: true, Text: "a coordinator; everything is revoked first"},
		{Name: "eager-roundrobin", Coordinated: true, Text: "the same with roundrobin"},
		{Name: "eager-sticky", Coordinated: true, Text: "the same, sticky"},
		{Name: "cooperative-sticky", Coordinated: true, Text: "a coordinator; only what moves is revoked, in two rounds"},
		{Name: "server-side", Coordinated: true, Text: "the coordinator assigns"},
	}
}

// sample draws a report: models in all scenarios, as in a comparison of that size.
func sample(models []compare.Model, members, queues, seeds int, timers []compare.Timers, phases []compare.Phase) *compare.Report {
	rng := rand.New(rand.NewPCG(1, 2))
	r := &compare.Report{
		Version: "v1.2.3", Command: "tacit compare --seeds 3", Begun: time.Date(2026, 12, 1, 6, 0, 0, 0, time.UTC), TookMS: 61234,
		Machine: compare.Machine{OS: "linux", Arch: "amd64", CPU: "Some Processor 3000", Cores: 2, Go: "go1.26"},
		Models:  models,
		Findings: []compare.Finding{
			{Text: "When one member joins, queues stand still for a total of 31 ms, cooperative-sticky's for 1.9 s.", Winner: "tacit"},
			{Text: "It sends 3 kB when a member joins, tacit 11 kB.", Winner: "server-side"},
			{Text: "All models move the least number of queues when a member is killed, but rocketmq."},
			{Text: "No queue had two owners in any run.", Winner: "tacit"},
		},
	}
	for _, sc := range compare.Scenarios() {
		r.Scenes = append(r.Scenes, sc.Scene)
		for _, tm := range timers {
			for _, ph := range phases {
				for i, m := range models {
					for seed := range seeds {
						r.Runs = append(r.Runs, sampleRun(rng, m.Name, sc.Name, i, members, queues, uint64(seed+1), tm, ph))
					}
				}
			}
		}
	}
	return r
}

// sampleRun has the i-th model's ways: later ones are slower and stop more.
func sampleRun(rng *rand.Rand, model, scenario string, i, members, queues int, seed uint64, tm compare.Timers, ph compare.Phase) compare.Run {
	run := compare.Run{
		Model: model, Scenario: scenario, Way: compare.Simulated, Timers: tm, Phase: ph,
		Members: members, Queues: queues, Brokers: 2, Seed: seed,
		Settings: []compare.Setting{{Name: "session timeout", Value: "10s"}, {Name: "heartbeat", Value: "3s"}},
	}
	names := []string{scenario}
	switch scenario {
	case "broker-lost", "coordinator-lost", "nameserver-lost":
		names = []string{"lost", "back"}
	case "partition":
		names = []string{"cut", "healed"}
	case "scale":
		names = []string{"scale-up", "scale-down"}
	}
	for n, name := range names {
		settle := compare.Milliseconds(20+rng.IntN(40)) * compare.Milliseconds(int(1)<<uint(i))
		moved := queues / members
		m := compare.Measures{
			Settled: true, SettleMS: settle, GapLongestMS: settle / 2, GapTotalMS: settle * compare.Milliseconds(moved), GapQueues: moved,
			Moved: moved, Minimum: moved, WatchedMS: 30_000, Repeated: rng.IntN(3) * i,
			Wire: compare.Wire{MemberMessages: 100 * members, MemberBytes: 4000 * members, BrokerMessages: 90 * members, BrokerBytes: 3000 * members * (i + 1)},
		}
		switch {
		case i == 2:
			m.Moved, m.TwiceQueues, m.TwiceTotalMS = 5*moved, moved, settle
		case i > 2 && i < 6:
			m.Stopped, m.GapQueues, m.GapTotalMS = queues-moved, queues, settle*compare.Milliseconds(queues)/2
		}
		if scenario == "partition" && i == 3 && seed == 1 {
			m.Settled, m.Why, m.SettleMS = false, "12 of 128 queues have exactly one owner", 45_000
		}
		run.Events = append(run.Events, compare.EventResult{Name: name, At: compare.Milliseconds(20_000 + 1000*i + n*40_000), Measures: m})
	}
	if seed == 1 {
		run.Chart = sampleChart(rng, &run, i)
	}
	return run
}

func sampleChart(rng *rand.Rand, run *compare.Run, i int) *compare.Chart {
	c := &compare.Chart{ToMS: 120_000}
	for m := range run.Members + 2 {
		c.Members = append(c.Members, fmt.Sprintf("m%05d", m+1))
	}
	for _, e := range run.Events {
		c.Marks = append(c.Marks, compare.Mark{AtMS: e.At, Text: e.Name})
	}
	for q := range run.Queues {
		c.Queues = append(c.Queues, fmt.Sprintf("b%d/%d", q%2+1, q/2))
		from, owner := compare.Milliseconds(1000), q%run.Members
		for n, e := range run.Events {
			moves, stops := q%run.Members == n, e.Stopped > 0
			if !moves && !stops {
				continue
			}
			end := e.At + e.SettleMS/4 + compare.Milliseconds(rng.Float64())*e.SettleMS/4
			c.Bars = append(c.Bars, compare.Bar{Queue: q, Member: owner, FromMS: from, ToMS: end})
			from = end + e.GapLongestMS*compare.Milliseconds(rng.Float64())
			if i == 2 {
				from = end - e.SettleMS/3 // both own it
			}
			if moves {
				owner = run.Members + n
			}
		}
		c.Bars = append(c.Bars, compare.Bar{Queue: q, Member: owner, FromMS: from, ToMS: c.ToMS})
	}
	for t := compare.Milliseconds(0); t <= c.ToMS; t += 500 {
		lag := 20 + rng.IntN(10)
		for _, e := range run.Events {
			if t > e.At && t < e.At+e.SettleMS*2 {
				lag += int(float64(t-e.At)/10) % 3000
			}
		}
		c.Lag = append(c.Lag, compare.LagPoint{AtMS: t, Lag: lag})
	}
	return c
}
