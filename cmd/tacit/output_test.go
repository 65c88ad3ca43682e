package main

import (
	"math"
	"strings"
	"testing"
)

func lag(t *testing.T) *grid {
	t.Helper()
	g := newGrid("GROUP", "BROKER", "LAG", "CLIENT-ID", "HOST").numbers(2).spare("GROUP").cut("CLIENT-ID").omit("HOST")
	g.row("packers", "broker-a", 1234567890123, "192.0.2.2@2421#a542a73d49087c37e566d243fd2a7a1d", "192.0.2.2:40444")
	g.row("packers", "broker-b", 7, "", "")
	return g
}

func TestTablesGiveWayToNarrowTerminals(t *testing.T) {
	for _, c := range []struct {
		name  string
		width int
		want  string
	}{
		{"whole where it fits, and in pipes", math.MaxInt, `
GROUP    BROKER              LAG  CLIENT-ID                                        HOST
packers  broker-a  1234567890123  192.0.2.2@2421#a542a73d49087c37e566d243fd2a7a1d  192.0.2.2:40444
packers  broker-b              7  -                                                -`},
		{"without what the reader knows", 95, `
BROKER              LAG  CLIENT-ID                                        HOST
broker-a  1234567890123  192.0.2.2@2421#a542a73d49087c37e566d243fd2a7a1d  192.0.2.2:40444
broker-b              7  -                                                -`},
		{"ids lose their middle, numbers nothing", 60, `
BROKER              LAG  CLIENT-ID           HOST
broker-a  1234567890123  192.0.2.2…fd2a7a1d  192.0.2.2:40444
broker-b              7  -                   -`},
		{"then columns go", 45, `
BROKER              LAG  CLIENT-ID
broker-a  1234567890123  192.0.2.2@…3fd2a7a1d
broker-b              7  -`},
		{"then each row is a record, whole", 38, `
BROKER broker-a  LAG 1234567890123
  CLIENT-ID 192.0.2.2@2421#a542a73d49087c37e566d243fd2a7a1d
  HOST 192.0.2.2:40444

BROKER broker-b  LAG 7  CLIENT-ID -
  HOST -`},
	} {
		got := lag(t).render(c.width, false)
		if want := strings.TrimPrefix(c.want, "\n"); got != want {
			t.Errorf("%s: %d columns:\n%s\nwant\n%s", c.name, c.width, got, want)
		}
		for line := range strings.SplitSeq(got, "\n") {
			if n := len([]rune(line)); n > c.width && !strings.Contains(line, "#a542a73d49087c37e566d243fd2a7a1d") {
				t.Errorf("%s: a line of %d for %d columns: %s", c.name, n, c.width, line)
			}
		}
	}
}

func TestLagBeforeTheFirstCommitIsShownAsABound(t *testing.T) {
	known, most := int64(3), int64(12)
	for _, c := range []struct {
		lag, most *int64
		want      string
	}{{&known, nil, "3"}, {nil, &most, "≤12"}, {&known, &most, "≤12"}, {nil, nil, "-"}} {
		if got := lagText(c.lag, c.most); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
