package broker

import (
	"strings"
	"testing"
)

func TestNamesOfBrokersAreChecked(t *testing.T) {
	check := func(name, cluster string) error {
		c := Default()
		c.Name, c.Cluster, c.DataDir = name, cluster, "data"
		return c.Validate()
	}
	for _, good := range []string{"b", "broker-a.eu_1", strings.Repeat("x", 255)} {
		if err := check(good, good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "a/b", "a b", "a:1", "é", "a\n", strings.Repeat("x", 256)} {
		err := check(bad, "")
		if err == nil || !strings.Contains(err.Error(), "name ") || len(err.Error()) > 300 {
			t.Errorf("name %q: %v", bad, err)
		}
		if err := check("b", bad); bad != "" && (err == nil || !strings.Contains(err.Error(), "cluster ")) {
			t.Errorf("cluster %q: %v", bad, err)
		}
	}
}
