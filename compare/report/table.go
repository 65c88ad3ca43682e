package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/tacitmq/tacit/compare"
)

// wide is from where the spread over the seeds has room.
const wide = 110

// Table writes the report for a terminal of so many columns: for each condition and
// scenario a table with a line for each model, medians over the seeds.
func Table(w io.Writer, r *compare.Report, width int) error {
	t := terminal{width: max(width, 40)}
	g := group(r)
	t.parts("", g.sentence(r))
	t.parts("", parts(r, g)...)
	for _, f := range r.Findings {
		text := f.Text
		if f.Winner != "" {
			text = f.Winner + ": " + text
		}
		t.parts("  ", "- "+text)
	}
	for _, c := range g.conditions {
		t.line("")
		t.parts("", c.String())
		for _, s := range g.scenes {
			if g.has(c, s.Name) {
				t.scene(g, c, s)
			}
		}
	}
	if _, err := io.WriteString(w, t.out.String()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// parts are what a reader must know of the machine and the runs.
func parts(r *compare.Report, g *grouped) []string {
	out := []string{"tacit " + r.Version, fmt.Sprintf("%s/%s, %s", r.Machine.OS, r.Machine.Arch, counted(r.Machine.Cores, "core"))}
	if r.Machine.CPU != "" {
		out = append(out, r.Machine.CPU)
	}
	seeds := "seeds "
	if len(g.seeds) == 1 {
		seeds = "seed "
	}
	out = append(out, seeds+seedsText(g.seeds), whenText(r.Begun))
	if g.errors > 0 {
		out = append(out, counted(g.errors, "run")+" could not be made")
	}
	return out
}

// terminal collects lines.
type terminal struct {
	out   strings.Builder
	width int
}

func (t *terminal) line(s string) { t.out.WriteString(strings.TrimRight(s, " ") + "\n") }

// parts writes what belongs together, in as many lines as it takes.
func (t *terminal) parts(indent string, parts ...string) {
	now := ""
	for word := range strings.FieldsSeq(strings.Join(parts, " | ")) {
		switch {
		case now == "":
			now = indent + word
		case text.StringWidth(now)+1+text.StringWidth(word) > t.width:
			t.line(now)
			now = indent + "  " + word
		default:
			now += " " + word
		}
	}
	t.line(now)
}

// scene writes the block of a scenario, a table for each of its events.
func (t *terminal) scene(g *grouped, c condition, s compare.Scene) {
	t.line("")
	title := s.Name
	if s.Text != "" {
		title += ": " + s.Text
	}
	t.parts("", title)
	events := g.events(c, s.Name)
	var broken []string
	for i, name := range events {
		if len(events) > 1 {
			t.line("  " + name)
		}
		t.rows(g, c, s.Name, name, i == 0)
	}
	for _, m := range g.models {
		if cell := g.cells[cellKey{c, m.Name, s.Name}]; cell != nil && len(cell.errors) > 0 {
			broken = append(broken, fmt.Sprintf("%s: %d of %s could not be made: %s", m.Name, len(cell.errors), counted(len(cell.seeds), "run"), cell.errors[0]))
		}
	}
	for _, b := range broken {
		t.parts("  ", b)
	}
}

// shown is a column of the terminal's table.
type shown struct {
	id, header string
	spread     bool // shown if there is room
}

func shownColumns() []shown {
	return []shown{
		{"settle", "settle", true},
		{"gap_longest", "longest\ngap", true},
		{"gap_total", "total\ngap", false},
		{"moved", "moved\n/min", false},
		{"stopped", "stop-\nped", false},
		{"twice_queues", "two\nowners", false},
		{"repeated", "repea-\nted", false},
		{"wire_bytes", "wire", false},
	}
}

func (t *terminal) rows(g *grouped, c condition, scenario, name string, headed bool) {
	rows := func(spread bool) (out []table.Row) {
		for _, m := range g.models {
			if e := g.cells[cellKey{c, m.Name, scenario}].event(name); e != nil {
				row := table.Row{m.Name}
				for _, s := range shownColumns() {
					row = append(row, e.cell(s, spread))
				}
				out = append(out, row)
			}
		}
		return out
	}
	// The most that fits.
	most := ""
	if t.width >= wide {
		most = t.table(rows(true), headed, true)
	}
	if most == "" || text.LongestLineLen(most) > t.width {
		most = t.table(rows(false), headed, false)
	}
	if text.LongestLineLen(most) > t.width {
		t.lines(rows(true))
	} else {
		for l := range strings.SplitSeq(most, "\n") {
			t.line(l)
		}
	}
	for _, m := range g.models {
		if e := g.cells[cellKey{c, m.Name, scenario}].event(name); e != nil && e.unsettled > 0 {
			t.parts("  ", fmt.Sprintf("%s did not settle in %d of %s: %s", m.Name, e.unsettled, counted(e.runs, "run"), e.why))
		}
	}
}

// lines are the rows where a table has no room.
func (t *terminal) lines(rows []table.Row) {
	for _, row := range rows {
		var parts []string
		for i, s := range shownColumns() {
			label := strings.ReplaceAll(strings.ReplaceAll(s.header, "-\n", ""), "\n", " ")
			parts = append(parts, fmt.Sprintf("%s %v", label, row[i+1]))
		}
		t.parts("  ", fmt.Sprintf("%v: %s", row[0], strings.Join(parts, ", ")))
	}
}

func (t *terminal) table(rows []table.Row, headed, spread bool) string {
	w := table.NewWriter()
	st := table.StyleDefault // ASCII
	st.Format.Header = text.FormatDefault
	st.Options.SeparateColumns = false
	st.Options.SeparateHeader = headed
	st.Options.DrawBorder = false
	st.Box.PaddingLeft = ""
	w.SetStyle(st)
	header := table.Row{"model"}
	configs := []table.ColumnConfig{{Number: 1, WidthMin: 18}}
	for i, s := range shownColumns() {
		header = append(header, s.header)
		least := 6
		switch {
		case s.spread && spread:
			least = 22
		case s.id == "settle":
			least = 8
		}
		configs = append(configs, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight, WidthMin: least})
	}
	if headed {
		w.AppendHeader(header)
	}
	w.SetColumnConfigs(configs)
	w.AppendRows(rows)
	return w.Render()
}

// cell writes one measure of an event.
func (e *event) cell(s shown, spread bool) string {
	all := measures()
	i := slices.IndexFunc(all, func(m measure) bool { return m.ID == s.id })
	m, st := all[i], e.stats[i]
	out := m.Unit.value(st.median)
	if m.Beside != "" {
		j := slices.IndexFunc(all, func(o measure) bool { return o.ID == m.Beside })
		out += "/" + all[j].Unit.value(e.stats[j].median)
	}
	if s.id == "settle" && e.unsettled > 0 {
		out = "> " + out
	}
	if least, most := m.Unit.value(st.least), m.Unit.value(st.most); s.spread && spread && least != most {
		out += fmt.Sprintf(" (%s-%s)", least, most)
	}
	return out
}
