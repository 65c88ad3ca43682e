package deploy

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// stages parses the Dockerfile as BuildKit does.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	result, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range result.Warnings {
		t.Errorf("Dockerfile: %s", w.Short)
	}
	stages, _, err := instructions.Parse(result.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stages
}

func TestImageIsStaticAndRunsAsNobody(t *testing.T) {
	all := stages(t)
	if len(all) != 2 {
		t.Fatalf("%d stages, want a build and a final one", len(all))
	}
	build, final := all[0], all[1]

	if !strings.Contains(final.BaseName, "/static") && final.BaseName != "scratch" {
		t.Errorf("final image is based on %s: static programs need no system below them", final.BaseName)
	}
	var built bool
	for _, c := range build.Commands {
		if run, ok := c.(*instructions.RunCommand); ok {
			line := strings.Join(run.CmdLine, " ")
			built = built || strings.Contains(line, "CGO_ENABLED=0") && strings.Contains(line, "./cmd/...")
		}
	}
	if !built {
		t.Error("the build stage does not build ./cmd/... with CGO_ENABLED=0")
	}

	var user string
	var exposed, cmd, volumes []string
	for _, c := range final.Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.ExposeCommand:
			exposed = append(exposed, c.Ports...)
		case *instructions.CmdCommand:
			cmd = c.CmdLine
		case *instructions.VolumeCommand:
			volumes = append(volumes, c.Volumes...)
		case *instructions.RunCommand:
			t.Errorf("RUN %v in an image without a shell", c.CmdLine)
		case *instructions.CopyCommand:
			if c.From != build.Name {
				t.Errorf("COPY %v from %q, want from the build stage", c.SourcePaths, c.From)
			}
		}
	}
	// By number: Kubernetes cannot tell that a name is not root's.
	if user != "65532:65532" {
		t.Errorf("runs as %q, want 65532:65532", user)
	}
	var want []string
	for _, p := range ports() {
		want = append(want, p.listen, p.http)
	}
	want = slices.DeleteFunc(want, func(p string) bool { return p == "" })
	slices.Sort(want)
	slices.Sort(exposed)
	if !slices.Equal(exposed, want) {
		t.Errorf("exposes %v, the programs listen on %v", exposed, want)
	}
	if len(cmd) == 0 || cmd[0] != "tacit" {
		t.Errorf("runs %v by default, want the CLI", cmd)
	}
	if !slices.Equal(volumes, []string{dataDir}) {
		t.Errorf("volumes %v, want %s", volumes, dataDir)
	}
}

// dataDir is where a broker keeps its data in containers.
const dataDir = "/var/lib/tacit"

// What .dockerignore keeps away is missing in the build: a source file, or one that is embedded.
func TestBuildContextHoldsWhatTheBuildNeeds(t *testing.T) {
	f, err := os.Open("Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	patterns, err := ignorefile.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	needed := slices.Concat([]string{"go.mod", "go.sum"}, sourceFiles(t))
	if len(needed) < 10 {
		t.Fatalf("only %v are needed", needed)
	}
	for _, name := range needed {
		if skip, err := ignored.MatchesOrParentMatches(filepath.FromSlash(name)); err != nil || skip {
			t.Errorf("%s is needed but kept out of the build (%v)", name, err)
		}
	}
	for _, name := range []string{".git/HEAD", "bin/broker", "data/x.log", "test/e2e/testdata/commits.jsonl", "allocate/allocate_test.go"} {
		if skip, err := ignored.MatchesOrParentMatches(filepath.FromSlash(name)); err != nil || !skip {
			t.Errorf("%s is sent to the build (%v)", name, err)
		}
	}
}
