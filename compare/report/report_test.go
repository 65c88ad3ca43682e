package report

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/tacitmq/tacit/compare"
)

func small() *compare.Report {
	return sample(sampleModels(), 4, 16, 2, []compare.Timers{compare.OwnTimers, compare.EqualTimers}, []compare.Phase{compare.Spread, compare.InStep})
}

// write is what a format writes of a report.
func write(t *testing.T, r *compare.Report, f func(*bytes.Buffer, *compare.Report) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func parsed(t *testing.T, r *compare.Report) (string, *html.Node) {
	t.Helper()
	out := write(t, r, func(b *bytes.Buffer, r *compare.Report) error { return HTML(b, r) })
	doc, err := html.ParseWithOptions(strings.NewReader(out), html.ParseOptionEnableScripting(false))
	if err != nil {
		t.Fatal(err)
	}
	return out, doc
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// content is the text below a node.
func content(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return b.String()
}

func dataOf(t *testing.T, doc *html.Node) (d pageData) {
	t.Helper()
	for n := range doc.Descendants() {
		if n.DataAtom == atom.Script && attr(n, "id") == "data" {
			if err := json.Unmarshal([]byte(content(n)), &d); err != nil {
				t.Fatal(err)
			}
			return d
		}
	}
	t.Fatal("the page has no data")
	return d
}

func TestPageHasAllModelsScenariosAndConditions(t *testing.T) {
	r := small()
	_, doc := parsed(t, r)
	d := dataOf(t, doc)
	if len(d.Cells) != len(r.Models)*len(r.Scenes)*4 || len(d.Charts) != len(d.Cells) || d.ChartsLeftOut != 0 {
		t.Errorf("%d cells, %d charts, %d left out", len(d.Cells), len(d.Charts), d.ChartsLeftOut)
	}
	sections := map[string]string{}
	for n := range doc.Descendants() {
		if n.DataAtom == atom.Section {
			sections[attr(n, "id")] = content(n)
		}
	}
	for _, s := range r.Scenes {
		in := sections["scenario-"+s.Name]
		if !strings.Contains(in, s.Text) {
			t.Errorf("no section of %s", s.Name)
		}
		for _, m := range r.Models { // in the table for readers without scripts
			if !strings.Contains(in, m.Name) {
				t.Errorf("%s is not in %s", m.Name, s.Name)
			}
		}
	}
	for _, f := range r.Findings {
		if !strings.Contains(sections["findings"], f.Text) {
			t.Errorf("no finding %q", f.Text)
		}
	}
}

// What the parser had to mend, or what a browser would load, is a fault.
func TestPageIsValidAndLoadsNothing(t *testing.T) {
	r := small()
	out, doc := parsed(t, r)
	ids := map[string]bool{}
	var refs []string
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if id := attr(n, "id"); id != "" {
			if ids[id] {
				t.Errorf("two elements have the id %s", id)
			}
			ids[id] = true
		}
		for _, name := range []string{"src", "href", "srcset", "action", "data", "poster"} {
			v := attr(n, name)
			switch {
			case strings.HasPrefix(v, "#"):
				refs = append(refs, v[1:])
			case v != "" && v != "data:,":
				t.Errorf("<%s %s=%q>", n.Data, name, v)
			}
		}
		if l := attr(n, "aria-labelledby"); l != "" {
			refs = append(refs, l)
		}
	}
	for _, ref := range refs {
		if !ids[ref] {
			t.Errorf("nothing has the id %s", ref)
		}
	}
	if strings.Contains(pageCSS, "url(") || strings.Contains(pageCSS, "@import") {
		t.Error("the style loads something")
	}
	// Every element that is opened is closed in its place.
	var open []string
	void := []string{"meta", "link", "br", "input"}
	z := html.NewTokenizer(strings.NewReader(out))
	for {
		switch z.Next() {
		default:
		case html.ErrorToken:
			if len(open) > 0 {
				t.Errorf("left open: %v", open)
			}
			return
		case html.StartTagToken:
			if name, _ := z.TagName(); !slices.Contains(void, string(name)) {
				open = append(open, string(name))
			}
		case html.EndTagToken:
			name, _ := z.TagName()
			if len(open) == 0 || open[len(open)-1] != string(name) {
				t.Fatalf("</%s> closes %v", name, open)
			}
			open = open[:len(open)-1]
		}
	}
}

func TestNamesCannotBecomeMarkup(t *testing.T) {
	const evil = `</script><script>alert("x")</script><b>'&`
	r := small()
	r.Command, r.Models[0].Text, r.Findings[0].Text, r.Findings[0].Winner = evil, evil, evil, evil
	r.Scenes[0] = compare.Scene{Name: evil, Text: evil}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Scenario == "start" {
			run.Scenario = evil
			run.Events[0].Name, run.Events[0].Why, run.Events[0].Settled = evil, evil, false
		}
	}
	r.Runs[0].Error, r.Runs[0].Events, r.Runs[0].Chart.Members[0] = evil, nil, evil
	_, doc := parsed(t, r)
	scripts := 0
	for n := range doc.Descendants() {
		switch {
		case n.DataAtom == atom.Script:
			scripts++
		case n.DataAtom == atom.B && attr(n, "class") == "":
			t.Error("a name became an element")
		}
	}
	if scripts != 2 {
		t.Errorf("%d scripts", scripts)
	}
	if d := dataOf(t, doc); d.Scenes[0].Name != evil || d.Scenes[0].ID != "scenario-1" {
		t.Errorf("%+v", d.Scenes[0])
	}
}

