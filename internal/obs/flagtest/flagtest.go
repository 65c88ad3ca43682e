// Package flagtest goes over all flags of a program.
package flagtest

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tacitmq/tacit/internal/obs"
)

// Nonsense is what no flag takes but those of free text.
const Nonsense = "?! nonsense"

// RefuseNonsense gives every flag of a program and its commands a value that it
// cannot take. Each must be refused as wrong use before the command runs, with
// words that name the flag, the value and what it must be. Flags of free text
// are those of pflag's own string types.
func RefuseNonsense(t *testing.T, program func() *cobra.Command) {
	t.Helper()
	checked := 0
	walk(program(), nil, func(path []string, f *pflag.Flag) {
		switch typ := f.Value.Type(); {
		case f.Name == "help" || f.Name == "version":
			return
		case slices.Contains([]string{"string", "stringSlice", "stringArray"}, typ) && !obs.Checked(f.Value):
			return
		case typ != "bool" && !obs.Checked(f.Value):
			t.Errorf("%s --%s: a flag of type %s checks nothing", strings.Join(path, " "), f.Name, typ)
			return
		case f.Name == "data-dir": // any text but none
			return
		}
		checked++
		var errs strings.Builder
		args := append(slices.Clone(path), "--"+f.Name+"="+Nonsense)
		code := obs.Main(program(), args, io.Discard, &errs)
		want := "--" + f.Name + ` "` + Nonsense + `": must `
		if code != obs.ExitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: exit %d, want %d and %s:\n%s", args, code, obs.ExitUsage, want, &errs)
		}
	})
	if checked == 0 {
		t.Error("no flag was checked")
	}
}

func walk(cmd *cobra.Command, path []string, visit func(path []string, f *pflag.Flag)) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { visit(path, f) })
	for _, sub := range cmd.Commands() {
		walk(sub, append(slices.Clone(path), sub.Name()), visit)
	}
}
