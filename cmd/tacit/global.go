package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/routes"
	"github.com/tacitmq/tacit/internal/rpcerr"
	"github.com/tacitmq/tacit/message"
)

// global holds the settings of all commands that talk to a cluster.
type global struct {
	nameServers []string
	timeout     time.Duration
	output      string
	log         *obs.Config
}

// The formats of --output.
const (
	outputTable = "table"
	outputJSON  = "json"
)

func defaults() *global {
	g := &global{nameServers: []string{"127.0.0.1:9876"}, timeout: admin.DefaultTimeout, output: outputTable, log: obs.DefaultConfig("")}
	g.log.LogLevel = "error"
	return g
}

// bind adds the flags that all commands share.
func (g *global) bind(f *pflag.FlagSet) {
	f.Var(obs.NameServers(&g.nameServers, false), "nameservers", "name servers: `host:port` each, or file:PATH or a URL that lists them")
	f.Var(obs.Duration(&g.timeout, time.Millisecond, obs.Forever), "timeout", "how long one server may take to answer")
	f.VarP(obs.Choice(&g.output, outputTable, outputJSON), "output", "o", "`format` of what is printed: table or json")
	obs.BindFile(f)
}

// shared are the flags of commands that talk to a cluster.
func shared() []string { return []string{"nameservers", "timeout", "output"} }

// hideShared leaves shared flags out of the help of a command that refuses them.
func hideShared(cmd *cobra.Command) {
	cmd.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		for _, name := range shared() {
			cmd.InheritedFlags().Lookup(name).Hidden = true
		}
		cmd.Parent().HelpFunc()(cmd, args)
	})
}

// alone refuses shared flags where a command runs servers of its own.
func alone(cmd *cobra.Command) error {
	for _, name := range shared() {
		if cmd.Flags().Changed(name) {
			return obs.Usage("--%s does not apply: %s runs its own servers", name, cmd.Name())
		}
	}
	return nil
}

// command makes a command that prints a table or JSON and talks to a cluster.
func (g *global) command(use, short string, args cobra.PositionalArgs, run func(ctx context.Context, c *admin.Client, out *printer, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := g.open(cmd.Context(), g.timeout)
		if err != nil {
			return err
		}
		defer c.Close()
		return settle(run(cmd.Context(), c, g.printer(cmd), args))
	}
	return cmd
}

// open returns a client of the cluster whose calls may take timeout each.
func (g *global) open(ctx context.Context, timeout time.Duration) (*admin.Client, error) {
	source, err := routes.ParseAll(g.nameServers)
	if err != nil {
		return nil, &obs.UsageError{Err: err}
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addresses, err := source.Addresses(limited) // of a file or URL
	if err != nil {
		return nil, err
	}
	return admin.Open(admin.Config{NameServers: addresses, Timeout: timeout})
}

// settle makes what the cluster calls an invalid argument a mistake of the
// caller's.
func settle(err error) error {
	if _, own := errors.AsType[*obs.UsageError](err); own {
		return err
	}
	if _, limit := errors.AsType[*message.LimitError](err); limit || errors.Is(err, rpcerr.ErrInvalidArgument) {
		return &obs.UsageError{Err: err}
	}
	return err
}

// logger is that of commands that use the SDK.
func (g *global) logger(cmd *cobra.Command) (*zap.Logger, error) {
	log, _, err := obs.NewLogger(g.log.LogLevel, g.log.LogFormat, cmd.ErrOrStderr())
	return log, err
}

// printer prints what a command found, as a table or as JSON.
type printer struct {
	io.Writer
	stderr io.Writer
	stdin  io.Reader
	json   bool
}

func (g *global) printer(cmd *cobra.Command) *printer {
	return &printer{Writer: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), stdin: cmd.InOrStdin(), json: g.output == outputJSON}
}

// print prints v as JSON, or what table makes of it.
func (p *printer) print(v any, table func() error) error {
	if p.json {
		return printJSON(p, v)
	}
	return table()
}

// warn tells of something that is no error on stderr.
func (p *printer) warn(format string, args ...any) {
	_, _ = fmt.Fprintf(p.stderr, "warning: "+format+"\n", args...) // nobody to tell of a closed stderr
}

// failures warns of servers that did not answer.
func (p *printer) failures(list []admin.Failure) {
	for _, f := range list {
		p.warn("%s", f)
	}
}

// confirm asks before something is destroyed. Without a terminal to ask, yes
// must have been given.
func (p *printer) confirm(yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	in, isFile := p.stdin.(*os.File)
	asks := isFile && isTerminal(in)
	if out, ok := p.stderr.(*os.File); !asks || !ok || !isTerminal(out) {
		return obs.Usage("this cannot be undone: confirm it with --yes")
	}
	_, _ = fmt.Fprintf(p.stderr, format+" [y/N] ", args...) // the answer tells whether it was read
	var answer string
	_, _ = fmt.Fscanln(in, &answer) // nothing is no
	if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
		return errors.New("not confirmed, nothing was changed")
	}
	return nil
}

// complete returns names for the shell to complete, found by list. Nothing is
// said when the cluster does not answer.
func (g *global) complete(list func(ctx context.Context, c *admin.Client) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return g.names(cmd, prefix, list)
	}
}

// completeFlag does for a flag what complete does for an argument. Of a list,
// the last word is completed.
func (g *global) completeFlag(cmd *cobra.Command, flag string, list func(ctx context.Context, c *admin.Client) ([]string, error)) {
	_ = cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) { // the flag is there
		before := prefix[:strings.LastIndexByte(prefix, ',')+1]
		names, directive := g.names(cmd, prefix[len(before):], list)
		for i := range names {
			names[i] = before + names[i]
		}
		return names, directive
	})
}

// completionTimeout is how long a shell waits for a cluster, per server.
const completionTimeout = time.Second

func (g *global) names(cmd *cobra.Command, prefix string, list func(ctx context.Context, c *admin.Client) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	if obs.Load(cmd, os.LookupEnv) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	c, err := g.open(cmd.Context(), completionTimeout)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	names, err := list(cmd.Context(), c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, prefix) }), cobra.ShellCompDirectiveNoFileComp
}

// brokerNames lists the brokers.
func brokerNames(ctx context.Context, c *admin.Client) (out []string, err error) {
	cl, err := c.Cluster(ctx)
	for _, b := range cl.Brokers {
		out = append(out, b.Name)
	}
	return out, err
}

// topicNames lists the topics, but for those of groups.
func topicNames(ctx context.Context, c *admin.Client) ([]string, error) {
	cl, err := c.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range cl.Topics {
		if !strings.HasPrefix(t.Name, "%") {
			out = append(out, t.Name)
		}
	}
	return out, nil
}

func groupNames(ctx context.Context, c *admin.Client) ([]string, error) {
	groups, _, err := c.Groups(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(groups))
	for i := range groups {
		out[i] = groups[i].Name
	}
	return out, nil
}
