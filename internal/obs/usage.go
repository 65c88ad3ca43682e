package obs

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// refuseUnknown makes names of subcommands that do not exist an error, at every
// level of the tree and in "help NAME". cobra shows the help of the command above
// instead, with status 0, and a script would go on as if it had worked. What is
// returned points to the error once the root has been executed.
func refuseUnknown(root *cobra.Command) *error {
	var unknown error
	allow(root)
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		// cobra comes here instead of running what does nothing itself.
		if rest := cmd.Flags().Args(); !cmd.Runnable() && len(rest) > 0 {
			unknown = unknownCommand(cmd, rest[0])
			return
		}
		help(cmd, args)
	})
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "help" {
			continue
		}
		cmd.Run = nil
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			about, rest, err := root.Find(args)
			switch {
			case err != nil:
				return &UsageError{Err: err}
			case len(rest) > 0 && about.HasSubCommands():
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag()
			about.InitDefaultVersionFlag()
			return about.Help()
		}
	}
	return &unknown
}

// allow lets commands that do nothing themselves have arguments: they come to
// the help function, which knows them as unknown commands.
func allow(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
	}
	for _, sub := range cmd.Commands() {
		allow(sub)
	}
}

func unknownCommand(above *cobra.Command, name string) error {
	above.SuggestionsMinimumDistance = 2
	text := fmt.Sprintf("unknown command %q for %q", name, above.CommandPath())
	if similar := above.SuggestionsFor(name); len(similar) > 0 {
		text += "; did you mean " + OneOf(similar) + "?"
	}
	return Usage("%s", text)
}

// missing says which argument is not there, by its name in the usage line, where
// the check of the arguments has failed for want of one.
func missing(cmd *cobra.Command, args []string, err error) error {
	if err == nil {
		return nil
	}
	var required []string
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word == strings.ToUpper(word) && !strings.ContainsAny(word, "[]") {
			required = append(required, word)
		}
	}
	if len(args) < len(required) {
		return Usage("argument %s is missing", required[len(args)])
	}
	return &UsageError{Err: err}
}

// exclusive is where cobra keeps the flags of MarkFlagsMutuallyExclusive: the
// names of each set, separated by blanks.
const exclusive = "cobra_annotation_mutually_exclusive"

// excluded says in plain words that two flags of which one may be given both are;
// cobra would say it in its own.
func excluded(cmd *cobra.Command) (err error) {
	given := make(map[string]string) // by set of flags
	cmd.Flags().Visit(func(f *pflag.Flag) {
		for _, set := range f.Annotations[exclusive] {
			if other := given[set]; other != "" && err == nil {
				err = Usage("--%s and --%s: only one may be given", other, f.Name)
			}
			given[set] = f.Name
		}
	})
	return err
}

// Completes is the annotation of a root command that says what names of things
// the shell completes, besides commands, flags and the words that flags take:
// "topics and groups".
const Completes = "completes"

// describeCompletion says in the help of the command completion what is completed.
func describeCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		allow(cmd)
		cmd.Short = "Print what makes a shell complete commands, flags and names"
		cmd.Long = fmt.Sprintf("Prints the script that makes a shell complete what is typed after %s: commands,\nflags and the words that flags take.", root.Name())
		if what := root.Annotations[Completes]; what != "" {
			cmd.Long += fmt.Sprintf(` Names of %s are asked of
the cluster that --nameservers or TACIT_NAMESERVERS names.`, what)
		}
		cmd.Long += fmt.Sprintf(`

For the shell that is open:
  bash         source <(%[1]s completion bash)    (needs the package bash-completion)
  zsh          source <(%[1]s completion zsh)
  fish         %[1]s completion fish | source
  powershell   %[1]s completion powershell | Out-String | Invoke-Expression

How to have it in every new shell says "%[1]s completion SHELL --help".`, root.Name())
	}
}
