package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// level says how much of the product a test runs.
type level string

const (
	pureCore      level = "pure core"
	simulation    level = "simulation"
	inProcess     level = "in process"
	realProcesses level = "real processes"
)

// entry is one test of one scenario.
type entry struct {
	id    id
	rule  string // first sentence of the test's comment
	test  string // function name
	dir   string // slash-separated, relative to the root
	file  string // name within dir
	level level
}

// testName matches a test of a scenario; a rest of the name is its promise.
var testName = regexp.MustCompile(`^TestF_([A-Z]+)_([0-9]+)(?:_|$)`)

// scan finds every test of a scenario below fsys, in the order of ids and then
// names. A name without a scenario, or a test that does not state its rule, is
// an error: all of them are reported together.
func scan(fsys fs.FS) ([]entry, error) {
	var found []entry
	var errs []error
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			if p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(p, "_test.go"):
			return nil
		}
		entries, err := scanFile(fsys, p)
		found = append(found, entries...)
		if err != nil {
			errs = append(errs, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("walk tests: %w", err)
	}
	rank := make(map[string]int)
	for i, k := range kinds() {
		rank[k.name] = i
	}
	slices.SortFunc(found, func(a, b entry) int {
		return cmp.Or(
			cmp.Compare(rank[a.id.kind], rank[b.id.kind]),
			cmp.Compare(a.id.n, b.id.n),
			cmp.Compare(a.dir, b.dir),
			cmp.Compare(a.test, b.test),
		)
	})
	return found, errors.Join(errs...)
}

func scanFile(fsys fs.FS, name string) ([]entry, error) {
	src, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("read test: %w", err)
	}
	if !bytes.Contains(src, []byte("func TestF_")) {
		return nil, nil
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse test: %w", err)
	}
	var found []entry
	var errs []error
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "TestF_") {
			continue
		}
		e, err := newEntry(name, fn.Name.Name, fn.Doc.Text())
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", name, fn.Name.Name, err))
			continue
		}
		found = append(found, e)
	}
	return found, errors.Join(errs...)
}

func newEntry(file, test, comment string) (entry, error) {
	m := testName.FindStringSubmatch(test)
	if m == nil {
		return entry{}, errors.New("a test of a field fault is named TestF_KIND_NN_Promise")
	}
	scenario, err := parseID(m[1], m[2])
	if err != nil {
		return entry{}, err
	}
	rule := ruleOf(test, scenario, comment)
	if rule == "" {
		return entry{}, errors.New("its comment must begin with the rule")
	}
	dir := path.Dir(file)
	return entry{id: scenario, rule: rule, test: test, dir: dir, file: path.Base(file), level: levelOf(dir)}, nil
}

// ruleOf is the first sentence of a test's comment, without the test's name or
// the scenario's id in front.
func ruleOf(test string, scenario id, comment string) string {
	comment = strings.TrimSpace(comment)
	for _, prefix := range []string{test, scenario.String()} {
		if rest, ok := strings.CutPrefix(comment, prefix); ok {
			comment = strings.TrimSpace(strings.TrimLeft(rest, ":,.- \n"))
		}
	}
	s := new(doc.Package).Synopsis(comment)
	if s == "" {
		return ""
	}
	s = strings.ToUpper(s[:1]) + s[1:]
	if !strings.HasSuffix(s, ".") {
		s += "."
	}
	return s
}

// pureDirs returns the directories of cores without I/O and clock.
func pureDirs() []string {
	return []string{"allocate", "route", "session", "nameserver/route", "broker/group", "broker/lease", "consumer/rebalance"}
}

func levelOf(dir string) level {
	switch {
	case slices.Contains(pureDirs(), dir):
		return pureCore
	case within(dir, "internal/sim"):
		return simulation
	case within(dir, "test/e2e"):
		return realProcesses
	default:
		return inProcess
	}
}

func within(dir, root string) bool { return dir == root || strings.HasPrefix(dir, root+"/") }
