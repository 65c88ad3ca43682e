package report

import "github.com/tacitmq/tacit/compare"

// unit is how a measure is written.
type unit string

const (
	millis unit = "ms"
	number unit = "n"
	octets unit = "B"
	rate   unit = "B/s"
)

// measure is one figure of an event. Of all of them less is better.
type measure struct {
	ID    string
	Label string
	Unit  unit
	// Text explains it to a reader, once.
	Text string
	// Of is nil for what another measure is compared with.
	of func(*compare.Measures) float64
	// Beside is the id of the measure that is shown with this one, after a slash.
	Beside string
	// Bars says that it is drawn for each scenario.
	Bars bool
	// Optional measures are left out where they are 0 in all runs: nothing measured them.
	Optional bool
}

// measures returns all of them, in the order in which they are shown.
func measures() []measure {
	count := func(f func(*compare.Measures) int) func(*compare.Measures) float64 {
		return func(m *compare.Measures) float64 { return float64(f(m)) }
	}
	return []measure{
		{
			ID: "settle", Label: "time to settle", Unit: millis, Bars: true,
			Text: "from the event until every queue has exactly one owner, the shares are even, and it stays so",
			of:   func(m *compare.Measures) float64 { return float64(m.SettleMS) },
		},
		{
			ID: "gap_longest", Label: "longest gap", Unit: millis, Bars: true,
			Text: "the longest time for which a queue had no owner: nobody handed out its messages",
			of:   func(m *compare.Measures) float64 { return float64(m.GapLongestMS) },
		},
		{
			ID: "gap_total", Label: "total gap", Unit: millis, Bars: true,
			Text: "the times without owner of all queues added up: ten queues for one second are ten seconds",
			of:   func(m *compare.Measures) float64 { return float64(m.GapTotalMS) },
		},
		{
			ID: "gap_queues", Label: "queues with a gap", Unit: number,
			Text: "queues that had no owner for some time",
			of:   count(func(m *compare.Measures) int { return m.GapQueues }),
		},
		{
			ID: "moved", Label: "queues moved", Unit: number, Beside: "minimum", Bars: true,
			Text: "queues that have another owner after the event than before it; after the slash the least number that evens the shares out",
			of:   count(func(m *compare.Measures) int { return m.Moved }),
		},
		{
			ID: "minimum", Label: "least number to move", Unit: number,
			of: count(func(m *compare.Measures) int { return m.Minimum }),
		},
		{
			ID: "stopped", Label: "stopped, not moved", Unit: number, Bars: true,
			Text: "queues that had a gap and went on with the owner they had: stopped for nothing",
			of:   count(func(m *compare.Measures) int { return m.Stopped }),
		},
		{
			ID: "twice_queues", Label: "queues with two owners", Unit: number, Bars: true,
			Text: "queues that two members at once could hand out messages of",
			of:   count(func(m *compare.Measures) int { return m.TwiceQueues }),
		},
		{
			ID: "twice_total", Label: "time with two owners", Unit: millis, Bars: true,
			Text: "the times with two owners of all queues added up",
			of:   func(m *compare.Measures) float64 { return float64(m.TwiceTotalMS) },
		},
		{
			ID: "overrun", Label: "handlers past ownership", Unit: number,
			Text: "messages that a handler still worked on when another member came to own the queue",
			of:   count(func(m *compare.Measures) int { return m.Overrun }),
		},
		{
			ID: "repeated", Label: "messages repeated", Unit: number, Bars: true,
			Text: "messages handed out once more than needed",
			of:   count(func(m *compare.Measures) int { return m.Repeated }),
		},
		{
			ID: "lost", Label: "messages lost", Unit: number,
			Text: "messages that were stored and never handed out",
			of:   count(func(m *compare.Measures) int { return m.Lost }),
		},
		{
			ID: "disordered", Label: "messages out of order", Unit: number,
			Text: "messages first handed out after a later one of their queue",
			of:   count(func(m *compare.Measures) int { return m.OutOfOrder }),
		},
		{
			ID: "wire_messages", Label: "messages on the wire", Unit: number, Bars: true,
			Text: "what members and brokers sent each other for the group's sake while the event was watched, heartbeats included; data and fetches are not",
			of: func(m *compare.Measures) float64 {
				return float64(m.Wire.MemberMessages) + float64(m.Wire.BrokerMessages)
			},
		},
		{
			ID: "wire_bytes", Label: "bytes on the wire", Unit: octets, Bars: true,
			Text: "the same in bytes",
			of: func(m *compare.Measures) float64 {
				return float64(m.Wire.MemberBytes) + float64(m.Wire.BrokerBytes)
			},
		},
		{
			ID: "wire_members", Label: "bytes sent by members", Unit: octets,
			Text: "the part of it that members sent; the rest is from brokers",
			of:   count(func(m *compare.Measures) int { return m.Wire.MemberBytes }),
		},
		{
			ID: "wire_rate", Label: "bytes on the wire a second", Unit: rate, Optional: true,
			Text: "bytes on the wire over the time watched, which is longer for models that notice late",
			of: func(m *compare.Measures) float64 {
				if m.WatchedMS <= 0 {
					return 0
				}
				return (float64(m.Wire.MemberBytes) + float64(m.Wire.BrokerBytes)) * 1000 / float64(m.WatchedMS)
			},
		},
		{
			ID: "watched", Label: "time watched", Unit: millis, Optional: true,
			Text: "how long the event was looked at: what is counted was counted in that time",
			of:   func(m *compare.Measures) float64 { return float64(m.WatchedMS) },
		},
		{
			ID: "cpu", Label: "processor time", Unit: millis, Bars: true, Optional: true,
			Text: "of clients and brokers while the event was watched; live runs only",
			of:   func(m *compare.Measures) float64 { return float64(m.CPUMS) },
		},
	}
}
