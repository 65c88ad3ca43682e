package broker

import (
	"strings"
	"testing"

	"github.com/tacitmq/tacit/route"
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

// A broker that starts with settings no name server takes would serve and never be found.
func TestSettingsThatNameServersRefuseAreRefusedAtTheStart(t *testing.T) {
	for advertise, ok := range map[string]bool{
		"broker:10911": true, "[::1]:10911": true, "broker:70000": false, "broker:0": false, "broker:http": false, "bro ker:1": false, ":1": false, "broker": false,
	} {
		c := Default()
		c.Name, c.DataDir, c.Advertise = "b", "data", advertise
		if err := c.Validate(); (err == nil) != ok {
			t.Errorf("advertised address %q: %v", advertise, err)
		}
	}
	c := Default()
	c.Name, c.DataDir, c.MaxQueues = "b", "data", route.MaxQueues+1
	if c.Validate() == nil {
		t.Error("more queues than a route may have are accepted")
	}
}
