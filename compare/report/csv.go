package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/tacitmq/tacit/compare"
)

// column is one of the CSV.
type column struct {
	name string
	run  func(*compare.Run) string         // of the run
	of   func(*compare.EventResult) string // of the event; empty for a run that failed
}

func columns() []column {
	ofRun := func(name string, f func(*compare.Run) string) column { return column{name: name, run: f} }
	text := func(name string, f func(*compare.EventResult) string) column { return column{name: name, of: f} }
	count := func(name string, f func(*compare.EventResult) int) column {
		return column{name: name, of: func(e *compare.EventResult) string { return strconv.Itoa(f(e)) }}
	}
	time := func(name string, f func(*compare.EventResult) compare.Milliseconds) column {
		return column{name: name, of: func(e *compare.EventResult) string { return exact(float64(f(e))) }}
	}
	return []column{
		ofRun("model", func(r *compare.Run) string { return r.Model }),
		ofRun("scenario", func(r *compare.Run) string { return r.Scenario }),
		ofRun("way", func(r *compare.Run) string { return string(r.Way) }),
		ofRun("timers", func(r *compare.Run) string { return string(r.Timers) }),
		ofRun("phase", func(r *compare.Run) string { return string(r.Phase) }),
		ofRun("members", func(r *compare.Run) string { return strconv.Itoa(r.Members) }),
		ofRun("queues", func(r *compare.Run) string { return strconv.Itoa(r.Queues) }),
		ofRun("brokers", func(r *compare.Run) string { return strconv.Itoa(r.Brokers) }),
		ofRun("latency_ms", func(r *compare.Run) string { return exact(float64(r.Latency)) }),
		ofRun("loss", func(r *compare.Run) string { return exact(r.Loss) }),
		ofRun("seed", func(r *compare.Run) string { return strconv.FormatUint(r.Seed, 10) }),
		ofRun("settings", settingsText),
		text("event", func(e *compare.EventResult) string { return e.Name }),
		time("at_ms", func(e *compare.EventResult) compare.Milliseconds { return e.At }),
		time("watched_ms", func(e *compare.EventResult) compare.Milliseconds { return e.WatchedMS }),
		text("settled", func(e *compare.EventResult) string { return strconv.FormatBool(e.Settled) }),
		text("why", func(e *compare.EventResult) string { return e.Why }),
		time("settle_ms", func(e *compare.EventResult) compare.Milliseconds { return e.SettleMS }),
		time("gap_total_ms", func(e *compare.EventResult) compare.Milliseconds { return e.GapTotalMS }),
		time("gap_longest_ms", func(e *compare.EventResult) compare.Milliseconds { return e.GapLongestMS }),
		count("gap_queues", func(e *compare.EventResult) int { return e.GapQueues }),
		count("stopped_queues", func(e *compare.EventResult) int { return e.Stopped }),
		count("moved", func(e *compare.EventResult) int { return e.Moved }),
		count("minimum", func(e *compare.EventResult) int { return e.Minimum }),
		time("two_owners_total_ms", func(e *compare.EventResult) compare.Milliseconds { return e.TwiceTotalMS }),
		count("two_owners_queues", func(e *compare.EventResult) int { return e.TwiceQueues }),
		count("handlers_past_ownership", func(e *compare.EventResult) int { return e.Overrun }),
		count("repeated", func(e *compare.EventResult) int { return e.Repeated }),
		count("lost", func(e *compare.EventResult) int { return e.Lost }),
		count("out_of_order", func(e *compare.EventResult) int { return e.OutOfOrder }),
		count("member_messages", func(e *compare.EventResult) int { return e.Wire.MemberMessages }),
		count("member_bytes", func(e *compare.EventResult) int { return e.Wire.MemberBytes }),
		count("broker_messages", func(e *compare.EventResult) int { return e.Wire.BrokerMessages }),
		count("broker_bytes", func(e *compare.EventResult) int { return e.Wire.BrokerBytes }),
		time("cpu_ms", func(e *compare.EventResult) compare.Milliseconds { return e.CPUMS }),
		ofRun("error", func(r *compare.Run) string { return r.Error }),
	}
}

// CSV writes a line for each event of each run, after a line with the names of the
// columns. Durations are milliseconds. A run that could not be made is one line whose
// figures are empty.
func CSV(w io.Writer, r *compare.Report) error {
	cols := columns()
	out := csv.NewWriter(w)
	line := make([]string, len(cols))
	write := func(run *compare.Run, e *compare.EventResult) {
		for i, c := range cols {
			switch {
			case c.run != nil:
				line[i] = c.run(run)
			case e != nil:
				line[i] = c.of(e)
			default:
				line[i] = ""
			}
		}
		_ = out.Write(line) // kept for out.Error
	}
	for i, c := range cols {
		line[i] = c.name
	}
	_ = out.Write(line)
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Events {
			write(run, &run.Events[j])
		}
		if len(run.Events) == 0 {
			write(run, nil)
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write the report as CSV: %w", err)
	}
	return nil
}

func settingsText(r *compare.Run) string {
	parts := make([]string, len(r.Settings))
	for i, s := range r.Settings {
		parts[i] = s.Name + "=" + s.Value
	}
	return strings.Join(parts, "; ")
}

// exact writes all digits that a number has.
func exact(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
