// Package arch holds a test of who may import whom. The linter checks direct
// imports; this looks through all levels, since what an SDK's user pays for is
// the whole graph.
package arch

import (
	"fmt"
	"slices"
	"strings"
)

// module is this project's path.
const module = "github.com/tacitmq/tacit"

// graph maps a package to its direct imports, tests excluded. It holds every
// package that a build of the module reaches, the standard library's too.
type graph map[string][]string

// rule forbids packages to packages.
type rule struct {
	name string
	// from are the packages it binds: a path relative to the module, with all below it.
	from []string
	// except are packages below from that it does not bind.
	except []string
	// direct limits the rule to imports written in the package itself.
	direct bool
	// deny are import paths, each with all below it.
	deny []string
	// allow, if set, makes the rule strict within the module and outside the
	// standard library: only these import paths are left.
	allow []string
}

// rules returns who may not import whom.
func rules() []rule {
	own := func(paths ...string) (out []string) {
		for _, p := range paths {
			out = append(out, module+"/"+p)
		}
		return out
	}
	// What reads a clock, waits or touches the world outside. Package time itself
	// is allowed: the linter forbids its clock.
	blocking := []string{"context", "log", "math/rand", "net", "os", "sync", "syscall", "testing", "unsafe"}
	const memdb = "github.com/hashicorp/go-memdb"
	return []rule{
		{
			name: "the SDK's users pay for no store, no server and no command line",
			from: []string{"consumer", "producer", "message", "allocate", "route", "session", "coordination", "proto"},
			deny: append(own("nameserver", "broker", "compare", "cmd", "internal/obs", "internal/cli", "internal/sim"),
				"github.com/cockroachdb/pebble", memdb, "github.com/prometheus/client_golang/prometheus/promhttp",
				"net/http/pprof", "github.com/spf13/cobra", "go.opentelemetry.io/otel/sdk", "testing"),
		},
		{
			name: "the broker knows neither clients nor name server",
			from: []string{"broker"},
			deny: own("consumer", "producer", "nameserver", "compare", "cmd"),
		},
		{
			name: "the name server knows neither brokers nor clients",
			from: []string{"nameserver"},
			deny: own("consumer", "producer", "broker", "compare", "cmd"),
		},
		{
			name:   "flags and telemetry providers belong to programs",
			from:   []string{"."},
			except: []string{"cmd", "internal/obs", "internal/cli"},
			direct: true,
			deny: []string{
				"github.com/spf13/cobra", "github.com/prometheus/client_golang/prometheus/promhttp", "net/http/pprof",
				"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters",
			},
		},
		{
			name:   "allocate is the standard library alone",
			from:   []string{"allocate"},
			direct: true,
			deny:   blocking,
			allow:  own("allocate"),
		},
		{
			name:   "a pure core is told everything",
			from:   []string{"route", "session", "coordination", "broker/lease", "broker/coordinator", "consumer/rebalance", "consumer/coordinated"},
			direct: true,
			deny:   blocking,
			allow:  own("allocate", "route", "session", "coordination", "consumer/rebalance"),
		},
		{
			name:   "a pure core with tables in memory is told everything",
			from:   []string{"nameserver/route", "broker/group"},
			direct: true,
			deny:   blocking,
			allow:  append(own("allocate", "route", "session", "broker/lease"), memdb),
		},
	}
}

// check returns every breach of r in g, each with the chain of imports that
// leads to it, sorted.
func check(g graph, r rule) []string {
	var breaches []string
	for pkg := range g {
		if !below(pkg, module) || !r.binds(pkg) {
			continue
		}
		chains := map[string][]string{pkg: {pkg}}
		for todo := []string{pkg}; len(todo) > 0; todo = todo[1:] {
			at := todo[0]
			for _, imp := range g[at] {
				if chains[imp] != nil {
					continue
				}
				chain := append(slices.Clone(chains[at]), imp)
				chains[imp] = chain
				if r.forbids(imp) {
					breaches = append(breaches, fmt.Sprintf("%s: %s", r.name, strings.Join(chain, " -> ")))
					continue // what lies behind it is not this package's fault
				}
				// A package that the rule binds itself is checked for itself.
				if !r.direct && !r.binds(imp) {
					todo = append(todo, imp)
				}
			}
		}
	}
	slices.Sort(breaches)
	return breaches
}

func (r rule) binds(pkg string) bool {
	in := func(p string) bool { return p == "." && below(pkg, module) || below(pkg, module+"/"+p) }
	return slices.ContainsFunc(r.from, in) && !slices.ContainsFunc(r.except, in)
}

func (r rule) forbids(imp string) bool {
	in := func(p string) bool { return below(imp, p) }
	if slices.ContainsFunc(r.deny, in) && !exempt(imp) {
		return true
	}
	if r.allow == nil || standard(imp) {
		return false
	}
	return !slices.ContainsFunc(r.allow, in)
}

// exempt tells of packages below a denied one that do not block.
func exempt(imp string) bool { return imp == "math/rand/v2" || imp == "net/netip" }

// standard tells whether imp is of the standard library, whose paths have no
// dot in their first part.
func standard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return !strings.Contains(first, ".")
}

// below tells whether pkg is root or lies below it.
func below(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }
