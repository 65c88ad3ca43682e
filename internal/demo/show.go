package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/tacitmq/tacit/allocate"
)

// show prints a demo.
type show struct {
	out   io.Writer
	color bool
	width int
	tints map[string]string // by owner, in the order they came
}

func newShow(out io.Writer, color bool, width int) *show {
	return &show{out: out, color: color, width: max(width, 40), tints: make(map[string]string)}
}

// indent is that of what is said of an event.
const indent = 3

// The escape sequences used. Owners get tints in turn.
const (
	bold  = "1"
	faint = "2"
	red   = "1;31"
	green = "32"
)

func palette() []string { return []string{"96", "92", "93", "95", "94", "91", "36", "33"} }

// paint colours text on a terminal.
func (s *show) paint(code, text string) string {
	if !s.color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// tint is the colour of an owner.
func (s *show) tint(owner string) string {
	c, ok := s.tints[owner]
	if !ok {
		p := palette()
		c = p[len(s.tints)%len(p)]
		s.tints[owner] = c
	}
	return c
}

func (s *show) line(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format+"\n", args...) // nobody to tell of a closed stdout
}

// style is that of all tables.
func (s *show) style() table.Style {
	st := table.StyleDefault // ASCII
	if s.color {
		st = table.StyleRounded
	}
	st.Format.Header = text.FormatDefault
	st.Options.SeparateHeader = true
	st.Options.SeparateColumns = false
	return st
}

// begin says what runs.
func (s *show) begin(d *demo) {
	s.line("%s", s.paint(bold, "tacit demo"))
	servers := []string{"name server " + d.cluster.nameServer}
	for _, n := range d.cluster.brokers {
		servers = append(servers, n.name+" "+n.address)
	}
	s.parts(servers...)
	s.parts(fmt.Sprintf("topic %s with %s", Topic, counted(int(d.cfg.Queues), "queue")), counted(d.cfg.Rate, "message")+" a second", "group "+Group,
		"each consumer a process of its own")
}

// parts prints what belongs together, in as many lines as it takes.
func (s *show) parts(parts ...string) {
	between := " | "
	if s.color {
		between = " · "
	}
	s.joined(between, parts)
}

// joined prints parts with something of three columns between them.
func (s *show) joined(between string, parts []string) {
	for _, l := range s.wrap(between, parts) {
		s.line("%s%s", strings.Repeat(" ", indent), l)
	}
}

// event prints what an event did and who owns what after it.
func (s *show) event(number int, r *EventResult) {
	s.line("")
	s.line("%s", s.paint(bold, fmt.Sprintf("%d  %s", number, r.title)))
	if len(r.queues) > 0 {
		s.line("%s", s.ownership(r))
		s.joined("   ", s.shares(r))
	}
	if !r.settled {
		s.line("   %s", s.paint(red, r.why))
	}
	s.parts(s.figures(r)...)
}

// figures are what was measured of an event.
func (s *show) figures(r *EventResult) []string {
	moved := fmt.Sprintf("moved %d (minimum %d)", r.Moved, r.Minimum)
	switch {
	case r.Moved <= r.Minimum:
	case r.Event == "start": // each that came later took a share of what those before it had
		moved += ", as they came in one after another"
	default:
		moved = s.paint(red, moved)
	}
	paused := "no queue paused"
	if r.PausedQueues > 0 {
		paused = fmt.Sprintf("max pause %s, %s", span(r.MaxPauseMS), counted(r.PausedQueues, "queue"))
	}
	lost := fmt.Sprintf("lost %d", r.Lost)
	if r.Lost > 0 {
		lost = s.paint(red, lost)
	}
	settled := "settled in " + span(r.SettledMS)
	if !r.settled {
		settled = s.paint(red, "not settled after "+span(r.SettledMS))
	}
	parts := []string{settled, moved, paused, lost, fmt.Sprintf("duplicates %d", r.Duplicates)}
	if r.twice > 0 {
		parts = append(parts, s.paint(red, fmt.Sprintf("two owners at once: %d", r.twice)))
	}
	return parts
}

// wrap joins parts into lines that fit the width behind the indent.
func (s *show) wrap(between string, parts []string) (lines []string) {
	now, width := "", 0
	for _, p := range parts {
		w := text.StringWidthWithoutEscSequences(p)
		switch {
		case now == "":
			now, width = p, w
		case indent+width+len([]rune(between))+w > s.width:
			lines = append(lines, now)
			now, width = p, w
		default:
			now += between + p
			width += len([]rune(between)) + w
		}
	}
	return append(lines, now)
}

