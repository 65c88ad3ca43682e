package main

import (
	"context"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/admin"
)

func (g *global) brokerCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "broker", GroupID: "look", Short: "List and describe brokers"}
	cmd.AddCommand(
		g.command("list", "List the brokers", cobra.NoArgs, listBrokers),
		g.brokerDescribe(),
	)
	return cmd
}

func listBrokers(ctx context.Context, c *admin.Client, out *printer, _ []string) error {
	brokers, failures, err := c.Brokers(ctx)
	if err != nil {
		return err
	}
	defer out.failures(failures)
	return out.print(brokers, func() error {
		t := newGrid("BROKER", "ADDRESS", "CLUSTER", "STATE", "TOPICS", "QUEUES", "SESSIONS", "STORED", "FREE").numbers(4, 5, 6, 7, 8).
			cut("ADDRESS").omit("CLUSTER", "TOPICS")
		for i := range brokers {
			b := &brokers[i]
			if !b.Reachable {
				t.row(b.Name, b.Address, b.Cluster, brokerState(b), "-", "-", "-", "-", "-")
				continue
			}
			t.row(b.Name, b.Address, b.Cluster, brokerState(b), b.Topics, b.Queues, b.Sessions, bytesOf(b.StoredBytes), bytesOf(b.FreeBytes))
		}
		return t.print(out)
	})
}

func (g *global) brokerDescribe() *cobra.Command {
	cmd := g.command("describe [BROKER...]", "Describe brokers, all if none is named", cobra.ArbitraryArgs,
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			all, failures, err := c.Brokers(ctx)
			if err != nil {
				return err
			}
			defer out.failures(failures)
			brokers := all
			if len(args) > 0 {
				if brokers, err = pick(all, args); err != nil {
					return err
				}
			}
			return out.print(brokers, func() error {
				for i := range brokers {
					if i > 0 {
						_, _ = fmt.Fprintln(out)
					}
					if err := describeBroker(out, &brokers[i]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	cmd.ValidArgsFunction = g.complete(brokerNames)
	return cmd
}

func pick(all []admin.Broker, names []string) (out []admin.Broker, err error) {
	for _, n := range names {
		found := false
		for _, b := range all {
			if b.Name == n {
				out, found = append(out, b), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no broker %q; known are %s", n, joinOrDash(namesOf(all)))
		}
	}
	return out, nil
}

func namesOf(all []admin.Broker) (out []string) {
	for _, b := range all {
		out = append(out, b.Name)
	}
	return out
}

func describeBroker(out *printer, b *admin.Broker) error {
	t := newGrid()
	t.row("Broker", b.Name)
	t.row("Address", b.Address)
	t.row("Cluster", b.Cluster)
	t.row("Epoch", b.Epoch)
	t.row("Config version", b.ConfigVersion)
	if !b.Reachable {
		t.row("State", "unreachable: "+b.Error)
		return t.print(out)
	}
	t.row("State", brokerState(b))
	t.row("Version", b.Version)
	if b.Started != nil {
		t.row("Started", fmt.Sprintf("%s, %s ago", b.Started.Local().Format(time.DateTime), time.Since(*b.Started).Round(time.Second)))
	}
	t.row("Durability", b.Durability)
	t.row("Topics", b.Topics)
	t.row("Queues", b.Queues)
	t.row("Groups", b.Groups)
	t.row("Sessions", b.Sessions)
	t.row("Stored", bytesOf(b.StoredBytes))
	t.row("Free", bytesOf(b.FreeBytes))
	return t.print(out)
}

func brokerState(b *admin.Broker) string {
	switch {
	case !b.Reachable:
		return "unreachable"
	case !b.Writable:
		return "disk full"
	}
	return "ready"
}

func bytesOf(n int64) string {
	return humanize.IBytes(uint64(max(0, n))) //nolint:gosec // not negative
}
