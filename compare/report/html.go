package report

import (
	_ "embed" // the page's parts
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/compare"
)

// The page's parts. They are ours and hold nothing of a report.
var (
	//go:embed web/page.html
	pageHTML string
	//go:embed web/page.css
	pageCSS string
	//go:embed web/base.js
	baseJS string
	//go:embed web/owners.js
	ownersJS string
	//go:embed web/parts.js
	partsJS string
	//go:embed web/page.js
	pageJS string
)

// page is what the template shows.
type page struct {
	Title            string
	Sentence         string
	Facts            []fact
	Findings         []winner
	Scenes           []sceneTable
	Condition        string
	Terms            []measure
	Failures         []fact
	ChartsLeftOut    int
	Spread, HasSizes bool
	Data             template.JS
	Style            template.CSS
	Script           template.JS
}

type fact struct{ Name, Value string }

// winner is a model, or none, with what speaks for it.
type winner struct {
	Name  string
	Texts []string
}

// sceneTable is a scenario with its figures for readers without scripts.
type sceneTable struct {
	pageScene
	Header []string
	Events []eventTable
}

type eventTable struct {
	Name string
	Rows [][]string
}

// HTML writes the report as one page. It is complete in itself: it loads nothing, and
// its policy forbids it to.
func HTML(w io.Writer, r *compare.Report) error {
	g := group(r)
	data := newPageData(g)
	raw, err := json.Marshal(data) // escapes <, > and & in strings
	if err != nil {
		return fmt.Errorf("encode the page's data: %w", err)
	}
	t, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return fmt.Errorf("parse the page: %w", err)
	}
	p := page{
		Title: "Models of sharing queues compared", Sentence: g.sentence(r), Facts: facts(r, g), Findings: winners(r.Findings),
		Scenes: sceneTables(g, data), Spread: len(g.seeds) > 1, HasSizes: data.hasSizes(), ChartsLeftOut: data.ChartsLeftOut,
		Data: template.JS(raw), Style: template.CSS(pageCSS), Script: template.JS(baseJS + ownersJS + partsJS + pageJS),
	}
	if len(g.conditions) > 0 {
		p.Condition = g.conditions[0].String()
	}
	for i, m := range measures() {
		if m.Text != "" && !data.Measures[i].Missing {
			p.Terms = append(p.Terms, m)
		}
	}
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Error != "" {
			p.Failures = append(p.Failures, fact{fmt.Sprintf("%s, %s, %d members, seed %d", run.Model, run.Scenario, run.Members, run.Seed), run.Error})
		}
	}
	if err := t.Execute(w, p); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func facts(r *compare.Report, g *grouped) []fact {
	m := r.Machine
	machine := []string{m.OS + "/" + m.Arch}
	if m.CPU != "" {
		machine = append(machine, m.CPU)
	}
	machine = append(machine, counted(m.Cores, "core"), m.Go)
	out := []fact{
		{"version", r.Version},
		{"command", r.Command},
		{"machine", strings.Join(machine, ", ")},
		{"seeds", seedsText(g.seeds)},
		{"begun", whenText(r.Begun)},
	}
	return slices.DeleteFunc(out, func(f fact) bool { return f.Value == "" })
}

// winners puts findings together by whom they speak for, in the order they came.
func winners(findings []compare.Finding) (out []winner) {
	for _, f := range findings {
		i := slices.IndexFunc(out, func(w winner) bool { return w.Name == f.Winner })
		if i < 0 {
			i = len(out)
			out = append(out, winner{Name: f.Winner})
		}
		out[i].Texts = append(out[i].Texts, f.Text)
	}
	slices.SortStableFunc(out, func(a, b winner) int { return first(a.Name != "", b.Name != "") })
	return out
}

func sceneTables(g *grouped, data *pageData) (out []sceneTable) {
	for i, s := range g.scenes {
		t := sceneTable{pageScene: data.Scenes[i], Header: []string{"model"}}
		for _, c := range shownColumns() {
			t.Header = append(t.Header, strings.ReplaceAll(strings.ReplaceAll(c.header, "-\n", ""), "\n", " "))
		}
		if len(g.conditions) > 0 {
			for _, name := range g.events(g.conditions[0], s.Name) {
				t.Events = append(t.Events, eventRows(g, g.conditions[0], s.Name, name))
			}
		}
		out = append(out, t)
	}
	return out
}

func eventRows(g *grouped, c condition, scenario, name string) eventTable {
	t := eventTable{Name: name}
	for _, m := range g.models {
		e := g.cells[cellKey{c, m.Name, scenario}].event(name)
		if e == nil {
			continue
		}
		row := []string{m.Name}
		for _, s := range shownColumns() {
			row = append(row, e.cell(s, true))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// hasSizes says whether there are groups of several sizes.
func (d *pageData) hasSizes() bool {
	for i, s := range d.Setups {
		if slices.ContainsFunc(d.Setups[:i], func(o pageSetup) bool { return o.Alike == s.Alike && o.Members != s.Members }) {
			return true
		}
	}
	return false
}
