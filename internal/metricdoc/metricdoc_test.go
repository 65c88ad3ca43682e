package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestPageIsFresh(t *testing.T) {
	all, err := collect()
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	// A checkout may have turned the line ends into the system's own.
	if got := strings.ReplaceAll(string(committed), "\r\n", "\n"); got != render(all) {
		t.Errorf("%s is stale: run make docs", page)
	}
}

func TestNamesAndLabelsKeepTheHouseRules(t *testing.T) {
	all, err := collect()
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^tacit_[a-z]+_[a-z0-9_]+$`)
	// Few values each: no client, queue or error text.
	labels := []string{"group", "topic", "outcome", "reason", "kind", "trigger", "nameserver", "broker", "strategy"}
	for _, m := range all {
		if !name.MatchString(m.Name) || !strings.HasPrefix(m.Name, "tacit_"+m.Part+"_") {
			t.Errorf("%s: want tacit_%s_<what>", m.Name, m.Part)
		}
		if !strings.HasSuffix(m.Help, ".") {
			t.Errorf("%s: help %q is no sentence", m.Name, m.Help)
		}
		for _, l := range m.Labels {
			if !slices.Contains(labels, l) {
				t.Errorf("%s: label %s may have many values", m.Name, l)
			}
		}
	}
}

func TestDescribedFindsMetricsThatCountedNothing(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "tacit", Subsystem: "x", Name: "things_total", Help: `With "quotes", {braces} and | pipes.`,
			ConstLabels: prometheus.Labels{"group": `a,b="c"`},
		}, []string{"topic", "outcome"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "tacit_x_now", Help: "Now."}),
	)
	got, err := described("x", reg)
	if err != nil {
		t.Fatal(err)
	}
	want := []metric{
		{"x", "tacit_x_now", "Now.", []string{}},
		{"x", "tacit_x_things_total", `With "quotes", {braces} and | pipes.`, []string{"group", "outcome", "topic"}},
	}
	if !slices.EqualFunc(got, want, func(a, b metric) bool {
		return a.Part == b.Part && a.Name == b.Name && a.Help == b.Help && slices.Equal(a.Labels, b.Labels)
	}) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if line := "| `tacit_x_things_total` | `group`, `outcome`, `topic` | With \"quotes\", {braces} and \\| pipes. |\n"; !strings.Contains(render(got), line) {
		t.Errorf("page lacks %s:\n%s", line, render(got))
	}
}
