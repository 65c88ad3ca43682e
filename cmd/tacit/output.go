package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"
)

// terminal says whether w is a terminal that shows colours, and how many columns
// it has; 80 if it is none.
func terminal(w io.Writer) (color bool, width int) {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return false, 80
	}
	width, _, err := term.GetSize(int(f.Fd())) //nolint:gosec // a file descriptor is small
	if err != nil || width < 20 {
		width = 80
	}
	_, plain := os.LookupEnv("NO_COLOR")
	return !plain && os.Getenv("TERM") != "dumb", width
}

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) } //nolint:gosec // a file descriptor is small

// grid is a table for people: columns apart by blanks, no lines.
//
// What goes to a pipe or a file is never cut. On a terminal that is too narrow
// it gives way in steps: spare columns go, cells of the columns that may be cut
// lose their middle, optional columns go one after the other; if that is still
// too wide each row becomes a record of names and values.
type grid struct {
	header   []string
	rows     [][]string
	right    map[int]bool // columns of numbers, from 0
	spares   []int
	cutting  []int
	optional []int
}

func newGrid(header ...string) *grid { return &grid{header: header, right: make(map[int]bool)} }

// numbers aligns columns to the right.
func (g *grid) numbers(columns ...int) *grid {
	for _, c := range columns {
		g.right[c] = true
	}
	return g
}

// spare names columns that say what the reader knows.
func (g *grid) spare(names ...string) *grid {
	g.spares = g.indexes(names)
	return g
}

// cut names columns whose cells are still told apart without their middle.
func (g *grid) cut(names ...string) *grid {
	g.cutting = g.indexes(names)
	return g
}

// omit names columns to be left out for want of room, the first one first.
func (g *grid) omit(names ...string) *grid {
	g.optional = g.indexes(names)
	return g
}

func (g *grid) indexes(names []string) (out []int) {
	for _, n := range names {
		if i := slices.Index(g.header, n); i >= 0 {
			out = append(out, i)
		}
	}
	return out
}

func (g *grid) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
		if row[i] == "" {
			row[i] = "-"
		}
	}
	g.rows = append(g.rows, row)
}

// print writes the grid.
func (g *grid) print(out *printer) error {
	color, width := false, math.MaxInt
	if f, ok := out.Writer.(*os.File); ok && isTerminal(f) && len(g.header) > 0 {
		color, width = terminal(f)
	}
	_, err := fmt.Fprintln(out, g.render(width, color))
	return err
}

// gap is between columns; narrowest is how far a cell is cut at most.
const (
	gap       = "  "
	narrowest = 16
)

// render returns the grid for a terminal of this width.
func (g *grid) render(width int, color bool) string {
	columns, widths := g.fit(width)
	if columns == nil {
		return g.records(width, color)
	}
	t := table.NewWriter()
	st := table.StyleDefault
	st.Options = table.OptionsNoBordersAndSeparators
	st.Box.PaddingLeft, st.Box.PaddingRight = "", gap
	st.Format.Header = text.FormatDefault
	t.SetStyle(st)
	pick := func(cells []string) table.Row {
		var row table.Row
		for _, c := range columns {
			if c < len(cells) {
				row = append(row, cut(cells[c], widths[c]))
			}
		}
		return row
	}
	t.AppendHeader(pick(g.header))
	for _, r := range g.rows {
		t.AppendRow(pick(r))
	}
	var configs []table.ColumnConfig
	for i, c := range columns {
		if g.right[c] {
			configs = append(configs, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.SetColumnConfigs(configs)
	lines := strings.Split(t.Render(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	if color {
		lines[0] = bold(lines[0])
	}
	return strings.Join(lines, "\n")
}

func bold(s string) string { return "\x1b[1m" + s + "\x1b[0m" }

// fit returns the columns to show and how wide each may be, nil if no choice of
// them fits.
func (g *grid) fit(width int) (columns, widths []int) {
	for _, r := range append([][]string{g.header}, g.rows...) {
		for i, c := range r {
			if i == len(widths) {
				widths, columns = append(widths, 0), append(columns, i)
			}
			widths[i] = max(widths[i], text.StringWidth(c))
		}
	}
	over := func() int {
		total := len(gap) * (len(columns) - 1)
		for _, c := range columns {
			total += widths[c]
		}
		return total - width
	}
	drop := func(c int) {
		columns = slices.DeleteFunc(columns, func(have int) bool { return have == c })
	}
	for _, c := range g.spares {
		if over() > 0 {
			drop(c)
		}
	}
	natural := slices.Clone(widths)
	for _, c := range append([]int{-1}, g.optional...) {
		drop(c)
		copy(widths, natural)
		g.shrink(columns, widths, over)
		if over() <= 0 {
			return columns, widths
		}
	}
	return nil, nil
}

// shrink makes the widest of the columns that may be cut narrower, a column of
// the terminal at a time, while there are too many.
func (g *grid) shrink(columns, widths []int, over func() int) {
	for over() > 0 {
		widest := -1
		for _, c := range g.cutting {
			if slices.Contains(columns, c) && widths[c] > max(narrowest, len(g.header[c])) && (widest < 0 || widths[c] > widths[widest]) {
				widest = c
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// records writes each row as names and values, whole.
func (g *grid) records(width int, color bool) string {
	var b strings.Builder
	for i, r := range g.rows {
		if i > 0 {
			b.WriteByte('\n')
		}
		used := 0
		for j, cell := range r {
			if slices.Contains(g.spares, j) {
				continue
			}
			name := ""
			if j < len(g.header) {
				name = g.header[j] + " "
			}
			w := len(name) + text.StringWidth(cell)
			switch {
			case used == 0:
			case used+len(gap)+w > width:
				b.WriteString("\n" + gap)
				used = len(gap)
			default:
				b.WriteString(gap)
				used += len(gap)
			}
			if color && name != "" {
				name = bold(name[:len(name)-1]) + " "
			}
			b.WriteString(name + cell)
			used += w
		}
		b.WriteByte('\n')
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// cut shortens a cell in its middle: client ids differ at their end.
func cut(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	left := width / 2
	return string(r[:left]) + "…" + string(r[len(r)-(width-left-1):])
}

// paragraph breaks text into lines that fit a terminal.
func paragraph(out *printer, s string) string {
	if f, ok := out.Writer.(*os.File); ok && isTerminal(f) {
		_, width := terminal(f)
		return text.WrapSoft(s, width)
	}
	return s
}

// printJSON writes v as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// orDash is a number that may not be known.
func orDash(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

// plural is a number with its word.
func plural[N int | int32 | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + many
}

// joinOrDash lists words.
func joinOrDash(words []string) string {
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}
