// Command fieldfaults writes docs/field-faults.md from the tests that carry the
// id of a field fault in their name (TestF_OWN_01_…): id, rule, test and level,
// and the ids that still have none.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

// page is where the result goes, below the module's root.
const page = "docs/field-faults.md"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "fieldfaults:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	entries, err := scan(os.DirFS(root))
	if err != nil {
		return err
	}
	name := filepath.Join(root, filepath.FromSlash(page))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.WriteFile(name, []byte(render(entries)), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// moduleRoot is the nearest directory upwards that holds a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find module root: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find module root: no go.mod here or above")
		}
		dir = parent
	}
}