// ownership is the table of who owns what: a row for each broker, a column for
// each queue id. What another member owned before is marked.
func (s *show) ownership(r *EventResult) string {
	byBroker := make(map[string][]allocate.Queue)
	var brokers []string
	columns := 0
	for _, q := range r.queues {
		if byBroker[q.Broker] == nil {
			brokers = append(brokers, q.Broker)
		}
		byBroker[q.Broker] = append(byBroker[q.Broker], q)
		columns = max(columns, len(byBroker[q.Broker]))
	}
	// A table that is wider than the terminal goes on below.
	const first, cell = 12, 5
	perLine := max(4, (s.width-first)/cell)
	var tables []string
	for from := 0; from < columns; from += perLine {
		to := min(from+perLine, columns)
		t := table.NewWriter()
		t.SetStyle(s.style())
		header := table.Row{"queue"}
		for id := from; id < to; id++ {
			header = append(header, strconv.Itoa(id))
		}
		t.AppendHeader(header)
		for _, b := range brokers {
			row := table.Row{b}
			for id := from; id < min(to, len(byBroker[b])); id++ {
				row = append(row, s.cell(byBroker[b][id], r))
			}
			t.AppendRow(row)
		}
		tables = append(tables, t.Render())
	}
	return strings.Join(tables, "\n")
}

// cell is the owner of one queue.
func (s *show) cell(q allocate.Queue, r *EventResult) string {
	owner := r.owners[q]
	if owner == "" {
		return s.paint(red, "-")
	}
	before := r.before[q]
	switch {
	case before != "" && before != owner:
		return s.paint(bold+";"+s.tint(owner), owner+"*")
	default:
		return s.paint(s.tint(owner), owner) + " "
	}
}

// shares is how many queues each member has.
func (s *show) shares(r *EventResult) (parts []string) {
	n := make(map[string]int)
	for _, o := range r.owners {
		n[o]++
	}
	for _, m := range r.members {
		bar := strings.Repeat("#", n[m])
		if s.color {
			bar = strings.Repeat("■", n[m])
		}
		parts = append(parts, s.paint(s.tint(m), m+" "+bar)+" "+strconv.Itoa(n[m]))
	}
	return parts
}

// summaryWidth is how wide the summary is at least.
const summaryWidth = 80

// summary prints all events in one table, its columns named as in the JSON
// result.
func (s *show) summary(res *Result) {
	s.line("")
	if s.width < summaryWidth {
		for i := range res.Events {
			r := &res.Events[i]
			s.parts(append([]string{s.paint(bold, r.Event)}, s.figures(r)...)...)
		}
	} else {
		s.line("%s", s.table(res))
	}
	verdict := s.paint(green, "nothing lost")
	if res.Lost > 0 {
		verdict = s.paint(red, counted(res.Lost, "message")+" lost")
	}
	if res.Strange > 0 {
		verdict = s.paint(red, counted(res.Strange, "message")+" that nobody sent")
	}
	s.parts(counted(res.Produced, "message")+" produced", strconv.Itoa(res.Consumed)+" consumed", verdict, counted(res.Duplicates, "duplicate"))
}

func (s *show) table(res *Result) string {
	t := table.NewWriter()
	st := s.style()
	st.Options.DrawBorder = false // 80 columns are all there are
	t.SetStyle(st)
	t.SuppressTrailingSpaces()
	t.AppendHeader(table.Row{"event", "settled", "moved", "minimum", "paused", "max pause", "lost", "duplicates"})
	for i := range res.Events {
		r := &res.Events[i]
		settled := span(r.SettledMS)
		if !r.settled {
			settled = s.paint(red, "no")
		}
		longest := "-"
		if r.PausedQueues > 0 {
			longest = span(r.MaxPauseMS)
		}
		t.AppendRow(table.Row{r.Event, settled, r.Moved, r.Minimum, r.PausedQueues, longest, r.Lost, r.Duplicates})
	}
	var right []table.ColumnConfig
	for n := 2; n <= 8; n++ {
		right = append(right, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(right)
	return t.Render()
}

// kept says how to look at what goes on running.
func (s *show) kept(d *demo) {
	s.line("")
	s.line("Everything goes on running until you press Ctrl-C.")
	s.line("Look at it from another terminal:")
	s.line("  export TACIT_NAMESERVERS=%s", d.cluster.nameServer)
	s.line("  tacit group describe %s", Group)
	s.line("  tacit explain %s", Group)
	s.line("  tacit consume %s", Topic)
	var brokers []string
	for _, n := range d.cluster.brokers {
		brokers = append(brokers, n.name+" "+n.address)
	}
	s.parts(brokers...)
}

// json prints the result as one line.
func (s *show) json(res *Result) {
	b, err := json.Marshal(res)
	if err != nil { // cannot be: numbers, strings and booleans
		b = []byte(`{"error":` + strconv.Quote(err.Error()) + `}`)
	}
	s.line("%s", b)
}

// span is a duration in milliseconds for people.
func span(ms float64) string {
	if ms >= 1000 {
		return strconv.FormatFloat(ms/1000, 'f', 2, 64) + " s"
	}
	return strconv.FormatFloat(ms, 'f', 1, 64) + " ms"
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
