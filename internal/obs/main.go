package obs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of all programs.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
)

// UsageError is the caller's mistake: a flag, argument or setting.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap gives the mistake itself.
func (e *UsageError) Unwrap() error { return e.Err }

// Usage returns a [UsageError] with this text.
func Usage(format string, args ...any) error {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// Root returns the root command of a program, with the subcommands version and
// completion.
func Root(name, short string) *cobra.Command {
	root := &cobra.Command{
		Use:     name,
		Short:   short,
		Version: Version(),
	}
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", name, Version())
			return err
		},
	})
	return root
}

// Version describes the program's build: module version, commit, Go version and
// platform.
func Version() string {
	version, commit := "devel", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := info.Main.Version; v != "" && v != "(devel)" {
			version = v
		}
		modified := false
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				commit = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				modified = s.Value == "true"
			}
		}
		if commit != "" && modified {
			commit += "+changes"
		}
	}
	parts := []string{version}
	if commit != "" {
		parts = append(parts, commit)
	}
	return strings.Join(append(parts, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH), " ")
}

// Main runs a root command with args and returns the exit code. The context of
// the command ends at the first SIGINT or SIGTERM; the second one has its usual
// effect. An error is printed to stderr in one line.
func Main(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return MainContext(ctx, root, args, stdout, stderr)
}

// MainContext is [Main] with the context given, for tests and for programs that
// run others in one process.
func MainContext(ctx context.Context, root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	started := false
	wrap(root, func() { started = true })
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	_, _ = fmt.Fprintf(stderr, "%s: %v\n", root.Name(), err)
	if usage, ok := errors.AsType[*UsageError](err); !started || ok && usage != nil {
		_, _ = fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
		return ExitUsage
	}
	return ExitFailure
}

// wrap makes every command of the tree fill in its settings first and tell
// when it starts for good: what fails before is wrong use.
func wrap(cmd *cobra.Command, started func()) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := Load(cmd, os.LookupEnv); err != nil {
				return err
			}
			started()
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		wrap(sub, started)
	}
}
