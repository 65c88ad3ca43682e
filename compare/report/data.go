package report

import (
	"math"
	"slices"
	"strconv"

	"github.com/tacitmq/tacit/compare"
)

// pageData is what the page's script draws from.
type pageData struct {
	Measures   []pageMeasure       `json:"measures"`
	Models     []compare.Model     `json:"models"`
	Scenes     []pageScene         `json:"scenes"`
	Setups     []pageSetup         `json:"setups"`
	Conditions []pageCondition     `json:"conditions"`
	Settings   [][]compare.Setting `json:"settings"`
	Cells      []pageCell          `json:"cells"`
	Lists      [][]string          `json:"lists"`
	Charts     []*pageChart        `json:"charts"`
	// ChartsLeftOut are those for which there was no room.
	ChartsLeftOut int `json:"charts_left_out"`
}

type pageMeasure struct {
	ID     string `json:"id"`
	Label  string `json:"label"`
	Unit   unit   `json:"unit"`
	Text   string `json:"text"`
	Beside string `json:"beside,omitempty"`
	Bars   bool   `json:"bars,omitempty"`
	// Missing measures were not measured.
	Missing bool `json:"missing,omitempty"`
}

type pageScene struct {
	Name string `json:"name"`
	Text string `json:"text"`
	ID   string `json:"id"` // of its section
}

type pageSetup struct {
	Text    string `json:"text"`
	Way     string `json:"way"`
	Members int    `json:"members"`
	Queues  int    `json:"queues"`
	// Alike setups differ in their size alone.
	Alike string `json:"alike"`
}

type pageCondition struct {
	Setup      int            `json:"setup"`
	Timers     compare.Timers `json:"timers"`
	TimersText string         `json:"timers_text"`
	Phase      compare.Phase  `json:"phase"`
}

// pageCell names what it is of by index.
type pageCell struct {
	Condition int         `json:"c"`
	Model     int         `json:"m"`
	Scene     int         `json:"s"`
	Seeds     string      `json:"seeds"`
	Runs      int         `json:"n"`
	Errors    []string    `json:"errors,omitempty"`
	Settings  int         `json:"set"`
	Events    []pageEvent `json:"ev"`
	Chart     *int        `json:"chart,omitempty"`
}

// pageEvent has for each measure its median, or median, least and most where they differ.
type pageEvent struct {
	Name      string `json:"n"`
	Runs      int    `json:"r"`
	Unsettled int    `json:"u,omitempty"`
	Why       string `json:"w,omitempty"`
	Values    []any  `json:"v"`
}

func newPageData(g *grouped) *pageData {
	d := &pageData{Models: g.models, Cells: []pageCell{}, Charts: []*pageChart{}, Settings: [][]compare.Setting{}}
	all := measures()
	for _, m := range all {
		d.Measures = append(d.Measures, pageMeasure{m.ID, m.Label, m.Unit, m.Text, m.Beside, m.Bars, m.Optional})
	}
	for i, s := range g.scenes {
		d.Scenes = append(d.Scenes, pageScene{s.Name, s.Text, sceneID(i, s.Name)})
	}
	for _, s := range g.setups {
		alike := setup{way: s.way, latency: s.latency, loss: s.loss}
		d.Setups = append(d.Setups, pageSetup{s.String(), string(s.way), s.members, s.queues, alike.String()})
	}
	var names lists
	left := chartBytes
	for ci, c := range g.conditions {
		d.Conditions = append(d.Conditions, pageCondition{slices.Index(g.setups, c.setup), c.timers, timersText(c.timers), c.phase})
		for si, s := range g.scenes {
			for mi, m := range g.models {
				cell := g.cells[cellKey{c, m.Name, s.Name}]
				if cell == nil {
					continue
				}
				p := d.cell(cell)
				p.Condition, p.Scene, p.Model = ci, si, mi
				if cell.charted != nil {
					chart := encodeChart(cell.charted, &names)
					if n := len(chart.Bars) + 8*len(chart.Lag); n <= left {
						left -= n
						at := len(d.Charts)
						d.Charts, p.Chart = append(d.Charts, chart), &at
					} else {
						d.ChartsLeftOut++
					}
				}
				d.Cells = append(d.Cells, p)
			}
		}
	}
	d.Lists = names.all
	return d
}

func (d *pageData) cell(c *cell) pageCell {
	p := pageCell{Seeds: seedsText(c.seeds), Runs: len(c.seeds), Errors: c.errors, Events: []pageEvent{}}
	p.Settings = slices.IndexFunc(d.Settings, func(o []compare.Setting) bool { return slices.Equal(o, c.settings) })
	if p.Settings < 0 {
		p.Settings = len(d.Settings)
		d.Settings = append(d.Settings, c.settings)
	}
	for _, e := range c.events {
		pe := pageEvent{Name: e.name, Runs: e.runs, Unsettled: e.unsettled, Why: e.why}
		for i, s := range e.stats {
			if s.most != 0 {
				d.Measures[i].Missing = false
			}
			if s.least == s.most {
				pe.Values = append(pe.Values, rounded(s.median))
			} else {
				pe.Values = append(pe.Values, []float64{rounded(s.median), rounded(s.least), rounded(s.most)})
			}
		}
		p.Events = append(p.Events, pe)
	}
	return p
}

// rounded keeps microseconds of milliseconds.
func rounded(v float64) float64 { return math.Round(v*1000) / 1000 }

// sceneID is the id of a scenario's section: its name if that will do.
func sceneID(i int, name string) string {
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return "scenario-" + strconv.Itoa(i+1)
		}
	}
	return "scenario-" + name
}