func TestLargeComparisonStaysBelowFiveMegabytes(t *testing.T) {
	all := []compare.Timers{compare.OwnTimers, compare.EqualTimers, compare.FastTimers}
	r := sample(sampleModels(), 16, 128, 1, all, []compare.Phase{compare.Spread, compare.InStep})
	for i := range r.Runs { // as restless as charts get
		c := r.Runs[i].Chart
		for q := range c.Queues {
			for i := range 12 {
				k := compare.Milliseconds(i)
				c.Bars = append(c.Bars, compare.Bar{Queue: q, Member: 1, FromMS: 60_000 + 2000*k, ToMS: 60_500 + 2000*k})
			}
		}
	}
	out, doc := parsed(t, r)
	d := dataOf(t, doc)
	if len(out) > 5_000_000 {
		t.Errorf("%d bytes", len(out))
	}
	if d.ChartsLeftOut == 0 || !strings.Contains(out, "charts of owners had no room") {
		t.Errorf("%d charts left out, and it is not said", d.ChartsLeftOut)
	}
	for _, c := range d.Cells {
		if c.Condition == 0 && c.Chart == nil {
			t.Error("what is shown first lacks a chart")
		}
	}
}

func TestChartSurvivesItsEncoding(t *testing.T) {
	r := small()
	run := &r.Runs[slices.IndexFunc(r.Runs, func(run compare.Run) bool {
		return run.Model == "rocketmq" && run.Scenario == "scale" && run.Chart != nil
	})]
	run.Chart.Bars = append(run.Chart.Bars, compare.Bar{Queue: 0, Member: 1, FromMS: 50, ToMS: 50.04}, compare.Bar{Queue: 99, ToMS: 5})
	var names lists
	c := encodeChart(run, &names)
	raw, err := base64.StdEncoding.DecodeString(c.Bars)
	if err != nil {
		t.Fatal(err)
	}
	uvarint := func() int64 {
		v, n := binary.Uvarint(raw)
		raw = raw[n:]
		return int64(v)
	}
	var got []compare.Bar
	for q := range names.all[c.Queues] {
		end := int64(0)
		for range uvarint() {
			m := uvarint()
			d, n := binary.Varint(raw)
			raw = raw[n:]
			from := end + d
			end = from + uvarint()
			got = append(got, compare.Bar{Queue: q, Member: int(m), FromMS: compare.Milliseconds(from), ToMS: compare.Milliseconds(end)})
		}
	}
	want := run.Chart.Bars[:len(run.Chart.Bars)-2]
	if len(got) != len(want) || len(raw) != 0 {
		t.Fatalf("%d bars of %d, %d bytes left", len(got), len(want), len(raw))
	}
	for i, b := range got {
		near := func(a, b compare.Milliseconds) bool { return a*tick-b < tick && b-a*tick < tick }
		if w := want[i]; b.Queue != w.Queue || b.Member != w.Member || !near(b.FromMS, w.FromMS) || !near(b.ToMS, w.ToMS) {
			t.Errorf("%+v, not %+v", b, w)
		}
	}
}

func TestChartOfManyQueuesShowsEachSoManyth(t *testing.T) {
	r := sample(sampleModels()[:1], 10, 1000, 1, []compare.Timers{compare.OwnTimers}, []compare.Phase{compare.Spread})
	var names lists
	c := encodeChart(&r.Runs[0], &names)
	if c.Every != 4 || len(names.all[c.Queues]) != 250 || names.all[c.Queues][1] != r.Runs[0].Chart.Queues[4] {
		t.Errorf("every %d, %d rows", c.Every, len(names.all[c.Queues]))
	}
	if lag := thin(make([]compare.LagPoint, 5000)); len(lag) != maxLag {
		t.Errorf("%d points", len(lag))
	}
}

func TestCellHasMedianLeastAndMost(t *testing.T) {
	r := &compare.Report{}
	for i, settle := range []compare.Milliseconds{30, 10, 20, 1000} {
		m := compare.Measures{Settled: i != 3, Why: "no owner", SettleMS: settle, Moved: 2 * i, Minimum: 1}
		r.Runs = append(r.Runs, compare.Run{Model: "m", Scenario: "s", Way: compare.Simulated, Seed: uint64(10 - i), Members: 1, Queues: 1, Brokers: 1, Events: []compare.EventResult{{Name: "e", Measures: m}}})
	}
	r.Runs = append(r.Runs, compare.Run{Model: "m", Scenario: "s", Way: compare.Simulated, Seed: 20, Members: 1, Queues: 1, Brokers: 1, Error: "no port"})
	g := group(r)
	e := g.cells[cellKey{g.conditions[0], "m", "s"}].event("e")
	if e.stats[0] != (stat{25, 10, 1000}) || e.runs != 4 || e.unsettled != 1 || e.why != "no owner" || g.errors != 1 {
		t.Errorf("%+v", e)
	}
	if got := e.cell(shownColumns()[0], true); got != "> 25 ms (10 ms-1.00 s)" {
		t.Error(got)
	}
	if got := e.cell(shownColumns()[3], false); got != "3/1" {
		t.Error(got)
	}
}

