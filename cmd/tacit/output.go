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

// print writes the grid. The header is bold on a terminal.
func (g *grid) print(w io.Writer) error {
	color, _ := terminal(w)
	t := table.NewWriter()
	st := table.StyleDefault
	st.Options = table.OptionsNoBordersAndSeparators
	st.Box.PaddingLeft, st.Box.PaddingRight = "", "  "
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
	for _, r := range g.rows {
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
	_, err := fmt.Fprintln(w, t.Render())
	return err
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
