package obs

import (
	"context"
	"encoding/json"
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
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(versionCommand(name))
	return root
}

// versionCommand prints what was built, for people or as JSON.
func versionCommand(program string) *cobra.Command {
	output := "text"
	cmd := &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs}
	cmd.Flags().VarP(Choice(&output, "text", "table", "json"), "output", "o", "`format`: text (the same as table) or json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if output == "json" {
			b := build()
			b.Program = program
			return json.NewEncoder(cmd.OutOrStdout()).Encode(b)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", program, Version())
		return err
	}
	return cmd
}

// Build describes how a program was built.
type Build struct {
	Program string `json:"program"`
	Version string `json:"version"`            // of the module; devel if it has none
	Commit  string `json:"commit,omitempty"`   // its first 12 digits
	Changed bool   `json:"modified,omitempty"` // the files were not those of the commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

// Version describes the program's build: module version, commit, Go version and
// platform.
func Version() string {
	b := build()
	parts := []string{b.Version}
	switch {
	case b.Commit != "" && b.Changed:
		parts = append(parts, b.Commit+"+changes")
	case b.Commit != "":
		parts = append(parts, b.Commit)
	}
	return strings.Join(append(parts, b.Go, b.OS+"/"+b.Arch), " ")
}

func build() Build {
	b := Build{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			b.Changed = s.Value == "true"
		}
	}
	return b
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
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	unknown := refuseUnknown(root)
	describeCompletion(root)
	wrap(root, func() { started = true })
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = *unknown
	}
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
	completeChoices(cmd)
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := Load(cmd, os.LookupEnv); err != nil {
				return err
			}
			started()
			return run(cmd, args)
		}
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := excluded(cmd); err != nil {
				return err
			}
			return missing(cmd, args, check(cmd, args))
		}
	}
	for _, sub := range cmd.Commands() {
		wrap(sub, started)
	}
}
