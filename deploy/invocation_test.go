// Package deploy checks the files beside it: each is parsed by the parser of the
// tool that will read it, as strictly as that allows, and what it says about the
// programs is compared with the programs. No container engine, cluster or
// service manager is needed, and none was used to write them.
//
// It is a module of its own so that none of these parsers enters the SDK's
// dependencies.
package deploy

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
)

// invocation is one program as one file starts it.
type invocation struct {
	file string            // relative to deploy/
	name string            // service, container or unit
	argv []string          // program first
	env  map[string]string // only what the file sets itself
	// addrs resolves within the file: host name to the ports that are open there.
	// Nil where the file leaves addresses to the operator.
	addrs map[string][]string
	// open are the ports that the file opens for this program; nil if it does not say.
	open []string
}

func (i invocation) String() string { return i.file + ": " + i.name }

// settings joins what flags and variables say, by the name of the flag.
func (i invocation) settings() map[string]string {
	out := make(map[string]string)
	for k, v := range i.env {
		if flag, ok := strings.CutPrefix(k, "TACIT_"); ok {
			out[strings.ReplaceAll(strings.ToLower(flag), "_", "-")] = v
		}
	}
	for _, arg := range i.argv[1:] {
		if flag, ok := strings.CutPrefix(arg, "--"); ok {
			name, value, _ := strings.Cut(flag, "=")
			out[name] = value
		}
	}
	return out
}

// invocations returns every program that any file starts.
func invocations(t *testing.T) []invocation {
	t.Helper()
	all := slices.Concat(composeInvocations(t), kubernetesInvocations(t), systemdInvocations(t))
	if len(all) == 0 {
		t.Fatal("no file starts a program")
	}
	return all
}

// ports are the field's habit; HTTP has one of its own in each program.
func ports() map[string]struct{ listen, http string } {
	return map[string]struct{ listen, http string }{
		"nameserver": {"9876", "9877"},
		"broker":     {"10911", "10912"},
		"consumer":   {"", "10913"},
		"producer":   {},
		"tacit":      {},
	}
}

func TestEachInvocationUsesThePortsOfItsProgram(t *testing.T) {
	for _, inv := range invocations(t) {
		want, ok := ports()[inv.argv[0]]
		if !ok {
			t.Errorf("%s: no program %q", inv, inv.argv[0])
			continue
		}
		s := inv.settings()
		var used []string
		for flag, port := range map[string]string{"listen": want.listen, "http": want.http} {
			value, set := s[flag]
			if !set || value == "" { // none
				continue
			}
			_, got, err := net.SplitHostPort(value)
			if err != nil || got != port {
				t.Errorf("%s: --%s is %q, want port %s", inv, flag, value, port)
			}
			used = append(used, got)
		}
		slices.Sort(used)
		if inv.open != nil && !slices.Equal(inv.open, used) {
			t.Errorf("%s: opens ports %v but the program listens on %v", inv, inv.open, used)
		}
	}
}

func TestEachAddressLeadsToAProgramOfTheSameFile(t *testing.T) {
	checked := 0
	for _, inv := range invocations(t) {
		if inv.addrs == nil {
			continue
		}
		s := inv.settings()
		addresses := strings.Split(s["nameservers"], ",")
		if s["nameservers"] == "" {
			addresses = nil
		}
		if a, ok := s["advertise"]; ok {
			addresses = append(addresses, a)
		}
		for _, address := range addresses {
			checked++
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Errorf("%s: address %q: %v", inv, address, err)
				continue
			}
			if !slices.Contains(inv.addrs[host], port) {
				t.Errorf("%s: nothing listens at %s; known are %v", inv, address, slices.Sorted(maps.Keys(inv.addrs)))
			}
		}
	}
	if checked == 0 {
		t.Error("no file names an address")
	}
}

// A topic for a broker that nobody starts would never be made.
func TestTopicsAreMadeOnBrokersOfTheSameFile(t *testing.T) {
	names := make(map[string][]string) // by the directory or file that starts them
	where := func(inv invocation) string { dir, _, _ := strings.Cut(inv.file, "/"); return dir }
	for _, w := range manifests(t).workloads {
		if w.set != nil && w.pod.Spec.Containers[0].Args[0] == "broker" {
			for i := range w.replicas {
				names["kubernetes"] = append(names["kubernetes"], fmt.Sprintf("%s-%d", w.name, i))
			}
		}
	}
	all := invocations(t)
	for _, inv := range all {
		if inv.argv[0] == "broker" {
			names[where(inv)] = append(names[where(inv)], inv.settings()["name"])
		}
	}
	checked := 0
	for _, inv := range all {
		if inv.argv[0] != "tacit" {
			continue
		}
		for name := range strings.SplitSeq(inv.settings()["brokers"], ",") {
			checked++
			if !slices.Contains(names[where(inv)], name) {
				t.Errorf("%s: no broker %q; there are %v", inv, name, names[where(inv)])
			}
		}
	}
	if checked == 0 {
		t.Error("no file makes a topic")
	}
}
