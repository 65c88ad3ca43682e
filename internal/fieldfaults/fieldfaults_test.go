package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func TestPageIsFresh(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := scan(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	// A checkout may have turned the line ends into the system's own.
	if got := strings.ReplaceAll(string(committed), "\r\n", "\n"); got != render(entries) {
		t.Errorf("%s is stale: run make docs", page)
	}
}

func TestEveryKindNumbersItsScenarios(t *testing.T) {
	must := 0
	seen := make(map[string]bool)
	for _, k := range kinds() {
		if seen[k.name] {
			t.Errorf("%s is listed twice", k.name)
		}
		seen[k.name] = true
		must += len(k.must)
		for i, n := range k.must {
			if n < 1 || n > k.count || i > 0 && n <= k.must[i-1] {
				t.Errorf("%s: %v are not growing numbers of 1 to %d", k.name, k.must, k.count)
			}
		}
	}
	if must != 44 {
		t.Errorf("%d faults must have a test, want 44", must)
	}
}

func TestScanReadsIDRuleTestAndLevel(t *testing.T) {
	fsys := fstest.MapFS{
		"allocate/a_test.go": {Data: []byte(`package allocate

// Every strategy gives each queue to one
// member. More about it.
func TestF_ALC_01_EachQueueOnce(t *testing.T) {}

func TestOther(t *testing.T) {}
`)},
		"internal/sim/s_test.go": {Data: []byte(`package sim

// F-OWN-04: a cut link heals
func TestF_OWN_04(t *testing.T) {}
`)},
		"test/e2e/e_test.go": {Data: []byte(`//go:build e2e

package e2e

// TestF_STO_01_FullDisk: a full disk refuses | appends.
func TestF_STO_01_FullDisk(t *testing.T) {}
`)},
		"broker/b_test.go": {Data: []byte(`package broker

// A queue has one owner.
func TestF_OWN_01_OneOwner(t *testing.T) {}

type suite struct{}

func (suite) TestF_OWN_02_NotAFunction() {}
`)},
		"broker/testdata/t_test.go": {Data: []byte("package broken, not read: func TestF_OWN_01")},
		"broker/text.go":            {Data: []byte("package broker\n\nfunc TestF_OWN_01_NotATest() {}\n")},
	}
	got, err := scan(fsys)
	if err != nil {
		t.Fatal(err)
	}
	want := []entry{
		{id{"OWN", 1}, "A queue has one owner.", "TestF_OWN_01_OneOwner", "broker", "b_test.go", inProcess},
		{id{"OWN", 4}, "A cut link heals.", "TestF_OWN_04", "internal/sim", "s_test.go", simulation},
		{id{"ALC", 1}, "Every strategy gives each queue to one member.", "TestF_ALC_01_EachQueueOnce", "allocate", "a_test.go", pureCore},
		{id{"STO", 1}, "A full disk refuses | appends.", "TestF_STO_01_FullDisk", "test/e2e", "e_test.go", realProcesses},
	}
	if len(got) != len(want) {
		t.Fatalf("got %d entries %v, want %d", len(got), got, len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("entry %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}

	text := render(got)
	for _, line := range []string{
		"| F-OWN-04 | A cut link heals. | [`TestF_OWN_04`](../internal/sim/s_test.go) | simulation |\n",
		"| F-STO-01 | A full disk refuses \\| appends. | [`TestF_STO_01_FullDisk`](../test/e2e/e_test.go) | real processes |\n",
		"have no test yet (40): F-OWN-02, F-OWN-05, F-IDN-01,",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("page lacks %q:\n%s", line, text)
		}
	}
}

func TestScanRefusesWhatThePageCouldNotShow(t *testing.T) {
	for _, tc := range []struct{ name, source, want string }{
		{"no rule", "func TestF_OWN_01_X(t *testing.T) {}", "its comment must begin with the rule"},
		{"only its name", "// TestF_OWN_01_X\nfunc TestF_OWN_01_X(t *testing.T) {}", "its comment must begin with the rule"},
		{"unknown kind", "// A rule.\nfunc TestF_XYZ_01_X(t *testing.T) {}", "no kind XYZ"},
		{"number out of range", "// A rule.\nfunc TestF_OWN_08_X(t *testing.T) {}", "OWN has scenarios 01 to 07"},
		{"number too long", "// A rule.\nfunc TestF_OWN_99999999999999999999_X(t *testing.T) {}", "number of F-OWN-"},
		{"no number", "// A rule.\nfunc TestF_OWN_X(t *testing.T) {}", "is named TestF_KIND_NN_Promise"},
		{"does not parse", "func TestF_OWN_01_X(", "parse test"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := fstest.MapFS{"p/x_test.go": {Data: []byte("package p\n\n" + tc.source + "\n")}}
			_, err := scan(fsys)
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "p/x_test.go") {
				t.Errorf("got error %v, want one that names p/x_test.go and %q", err, tc.want)
			}
		})
	}
}

func TestPageSaysWhenNothingIsMissing(t *testing.T) {
	var all []entry
	for _, k := range kinds() {
		for _, n := range k.must {
			all = append(all, entry{id: id{k.name, n}, rule: "Rule.", test: "TestF", dir: "d", file: "f_test.go", level: pureCore})
		}
	}
	if text := render(all); !strings.Contains(text, "Every fault that loses, repeats or reorders messages has a test.") {
		t.Errorf("page does not end with what is missing:\n%s", text)
	}
}
