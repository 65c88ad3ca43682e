package main

import (
	"slices"
	"testing"
)

func TestWideTablesAreCutToTheTerminalButNotTheirNumbers(t *testing.T) {
	g := newGrid("GROUP", "LAG", "CLIENT-ID").numbers(1)
	g.row("packers", 1234567890123, "192.0.2.2@2421#a542a73d49087c37e566d243fd2a7a1d")
	for _, c := range []struct {
		width int
		want  []string
	}{
		{100, []string{"packers", "1234567890123", "192.0.2.2@2421#a542a73d49087c37e566d243fd2a7a1d"}},
		{44, []string{"packers", "1234567890123", "192.0.2.2…fd2a7a1d"}},
		{10, []string{"packers", "1234567890123", "192.0.…a7a1d"}}, // no narrower than this
	} {
		if got := g.fit(c.width)[0]; !slices.Equal(got, c.want) {
			t.Errorf("%d columns: %q, want %q", c.width, got, c.want)
		}
	}
}
