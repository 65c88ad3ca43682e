package deploy

import (
	"bufio"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
)

// directives are those of systemd.unit(5), systemd.service(5) and
// systemd.exec(5) that the units use: systemd only warns about one it does not
// know, and goes on without it.
func directives() map[string][]string {
	return map[string][]string{
		"Unit": {"Description", "Documentation", "Wants", "After"},
		"Service": {
			"ExecStart", "Environment", "EnvironmentFile", "StateDirectory", "StateDirectoryMode", "Restart", "RestartSec",
			"TimeoutStopSec", "LimitNOFILE", "DynamicUser", "NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp",
			"PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups",
			"RestrictAddressFamilies", "RestrictNamespaces", "LockPersonality", "MemoryDenyWriteExecute",
			"SystemCallArchitectures", "CapabilityBoundingSet",
		},
		"Install": {"WantedBy"},
	}
}

// units reads every unit: by name, its directives in order.
func units(t *testing.T) map[string][]*unit.UnitOption {
	t.Helper()
	names, err := filepath.Glob("systemd/*.service")
	if err != nil || len(names) == 0 {
		t.Fatalf("no units (%v)", err)
	}
	out := make(map[string][]*unit.UnitOption)
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		options, err := unit.DeserializeOptions(f)
		if closeErr := f.Close(); err != nil || closeErr != nil {
			t.Fatalf("%s: %v %v", name, err, closeErr)
		}
		out[filepath.ToSlash(name)] = options
	}
	return out
}

func values(options []*unit.UnitOption, section, name string) (out []string) {
	for _, o := range options {
		if o.Section == section && o.Name == name {
			out = append(out, o.Value)
		}
	}
	return out
}

// readEnv reads a file of NAME=value lines, those that are commented out too:
// they are what an operator is told to uncomment.
func readEnv(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := make(map[string]string)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "#")
		if strings.HasPrefix(line, " ") || line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || !strings.HasPrefix(key, "TACIT_") {
			t.Errorf("%s: no setting in %q", name, line)
		}
		out[key] = value
	}
	return out
}

// specifiers are those of systemd.unit(5) that the units use, as a host would see them.
var specifiers = strings.NewReplacer("%H", "host-1.example.org", "%i", "1")

func systemdInvocations(t *testing.T) (out []invocation) {
	t.Helper()
	for file, options := range units(t) {
		start := values(options, "Service", "ExecStart")
		if len(start) != 1 {
			t.Fatalf("%s: ExecStart %v", file, start)
		}
		argv := strings.Fields(start[0])
		if dir := path.Dir(argv[0]); dir != "/usr/bin" {
			t.Errorf("%s: runs a program of %s", file, dir)
		}
		argv[0] = path.Base(argv[0])
		inv := invocation{file: file, name: argv[0], argv: argv, env: make(map[string]string)}
		for _, line := range values(options, "Service", "Environment") {
			for _, setting := range strings.Fields(line) {
				key, value, _ := strings.Cut(specifiers.Replace(setting), "=")
				inv.env[key] = value
			}
		}
		for _, name := range values(options, "Service", "EnvironmentFile") {
			example := "systemd/" + path.Base(strings.TrimPrefix(name, "-"))
			if strings.Contains(example, "%") {
				continue // one instance's own settings
			}
			for key, value := range readEnv(t, example) {
				if _, ok := inv.env[key]; ok {
					t.Errorf("%s: %s is set by the unit already", example, key)
				}
				inv.env[key] = value
			}
		}
		out = append(out, inv)
	}
	return out
}

func TestUnitsUseDirectivesThatExistInTheirSection(t *testing.T) {
	for file, options := range units(t) {
		for _, o := range options {
			if !slices.Contains(directives()[o.Section], o.Name) {
				t.Errorf("%s: [%s] %s", file, o.Section, o.Name)
			}
		}
	}
}

func TestUnitsAreConfinedAndRestart(t *testing.T) {
	for file, options := range units(t) {
		for name, want := range map[string]string{
			"Restart": "always", "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
		} {
			if got := values(options, "Service", name); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %s is %q, want %q", file, name, got, want)
			}
		}
		if got := values(options, "Install", "WantedBy"); !slices.Equal(got, []string{"multi-user.target"}) {
			t.Errorf("%s: is started by %v", file, got)
		}
	}
}

// Under ProtectSystem=strict a broker can write to its state directory alone.
func TestBrokerUnitKeepsItsDataWhereItMayWrite(t *testing.T) {
	options := units(t)["systemd/tacit-broker.service"]
	state := values(options, "Service", "StateDirectory")
	if len(state) != 1 {
		t.Fatalf("StateDirectory is %v", state)
	}
	for _, inv := range systemdInvocations(t) {
		if inv.argv[0] == "broker" && inv.settings()["data-dir"] != "/var/lib/"+state[0] {
			t.Errorf("data directory %q, may write to /var/lib/%s", inv.settings()["data-dir"], state[0])
		}
	}
}