func TestJSONComesBackAsItWas(t *testing.T) {
	r := small()
	out := write(t, r, func(b *bytes.Buffer, r *compare.Report) error { return JSON(b, r) })
	back, err := Read(strings.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(r, back) {
		t.Error("it differs")
	}
	if _, err := Read(strings.NewReader(out[:len(out)/2])); err == nil {
		t.Error("half a report was read")
	}
}

func TestCSVHasEveryEventWithItsFigures(t *testing.T) {
	r := small()
	r.Runs[1].Error, r.Runs[1].Events = `port, "taken"`, nil
	out := write(t, r, func(b *bytes.Buffer, r *compare.Report) error { return CSV(b, r) })
	lines, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, name := range lines[0] {
		at[name] = i
	}
	n := 1
	next := func() func(string) string {
		l := lines[n]
		n++
		return func(name string) string { return l[at[name]] }
	}
	for _, run := range r.Runs {
		if run.Error != "" {
			if of := next(); of("error") != run.Error || of("settle_ms") != "" || of("model") != run.Model {
				t.Errorf("a run that failed: %q", lines[n-1])
			}
			continue
		}
		for _, e := range run.Events {
			of := next()
			settle, err := strconv.ParseFloat(of("settle_ms"), 64)
			if err != nil || settle != float64(e.SettleMS) || of("event") != e.Name || of("seed") != strconv.FormatUint(run.Seed, 10) ||
				of("moved") != strconv.Itoa(e.Moved) || of("broker_bytes") != strconv.Itoa(e.Wire.BrokerBytes) || of("settled") != strconv.FormatBool(e.Settled) {
				t.Errorf("%q\nfor %+v", lines[n-1], e)
			}
		}
	}
	if n != len(lines) {
		t.Errorf("%d lines too many", len(lines)-n)
	}
}

func TestTableFitsTheTerminal(t *testing.T) {
	r := small()
	r.Runs[1].Error, r.Runs[1].Events = "no port", nil
	for _, width := range []int{60, 80, 120} {
		out := write(t, r, func(b *bytes.Buffer, r *compare.Report) error { return Table(b, r, width) })
		for l := range strings.Lines(out) {
			if w := text.StringWidth(strings.TrimSuffix(l, "\n")); w > width {
				t.Errorf("%d columns of %d: %s", w, width, l)
			}
		}
		for _, s := range r.Scenes {
			if strings.Count(out, "\n"+s.Name+":") != 4 {
				t.Errorf("width %d: %s is there %d times", width, s.Name, strings.Count(out, "\n"+s.Name+":"))
			}
		}
		if strings.Count(out, "cooperative-sticky") < 4*len(r.Scenes) || !strings.Contains(out, "no port") || !strings.Contains(out, "did not settle") {
			t.Errorf("width %d lacks something", width)
		}
	}
}

func TestReportWithoutRunsIsShown(t *testing.T) {
	r := &compare.Report{Version: "v1"}
	_, doc := parsed(t, r)
	if d := dataOf(t, doc); len(d.Cells) != 0 {
		t.Errorf("%+v", d)
	}
	write(t, r, func(b *bytes.Buffer, r *compare.Report) error { return Table(b, r, 80) })
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestFailedWriteIsReported(t *testing.T) {
	r := small()
	for name, err := range map[string]error{"HTML": HTML(full{}, r), "table": Table(full{}, r, 80), "CSV": CSV(full{}, r), "JSON": JSON(full{}, r)} {
		if err == nil || !strings.Contains(err.Error(), "no space") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFiguresReadWell(t *testing.T) {
	for _, c := range []struct {
		unit  unit
		value float64
		want  string
	}{
		{millis, 0, "0 s"},
		{millis, 0.04, "0.04 ms"},
		{millis, 9.94, "9.9 ms"},
		{millis, 9.96, "10 ms"},
		{millis, 999.4, "999 ms"},
		{millis, 999.6, "1.00 s"},
		{millis, 45_000, "45.0 s"},
		{millis, 720_000, "720 s"},
		{octets, 999, "999 B"},
		{octets, 999.7, "1.0 kB"},
		{octets, 123_456_789, "123 MB"},
		{rate, 1500, "1.5 kB/s"},
		{number, 8, "8"},
		{number, 8.5, "8.5"},
	} {
		if got := c.unit.value(c.value); got != c.want {
			t.Errorf("%v %s is %q, not %q", c.value, c.unit, got, c.want)
		}
	}
	if got := seedsText([]uint64{1, 2, 3, 5, 7, 8}); got != "1 to 3, 5, 7, 8" {
		t.Error(got)
	}
}
