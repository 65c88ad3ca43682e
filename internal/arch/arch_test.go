package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestNobodyImportsWhatTheyMayNot(t *testing.T) {
	g := loadGraph(t)
	for _, r := range rules() {
		for _, breach := range check(g, r) {
			t.Error(breach)
		}
	}
}

// Without it an empty graph, or a rule for a package that was renamed, would pass for good.
func TestGraphHoldsTheModuleAndWhatItImports(t *testing.T) {
	g := loadGraph(t)
	for _, pkg := range []string{module + "/allocate", module + "/session", "math/bits"} {
		if _, ok := g[pkg]; !ok {
			t.Errorf("no package %s in the graph of %d", pkg, len(g))
		}
	}
}

func TestCheckFindsBreaches(t *testing.T) {
	const (
		pebble = "github.com/cockroachdb/pebble/v2"
		memdb  = "github.com/hashicorp/go-memdb"
		cobra  = "github.com/spf13/cobra"
	)
	m := func(p string) string { return module + "/" + p }
	for _, tc := range []struct {
		name string
		g    graph
		want []string // the chains, without their rules
	}{
		{"clean", graph{
			m("consumer"):           {m("consumer/rebalance"), m("proto/tacit/v1"), m("internal/wire"), "sync", "context"},
			m("consumer/rebalance"): {m("allocate"), m("session"), "time", "slices", "math/rand/v2"},
			m("internal/wire"):      {"google.golang.org/grpc"},
			m("broker"):             {m("broker/group"), pebble, "sync", "os"},
			m("broker/group"):       {m("session"), memdb},
			m("nameserver/route"):   {m("route"), memdb},
			m("cmd/broker"):         {m("broker"), cobra},
			"google.golang.org/grpc": {
				"net", "sync",
			},
		}, nil},
		{"SDK reaches pebble through a package of ours", graph{
			m("consumer"):        {m("internal/shared")},
			m("internal/shared"): {pebble},
		}, []string{"consumer -> internal/shared -> " + pebble}},
		{"SDK reaches pprof through a stranger", graph{
			m("producer"):      {"example.com/tool"},
			"example.com/tool": {"net/http/pprof"},
		}, []string{"producer -> example.com/tool -> net/http/pprof"}},
		{"consumer imports the broker's core", graph{
			m("consumer"): {m("broker/group")},
		}, []string{"consumer -> broker/group"}},
		{"broker imports the name server", graph{
			m("broker"): {m("nameserver/route")},
		}, []string{"broker -> nameserver/route"}},
		{"broker imports the SDK through a helper", graph{
			m("broker"):          {m("internal/tester")},
			m("internal/tester"): {m("consumer")},
		}, []string{"broker -> internal/tester -> consumer"}},
		{"name server imports the broker", graph{
			m("nameserver"): {m("broker/store")},
		}, []string{"nameserver -> broker/store"}},
		{"core locks, dials and waits", graph{
			m("consumer/rebalance"): {"context", "net/http", "sync/atomic"},
		}, []string{"consumer/rebalance -> context", "consumer/rebalance -> net/http", "consumer/rebalance -> sync/atomic"}},
		{"core speaks the wire", graph{
			m("broker/lease"): {m("proto/tacit/v1")},
		}, []string{"broker/lease -> proto/tacit/v1"}},
		{"core logs", graph{
			m("broker/group"): {"go.uber.org/zap"},
		}, []string{"broker/group -> go.uber.org/zap"}},
		{"core without tables uses memdb", graph{
			m("broker/lease"): {memdb},
		}, []string{"broker/lease -> " + memdb}},
		{"allocate imports a sibling", graph{
			m("allocate"): {m("session")},
		}, []string{"allocate -> session"}},
		{"global chance", graph{
			m("allocate"): {"math/rand"},
		}, []string{"allocate -> math/rand"}},
		{"a library takes flags", graph{
			m("compare"): {cobra},
		}, []string{"compare -> " + cobra}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, r := range rules() {
				for _, breach := range check(tc.g, r) {
					chain := strings.TrimPrefix(breach, r.name+": ")
					got = append(got, strings.ReplaceAll(chain, module+"/", ""))
				}
			}
			slices.Sort(got)
			got = slices.Compact(got) // one import may breach two rules
			if !slices.Equal(got, tc.want) {
				t.Errorf("got breaches:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// loadGraph asks the go command for every package of the module and all that
// they import.
func loadGraph(t *testing.T) graph {
	t.Helper()
	// -e: a package that does not build is some other test's failure.
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-json=ImportPath,Imports,Dir,GoFiles", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	g := make(graph)
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Dir  string
			Imports, GoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return g
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		g[p.ImportPath] = p.Imports
		if below(p.ImportPath, module) {
			touch(t, p.Dir, p.GoFiles)
		}
	}
}

// touch looks at what the go command has read, so that go test knows when a
// result it has cached is out of date.
func touch(t *testing.T, dir string, files []string) {
	t.Helper()
	for _, name := range append([]string{"..", "."}, files...) {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}
