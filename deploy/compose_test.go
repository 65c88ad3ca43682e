package deploy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

// project loads the compose file with all profiles, as docker compose does: by
// the specification's schema, which refuses unknown keys.
func project(t *testing.T) *types.Project {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	p, err := loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  wd,
		ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(wd, "compose.yaml")}},
		Environment: types.Mapping{},
	}, func(o *loader.Options) {
		o.SetProjectName("tacit", true)
		o.Profiles = []string{"*"}
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func ownImage(s types.ServiceConfig) bool { return s.Image == "tacit" }

func composeInvocations(t *testing.T) (out []invocation) {
	t.Helper()
	p := project(t)
	addrs := make(map[string][]string)
	for _, s := range p.Services {
		if !ownImage(s) {
			continue
		}
		inv := invocation{file: "compose.yaml", name: s.Name, argv: s.Command, env: make(map[string]string), addrs: addrs}
		for k, v := range s.Environment {
			if v != nil {
				inv.env[k] = *v
			}
		}
		if listen, ok := inv.settings()["listen"]; ok {
			addrs[s.Name] = append(addrs[s.Name], listen[strings.LastIndex(listen, ":")+1:])
		}
		out = append(out, inv)
	}
	return out
}

func TestComposeRunsOneNameServerTwoBrokersThreeConsumers(t *testing.T) {
	p := project(t)
	count := make(map[string]int)
	for _, s := range p.Services {
		if !ownImage(s) || len(s.Profiles) > 0 {
			continue
		}
		count[s.Command[0]] += max(1, s.GetScale())
	}
	for program, want := range map[string]int{"nameserver": 1, "broker": 2, "consumer": 3} {
		if count[program] != want {
			t.Errorf("%d of %s, want %d", count[program], program, want)
		}
	}
}

func TestComposeServicesAreConfined(t *testing.T) {
	for _, s := range project(t).Services {
		if !ownImage(s) {
			continue
		}
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.User == "root" || s.Privileged {
			t.Errorf("%s: may write its root file system or has capabilities", s.Name)
		}
		if s.Build == nil || filepath.Base(s.Build.Dockerfile) != "Dockerfile" {
			t.Errorf("%s: is not built from the Dockerfile", s.Name)
		}
	}
}

func TestComposeBrokersKeepTheirDataInVolumesOfTheirOwn(t *testing.T) {
	p := project(t)
	seen := make(map[string]string)
	for _, inv := range composeInvocations(t) {
		if inv.argv[0] != "broker" {
			continue
		}
		dir := inv.settings()["data-dir"]
		var source string
		for _, v := range p.Services[inv.name].Volumes {
			if v.Target == dir && v.Type == types.VolumeTypeVolume {
				source = v.Source
			}
		}
		if source == "" {
			t.Errorf("%s: its data directory %q is in no named volume", inv, dir)
		} else if other, ok := seen[source]; ok {
			t.Errorf("%s: shares the volume %s with %s", inv, source, other)
		}
		seen[source] = inv.name
	}
}

func TestComposeMountsFilesThatExist(t *testing.T) {
	for _, s := range project(t).Services {
		for _, v := range s.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
	}
}

func TestComposePublishesPortsThatAreOpen(t *testing.T) {
	p := project(t)
	for _, inv := range composeInvocations(t) {
		s := inv.settings()
		for _, port := range p.Services[inv.name].Ports {
			want := ":" + strconv.Itoa(int(port.Target))
			if s["listen"] != want && s["http"] != want {
				t.Errorf("%s: publishes %d, where nothing listens", inv, port.Target)
			}
		}
	}
}
