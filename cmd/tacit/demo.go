package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/demo"
	"github.com/tacitmq/tacit/internal/obs"
)

// memberName is the hidden command of a member process of the demo.
const memberName = "demo-member"

func demoCommand() *cobra.Command {
	cfg := demo.Default()
	o := obs.DefaultConfig("")
	o.LogLevel = "error"
	cmd := &cobra.Command{
		Use:     "demo",
		GroupID: "run",
		Short:   "Show a group that settles while everything around it changes",
		Long: `Runs a name server and two brokers on free ports with a temporary data
directory, a topic with 16 queues and a producer, and lets things happen:
consumers start, join, leave and are killed, queues are added, a broker
restarts, and all consumers restart one after the other.

After each event it shows who owns which queue (* marks a queue that another
member owned before), how many queues moved against the minimum possible, how
long it took to settle, the longest pause of any queue, messages lost, and
duplicates: hand-outs of a message after its first. It ends with status 1 if a
message was lost or the group did not settle.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.BoolVar(&cfg.Keep, "keep", false, "leave everything running at the end and print the addresses")
	f.BoolVar(&cfg.JSON, "json", false, "print the result as one JSON object on the last line")
	f.Var(obs.Int(&cfg.Rate, 1, demo.MaxRate), "rate", "`messages` a second that the producer sends")
	f.Var(obs.Duration(&cfg.Hold, 0, obs.Forever), "hold", "how long the group must stay settled after each event")
	f.Var(obs.Duration(&cfg.Limit, time.Millisecond, obs.Forever), "limit", "how long an event may take")
	f.Var(obs.Int(&cfg.Queues, demo.MinQueues, demo.MaxQueues), "queues", "queues of the topic in the beginning")
	f.Var(obs.Int(&cfg.Grown, demo.MinQueues, demo.MaxQueues), "grown", "queues of the topic after it has grown, more than --queues")
	o.BindLog(f)
	hideShared(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := alone(cmd); err != nil {
			return err
		}
		if cfg.Grown <= cfg.Queues {
			return obs.Usage("--grown %d: must be more than --queues %d", cfg.Grown, cfg.Queues)
		}
		log, _, err := obs.NewLogger(o.LogLevel, o.LogFormat, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the own program: %w", err)
		}
		cfg.Logger = log
		cfg.Color, cfg.Width = terminal(cmd.OutOrStdout())
		cfg.Member = func(ctx context.Context, m demo.MemberConfig) *exec.Cmd {
			args := []string{
				memberName, "--nameservers", strings.Join(m.NameServers, ","), "--group", m.Group, "--topic", m.Topic, "--id", m.ID,
				"--log-level", o.LogLevel, "--log-format", o.LogFormat,
			}
			if m.Static {
				args = append(args, "--static")
			}
			c := exec.CommandContext(ctx, self, args...)
			c.Env = withoutSettings(os.Environ())
			return c
		}
		if _, err = demo.Run(cmd.Context(), cfg, cmd.OutOrStdout()); errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
			return errors.New("interrupted")
		}
		return err
	}
	return cmd
}

// withoutSettings drops what would set flags of a child process.
func withoutSettings(env []string) (out []string) {
	for _, e := range env {
		if !strings.HasPrefix(e, obs.EnvPrefix) {
			out = append(out, e)
		}
	}
	return out
}

// memberCommand is what the demo runs as a process of its own for each consumer.
func memberCommand() *cobra.Command {
	var cfg demo.MemberConfig
	o := obs.DefaultConfig("")
	cmd := &cobra.Command{Use: memberName, Short: "A consumer of the demo", Hidden: true, Args: cobra.NoArgs}
	f := cmd.Flags()
	f.StringSliceVar(&cfg.NameServers, "nameservers", nil, "")
	f.StringVar(&cfg.Group, "group", "", "")
	f.StringVar(&cfg.Topic, "topic", "", "")
	f.StringVar(&cfg.ID, "id", "", "")
	f.BoolVar(&cfg.Static, "static", false, "")
	o.BindLog(f)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, _, err := obs.NewLogger(o.LogLevel, o.LogFormat, cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		cfg.Logger = log
		return demo.RunMember(cmd.Context(), cfg, cmd.InOrStdin(), cmd.OutOrStdout())
	}
	return cmd
}
