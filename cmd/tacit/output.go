package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
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
type grid struct {
	header []string
	rows   [][]string
	right  map[int]bool // columns of numbers, from 0
}

func newGrid(header ...string) *grid { return &grid{header: header, right: make(map[int]bool)} }

// numbers aligns columns to the right.
func (g *grid) numbers(columns ...int) *grid {
	for _, c := range columns {
		g.right[c] = true
	}
	return g
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

// print writes the grid. On a terminal the header is bold, and what does not fit
// is cut: the longest cells first, never numbers.
func (g *grid) print(out *printer) error {
	color, width := terminal(out.Writer)
	rows := g.rows
	if f, ok := out.Writer.(*os.File); ok && isTerminal(f) {
		rows = g.fit(width)
	}
	t := table.NewWriter()
	st := table.StyleDefault
	st.Options = table.OptionsNoBordersAndSeparators
	st.Box.PaddingLeft, st.Box.PaddingRight = "", gap
	st.Format.Header = text.FormatDefault
	t.SetStyle(st)
	t.SuppressTrailingSpaces()
	header := make(table.Row, len(g.header))
	for i, h := range g.header {
		if color {
			h = "\x1b[1m" + h + "\x1b[0m"
		}
		header[i] = h
	}
	t.AppendHeader(header)
	for _, r := range rows {
		row := make(table.Row, len(r))
		for i, c := range r {
			row[i] = c
		}
		t.AppendRow(row)
	}
	var configs []table.ColumnConfig
	for c := range g.right {
		configs = append(configs, table.ColumnConfig{Number: c + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(configs)
	_, err := fmt.Fprintln(out, t.Render())
	return err
}

// gap is between columns; narrowest is how far a column is cut at most.
const (
	gap       = "  "
	narrowest = 12
)

// fit returns the rows, cut so that the grid is not wider than width if it can
// be.
func (g *grid) fit(width int) [][]string {
	var widths []int
	total := 0
	for _, r := range append([][]string{g.header}, g.rows...) {
		for i, c := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if n := len([]rune(c)); n > widths[i] {
				total += n - widths[i]
				widths[i] = n
			}
		}
	}
	total += len(gap) * len(widths)
	for total > width {
		widest := -1
		for i, n := range widths {
			least := narrowest
			if i < len(g.header) {
				least = max(least, len(g.header[i]))
			}
			if !g.right[i] && n > least && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
		total--
	}
	out := make([][]string, len(g.rows))
	for i, r := range g.rows {
		out[i] = make([]string, len(r))
		for j, c := range r {
			out[i][j] = cut(c, widths[j])
		}
	}
	return out
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
func plural(n int, one, many string) string {
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
