// Command nameserver maps topics to the brokers that host them.
//
// Start one or more; give brokers and clients the addresses of all. They need no
// disk and do not know each other.
package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/wire"
	"github.com/tacitmq/tacit/nameserver"
)

func main() { os.Exit(obs.Main(command(), os.Args[1:], os.Stdout, os.Stderr)) }

func command() *cobra.Command {
	cfg, tel := nameserver.Default(), obs.DefaultConfig(":9877")
	tel.Service = "tacit-nameserver"
	cmd := obs.Root("nameserver", "Map topics to the brokers that host them")
	cmd.Long = `Map topics to the brokers that host them.

Brokers register here and clients watch here. Start one name server or several and
give brokers and clients the addresses of all: name servers share nothing and
store nothing, and a fresh one is complete once every broker has come back to it.`
	cmd.Args = cobra.NoArgs
	flags := cmd.Flags()
	flags.Var(obs.Listen(&cfg.Listen), "listen", "`address` for brokers and clients")
	flags.Var(obs.Duration(&cfg.BrokerExpiry, 100*time.Millisecond, time.Hour), "broker-expiry", "drop a broker that is silent for this long; a start is called warming for as long")
	flags.Var(obs.Int(&cfg.MaxBrokers, 1, wire.MaxListed), "max-brokers", "how many brokers may register")
	flags.Var(obs.Int(&cfg.MaxTopics, 1, wire.MaxListed), "max-topics", "how many topics there may be on all brokers together")
	flags.Var(obs.Int(&cfg.MaxWatchers, 1, math.MaxInt32), "max-watchers", "how many watches may be open")
	flags.Var(obs.Duration(&cfg.Grace, 0, obs.Forever), "grace", "how long a stop waits for calls under way")
	tel.Bind(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, cfg, tel) }
	return cmd
}

func run(cmd *cobra.Command, cfg nameserver.Config, telCfg *obs.Config) error {
	if err := cfg.Validate(); err != nil {
		return &obs.UsageError{Err: err}
	}
	tel, err := obs.New(cmd.Context(), telCfg, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	if err := tel.Listen(cmd.Context()); err != nil {
		return err
	}
	srv, err := nameserver.New(cfg, nameserver.WithLogger(tel.Log), nameserver.WithRegisterer(tel.Registry),
		nameserver.WithServerOptions(tel.ServerOptions()...))
	if err != nil {
		return errors.Join(err, tel.Close())
	}
	// One line that a script can wait for and read the bound ports from.
	line := fmt.Sprintf("nameserver listening on %s", srv.Addr())
	if http := tel.HTTPAddr(); http != nil {
		line += fmt.Sprintf(", http on %s", http)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
		return errors.Join(err, tel.Close())
	}
	return tel.Run(cmd.Context(), srv.Run)
}
