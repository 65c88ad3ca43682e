package deploy

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	dataquery "github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/dns"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// query is one expression with where it stands.
type query struct{ where, expr string }

func scrapeConfig(t *testing.T) *config.Config {
	t.Helper()
	c, err := config.LoadFile("prometheus/prometheus.yml", false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestScrapeTargetsAreTheHTTPPortsOfTheComposeServices(t *testing.T) {
	c := scrapeConfig(t)
	http := make(map[string]string) // service to port
	program := make(map[string]string)
	for _, inv := range composeInvocations(t) {
		program[inv.name] = inv.argv[0]
		if value, ok := inv.settings()["http"]; ok {
			_, http[inv.name], _ = net.SplitHostPort(value)
		}
	}
	scraped := make(map[string]bool)
	check := func(job, service, port string) {
		if http[service] != port || program[service] != job {
			t.Errorf("job %s: %s:%s is no HTTP port of a %s; they are %v", job, service, port, job, http)
		}
		scraped[service] = true
	}
	for _, s := range c.ScrapeConfigs {
		if s.MetricsPath != "/metrics" {
			t.Errorf("job %s: path %s", s.JobName, s.MetricsPath)
		}
		for _, sd := range s.ServiceDiscoveryConfigs {
			switch sd := sd.(type) {
			case discovery.StaticConfig:
				for _, group := range sd {
					for _, target := range group.Targets {
						host, port, err := net.SplitHostPort(string(target[model.AddressLabel]))
						if err != nil {
							t.Errorf("job %s: %v", s.JobName, err)
						}
						check(s.JobName, host, port)
					}
				}
			case *dns.SDConfig:
				for _, name := range sd.Names {
					check(s.JobName, name, strconv.Itoa(sd.Port))
				}
			default:
				t.Errorf("job %s: no check for %s", s.JobName, sd.Name())
			}
		}
	}
	for service := range http {
		if !scraped[service] {
			t.Errorf("%s is not scraped", service)
		}
	}
}

// ruleQueries parses every rule file that the configuration names.
func ruleQueries(t *testing.T) (out []query) {
	t.Helper()
	for _, name := range scrapeConfig(t).RuleFiles {
		groups, errs := rulefmt.ParseFile(name, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				if r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
					t.Errorf("%s: alert %s has no summary or severity", name, r.Alert)
				}
				out = append(out, query{filepath.ToSlash(name) + ": " + r.Alert, r.Expr})
			}
		}
	}
	if len(out) == 0 {
		t.Fatal("no rules")
	}
	return out
}

// dashboardQueries decodes the dashboard by Grafana's schema, which refuses unknown fields.
func dashboardQueries(t *testing.T) (out []query) {
	t.Helper()
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile("grafana/tacit.json")
	if err != nil {
		t.Fatal(err)
	}
	// Strict decoding finds what is unknown or missing, but loses the panels, and
	// returns an empty list of errors for none; so once more for the content.
	var problems cog.BuildErrors
	if err := new(dashboard.Dashboard).UnmarshalJSONStrict(text); !errors.As(err, &problems) || len(problems) > 0 {
		t.Fatal(err)
	}
	var d dashboard.Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint32]bool)
	for _, p := range d.Panels {
		if p.Panel == nil {
			continue
		}
		if p.Panel.Id == nil || seen[*p.Panel.Id] || p.Panel.Title == nil || p.Panel.Description == nil || p.Panel.GridPos == nil {
			t.Errorf("panel %v: no id of its own, title, description or place", p.Panel.Title)
			continue
		}
		seen[*p.Panel.Id] = true
		where := "grafana/tacit.json: " + *p.Panel.Title
		if len(p.Panel.Targets) == 0 {
			t.Errorf("%s: no query", where)
		}
		for _, target := range p.Panel.Targets {
			q, ok := target.(*dataquery.Dataquery)
			if !ok {
				t.Errorf("%s: query of type %T", where, target)
				continue
			}
			out = append(out, query{where, q.Expr})
		}
	}
	if len(out) == 0 {
		t.Fatal("the dashboard has no query")
	}
	for _, v := range d.Templating.List {
		if v.Query != nil && v.Query.String != nil && v.Type == dashboard.VariableTypeQuery {
			m := regexp.MustCompile(`^label_values\((.+), (\w+)\)$`).FindStringSubmatch(*v.Query.String)
			if m == nil {
				t.Errorf("variable %s: %q is no label_values", v.Name, *v.Query.String)
				continue
			}
			out = append(out, query{"grafana/tacit.json: variable " + v.Name, "sum by (" + m[2] + ") (" + m[1] + ")"})
		}
	}
	return out
}

