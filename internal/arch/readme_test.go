package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the README shows is compiled: each of its Go snippets is part of an Example function, but for indentation.
func TestReadmeShowsExamples(t *testing.T) {
	examples := exampleBodies(t)
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	snippets := goBlocks(string(readme))
	if len(snippets) == 0 {
		t.Fatal("README.md has no Go snippets")
	}
next:
	for _, s := range snippets {
		for _, e := range examples {
			if strings.Contains(e, s) {
				continue next
			}
		}
		t.Errorf("in no Example function of consumer, producer or allocate:\n%s", s)
	}
}

func TestGoBlocksAreFound(t *testing.T) {
	got := goBlocks("text\n```go\na()\n\tb()\n```\n```sh\nno\n```\n```go\n\nc()\n```")
	if len(got) != 2 || got[0] != "a()\nb()\n" || got[1] != "\nc()\n" {
		t.Errorf("%q", got)
	}
}

// goBlocks returns the Go code blocks of a Markdown text, without indentation.
func goBlocks(text string) (out []string) {
	for {
		_, rest, ok := strings.Cut(text, "```go\n")
		if !ok {
			return out
		}
		var block string
		if block, text, ok = strings.Cut(rest, "```"); !ok {
			return out
		}
		out = append(out, flat(block))
	}
}

// flat takes the indentation off.
func flat(code string) string {
	lines := strings.Split(code, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

// exampleBodies returns the code of the Example functions of the packages for import.
func exampleBodies(t *testing.T) (out []string) {
	t.Helper()
	for _, pkg := range []string{"consumer", "producer", "allocate"} {
		name := filepath.Join("..", "..", pkg, "example_test.go")
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Example") {
				out = append(out, flat(string(src[fset.Position(f.Body.Pos()).Offset:fset.Position(f.Body.End()).Offset])))
			}
		}
	}
	return out
}
