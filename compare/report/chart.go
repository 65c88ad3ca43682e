package report

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"

	"github.com/tacitmq/tacit/compare"
)

const (
	// maxRows is how many queues a chart shows; of more, every second, third and so on.
	maxRows = 256
	// maxLag is how many points a lag curve has at most.
	maxLag = 600
	// chartBytes is how much all charts may take; those of conditions shown first go first.
	chartBytes = 3_400_000
	// tick is the resolution of times, ms: a pixel at the deepest zoom.
	tick = 0.1
)

// pageChart is a chart in the page. Bars is base64 of a list of varints. For each queue:
// how many bars; for each of these: the member, the time from the end of the one before
// (signed, zigzag), its length. Times are in ticks from the beginning of the chart; bars
// shorter than a tick are left out.
type pageChart struct {
	Seed    uint64  `json:"seed"`
	Tick    float64 `json:"tick"`
	To      float64 `json:"to"`              // ticks
	Queues  int     `json:"queues"`          // index of a list of names
	Members int     `json:"members"`         // the same
	Every   int     `json:"every,omitempty"` // only each so many-th queue is there
	Marks   []any   `json:"marks"`           // time in ticks and text by turns
	// Settled is after how many ms each event had settled, of those that had.
	Settled map[string]float64 `json:"settled"`
	Bars    string             `json:"bars"`
	Lag     []float64          `json:"lag,omitempty"` // time in ticks and number of messages by turns
}

// lists keeps equal lists of names once.
type lists struct {
	all [][]string
}

func (l *lists) add(names []string) int {
	if i := slices.IndexFunc(l.all, func(o []string) bool { return slices.Equal(o, names) }); i >= 0 {
		return i
	}
	if names == nil {
		names = []string{}
	}
	l.all = append(l.all, names)
	return len(l.all) - 1
}

func encodeChart(run *compare.Run, names *lists) *pageChart {
	c := run.Chart
	at := func(ms compare.Milliseconds) int64 { return int64(math.Round(float64(ms-c.FromMS) / tick)) }
	every := (len(c.Queues) + maxRows - 1) / maxRows
	every = max(every, 1)
	byQueue := make([][]compare.Bar, len(c.Queues))
	for _, b := range c.Bars {
		if b.Queue < 0 || b.Queue >= len(byQueue) || b.Member < 0 || b.Member >= len(c.Members) || at(b.ToMS) <= at(b.FromMS) {
			continue
		}
		byQueue[b.Queue] = append(byQueue[b.Queue], b)
	}
	var queues []string
	var raw []byte
	for i := 0; i < len(byQueue); i += every {
		queues = append(queues, c.Queues[i])
		bars := byQueue[i]
		slices.SortStableFunc(bars, func(a, b compare.Bar) int { return int(at(a.FromMS) - at(b.FromMS)) })
		raw = binary.AppendUvarint(raw, uint64(len(bars)))
		end := int64(0)
		for _, b := range bars {
			from, to := at(b.FromMS), at(b.ToMS)
			raw = binary.AppendUvarint(raw, uint64(b.Member))
			raw = binary.AppendVarint(raw, from-end)
			raw = binary.AppendUvarint(raw, uint64(to-from))
			end = to
		}
	}
	out := &pageChart{
		Seed: run.Seed, Tick: tick, To: float64(at(c.ToMS)), Queues: names.add(queues), Members: names.add(c.Members),
		Bars: base64.StdEncoding.EncodeToString(raw), Marks: []any{}, Settled: make(map[string]float64),
	}
	if every > 1 {
		out.Every = every
	}
	for _, e := range run.Events {
		if e.Settled {
			out.Settled[e.Name] = rounded(float64(e.SettleMS))
		}
	}
	for _, m := range c.Marks {
		out.Marks = append(out.Marks, at(m.AtMS), m.Text)
	}
	for _, p := range thin(c.Lag) {
		out.Lag = append(out.Lag, float64(at(p.AtMS)), float64(p.Lag))
	}
	return out
}

// thin keeps the highest point of each stretch, and the last of all.
func thin(lag []compare.LagPoint) []compare.LagPoint {
	if len(lag) <= maxLag {
		return lag
	}
	out := make([]compare.LagPoint, 0, maxLag)
	for i := range maxLag - 1 {
		from, to := i*(len(lag)-1)/(maxLag-1), (i+1)*(len(lag)-1)/(maxLag-1)
		out = append(out, slices.MaxFunc(lag[from:to], func(a, b compare.LagPoint) int { return a.Lag - b.Lag }))
	}
	return append(out, lag[len(lag)-1])
}
