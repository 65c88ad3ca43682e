package deploy

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
)

// metric is one metric as a program registers it.
type metric struct {
	Name   string   `json:"name"`
	Labels []string `json:"labels"`
}

// registeredMetrics asks the parts themselves, since a scrape would miss what has
// not counted anything yet.
var registeredMetrics = sync.OnceValues(func() (map[string]*metric, error) {
	cmd := exec.Command("go", "run", "./internal/metricdoc", "-json")
	cmd.Dir = ".."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list metrics: %w\n%s", err, stderr.String())
	}
	var all []metric
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	byName := make(map[string]*metric)
	for i := range all {
		byName[all[i].Name] = &all[i]
	}
	return byName, nil
})

// lookUp finds the metric of a series, which for a histogram has a suffix more.
func lookUp(registered map[string]*metric, series string) *metric {
	if m := registered[series]; m != nil {
		return m
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && strings.HasSuffix(base, "_seconds") {
			return registered[base]
		}
	}
	return nil
}
