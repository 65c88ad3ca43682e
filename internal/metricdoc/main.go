// Command metricdoc writes docs/metrics.md: every metric of every part, with its
// labels and what it counts. It makes one of each part without running it and
// asks the registry that it was given, so nothing that is registered is missed
// and nothing else is listed.
//
// With -json it prints them, for the checks of the dashboard and the alerts.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

//go:generate go run .

// page is where the result goes, below the module's root.
const page = "docs/metrics.md"

func main() {
	asJSON := flag.Bool("json", false, "print JSON instead of writing "+page)
	root := flag.String("root", ".", "`directory` of the module")
	flag.Parse()
	if err := run(*root, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "metricdoc:", err)
		os.Exit(1)
	}
}

func run(root string, asJSON bool) error {
	all, err := collect()
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	name := filepath.Join(root, filepath.FromSlash(page))
	if err := os.WriteFile(name, []byte(render(all)), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}
