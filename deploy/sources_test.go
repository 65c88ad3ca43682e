package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"testing"
)

// sourceFiles returns every file that a build of ./cmd/... compiles or embeds,
// with slashes and relative to the repository.
func sourceFiles(t *testing.T) []string {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	packages, err := goList("-deps", "./cmd/...")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packages {
		if p.Module == nil || p.Module.Path != modulePath {
			continue
		}
		dir, err := filepath.Rel(root, p.Dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append(p.GoFiles, p.EmbedFiles...) {
			files = append(files, path.Join(filepath.ToSlash(dir), name))
		}
	}
	return files
}

const modulePath = "github.com/tacitmq/tacit"

type listedPackage struct {
	ImportPath, Name, Dir string
	GoFiles, EmbedFiles   []string
	Deps                  []string
	Module                *struct{ Path string }
}

// goList runs go list in the main module.
func goList(args ...string) ([]listedPackage, error) {
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Name,Dir,GoFiles,EmbedFiles,Deps,Module"}, args...)...)
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %v: %w\n%s", args, err, stderr.String())
	}
	var out []listedPackage
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list: %w", err)
		}
		out = append(out, p)
	}
}