func TestEveryQueryNamesMetricsAndLabelsThatExist(t *testing.T) {
	registered, err := registeredMetrics()
	if err != nil {
		t.Fatal(err)
	}
	if len(registered) == 0 {
		t.Fatal("the programs register no metric")
	}
	for _, q := range slices.Concat(ruleQueries(t), dashboardQueries(t)) {
		for _, problem := range checkQuery(registered, q.expr) {
			t.Errorf("%s: %s", q.where, problem)
		}
	}
}

// builtin metrics come from Prometheus itself and its Go client.
var builtin = regexp.MustCompile(`^(up|go_goroutines|go_memstats_heap_inuse_bytes|process_cpu_seconds_total|process_resident_memory_bytes|process_open_fds)$`)

// checkQuery says what is wrong with a query: its syntax, a metric that no
// program has, or a label that none of its metrics has.
func checkQuery(registered map[string]*metric, expr string) (problems []string) {
	// Grafana's variables become what they stand for.
	expr = strings.NewReplacer("$__rate_interval", "1m", "$__interval", "1m", "$__range", "1h").Replace(expr)
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return []string{err.Error()}
	}
	// Prometheus' own labels, and what a histogram adds.
	known := []string{"job", "instance", "le"}
	var used []string
	series := 0
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			series++
			var here []string
			if m := lookUp(registered, n.Name); m != nil {
				here = m.Labels
			} else if !builtin.MatchString(n.Name) {
				problems = append(problems, "no program has "+n.Name)
			}
			known = append(known, here...)
			for _, m := range n.LabelMatchers {
				if m.Name != labels.MetricName && !slices.Contains([]string{"job", "instance", "le"}, m.Name) && !slices.Contains(here, m.Name) {
					problems = append(problems, n.Name+" has no label "+m.Name)
				}
			}
		case *parser.AggregateExpr:
			used = append(used, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				used = append(used, n.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	if series == 0 {
		problems = append(problems, "reads no metric")
	}
	for _, label := range used {
		if !slices.Contains(known, label) {
			problems = append(problems, "groups by "+label+", which no metric in it has")
		}
	}
	return problems
}

func TestCheckQueryFindsWhatIsWrong(t *testing.T) {
	registered := map[string]*metric{
		"tacit_x_total":   {Labels: []string{"group"}},
		"tacit_y_seconds": {Labels: []string{"topic"}},
	}
	for _, tc := range []struct{ expr, want string }{
		{`sum by (group) (rate(tacit_x_total{group=~"$group", job="broker"}[$__rate_interval]))`, ""},
		{`histogram_quantile(0.99, sum by (le, topic) (rate(tacit_y_seconds_bucket[1m])))`, ""},
		{`up == 0`, ""},
		{`rate(tacit_x_total[1m)`, "parse error"},
		{`tacit_z_total`, "no program has tacit_z_total"},
		{`up + process_made_up`, "no program has process_made_up"},
		{`tacit_x_total{topic="a"}`, "tacit_x_total has no label topic"},
		{`sum by (client) (tacit_x_total)`, "groups by client"},
		{`tacit_x_total / on (topic) tacit_x_total`, "groups by topic"},
		{`1 + 1`, "reads no metric"},
	} {
		got := strings.Join(checkQuery(registered, tc.expr), "; ")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.expr, got, tc.want)
		}
	}
}

func TestGrafanaFindsItsDataSourceAndDashboard(t *testing.T) {
	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name      string `json:"name"`
			UID       string `json:"uid"`
			Type      string `json:"type"`
			Access    string `json:"access"`
			URL       string `json:"url"`
			IsDefault bool   `json:"isDefault"`
		} `json:"datasources"`
	}
	readStrict(t, "grafana/provisioning/datasources/prometheus.yaml", &sources)
	if len(sources.Datasources) != 1 || sources.Datasources[0].URL != "http://prometheus:9090" {
		t.Errorf("data sources %+v", sources)
	}
	p := project(t)
	if !slices.ContainsFunc(p.Services["prometheus"].Ports, func(port types.ServicePortConfig) bool { return port.Target == 9090 }) {
		t.Error("the compose file has no prometheus at 9090")
	}

	var providers struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name    string `json:"name"`
			Type    string `json:"type"`
			Options struct {
				Path string `json:"path"`
			} `json:"options"`
		} `json:"providers"`
	}
	readStrict(t, "grafana/provisioning/dashboards/tacit.yaml", &providers)
	mounted := false
	for _, v := range p.Services["grafana"].Volumes {
		mounted = mounted || v.Target == providers.Providers[0].Options.Path+"/tacit.json"
	}
	if !mounted {
		t.Errorf("no dashboard is mounted below %s", providers.Providers[0].Options.Path)
	}

	text, err := os.ReadFile("grafana/tacit.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"uid": "([^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		if m[1] != sources.Datasources[0].UID && m[1] != "tacit" {
			t.Errorf("the dashboard asks for the data source %q", m[1])
		}
	}
}

func readStrict(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
