package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/rpcerr"
)

func (g *global) topicCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topic", GroupID: "look", Short: "List, create, alter and delete topics"}
	cmd.AddCommand(g.topicList(), g.topicDescribe(), g.topicCreate(), g.topicAlter(), g.topicDelete())
	return cmd
}

func (g *global) topicList() *cobra.Command {
	var all bool
	cmd := g.command("list", "List the topics", cobra.NoArgs, func(ctx context.Context, c *admin.Client, out *printer, _ []string) error {
		topics, failures, err := c.Topics(ctx, "")
		if err != nil {
			return err
		}
		defer out.failures(failures)
		kept := make([]admin.Topic, 0, len(topics))
		for _, t := range topics {
			if all || !strings.HasPrefix(t.Name, "%") {
				t.Queues = nil // for describe
				kept = append(kept, t)
			}
		}
		return out.print(kept, func() error {
			grid := newGrid("TOPIC", "QUEUES", "BROKERS", "PERMISSION", "MESSAGES").numbers(1, 4)
			for i := range kept {
				t := &kept[i]
				grid.row(t.Name, queueCount(t.ReadQueues, t.WriteQueues), spread(t), permissions(t), t.Messages)
			}
			return grid.print(out)
		})
	})
	cmd.Flags().BoolVar(&all, "all", false, "list the retry and dead letter topics of groups too")
	return cmd
}

func (g *global) topicDescribe() *cobra.Command {
	cmd := g.command("describe TOPIC", "Describe a topic and its queues", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			topics, failures, err := c.Topics(ctx, args[0])
			if err != nil {
				return err
			}
			defer out.failures(failures)
			t := &topics[0]
			return out.print(t, func() error {
				_, _ = fmt.Fprintf(out, "Topic %s: %s over %s, %s, %s\n\n", t.Name, queues(t.ReadQueues, t.WriteQueues),
					spread(t), permissions(t), plural(t.Messages, "message", "messages"))
				grid := newGrid("BROKER", "QUEUE", "MIN-OFFSET", "MAX-OFFSET", "MESSAGES", "LAST-STORED").numbers(1, 2, 3, 4)
				for _, q := range t.Queues {
					messages, last := "-", "-"
					if q.Max != nil {
						messages = fmt.Sprint(*q.Max - *q.Min)
					}
					if q.LastStore != nil {
						last = q.LastStore.Local().Format(time.DateTime)
					}
					grid.row(q.Broker, q.ID, orDash(q.Min), orDash(q.Max), messages, last)
				}
				return grid.print(out)
			})
		})
	cmd.ValidArgsFunction = g.complete(topicNames)
	return cmd
}

// topicFlags are those of create and alter.
type topicFlags struct {
	queues     int32
	brokers    []string
	without    []string
	permission string
	ifMissing  bool
	force      bool
	wait       time.Duration
}

// permissionWords are the permissions of a topic by what clients may do.
func permissionWords() []string { return []string{"rw", "r", "w", "none"} }

func (f *topicFlags) change() admin.TopicChange {
	ch := admin.TopicChange{Brokers: f.brokers, Without: f.without, Force: f.force}
	if f.queues > 0 {
		ch.Queues = &f.queues
	}
	if f.permission != "" {
		ch.Readable, ch.Writable = new(strings.Contains(f.permission, "r")), new(strings.Contains(f.permission, "w"))
	}
	return ch
}

func (g *global) topicCreate() *cobra.Command {
	f := topicFlags{queues: 8}
	cmd := g.command("create TOPIC", "Create a topic", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			ch := f.change()
			changes, err := c.CreateTopic(ctx, args[0], ch)
			if f.ifMissing && errors.Is(err, rpcerr.ErrTopicExists) && len(changes) == 0 {
				return present(ctx, c, out, args[0], &f)
			}
			if err := f.tooMany(changes); err != nil {
				return err
			}
			return errors.Join(showChanges(out, args[0], "created", changes), err)
		})
	cmd.Long = `Creates a topic. --queues is the total: it is spread evenly over the brokers.

With --if-missing a topic that is there stays as it is, whatever its queues.`
	cmd.Flags().BoolVar(&f.ifMissing, "if-missing", false, "do nothing if the topic is there")
	cmd.Flags().Var(obs.Int(&f.queues, 1, math.MaxInt32), "queues", "`number` of queues over all brokers")
	cmd.Flags().StringSliceVar(&f.brokers, "brokers", nil, "`names` of the brokers that host it; all if none is named")
	g.completeFlag(cmd, "brokers", brokerNames)
	f.permission = "rw"
	cmd.Flags().Var(obs.Choice(&f.permission, permissionWords()...), "permission", "what clients may do: rw, r, w or none")
	return cmd
}

// present prints a topic that was to be made and is there.
func present(ctx context.Context, c *admin.Client, out *printer, name string, f *topicFlags) error {
	topics, failures, err := c.Topics(ctx, name)
	if err != nil {
		return err
	}
	out.failures(failures)
	t := &topics[0]
	if t.WriteQueues != f.queues {
		out.warn("topic %s has %s, not %d: it stays as it is", name, queues(t.ReadQueues, t.WriteQueues), f.queues)
	}
	changes := make([]admin.HostChange, len(t.Hosts))
	for i, h := range t.Hosts {
		changes[i] = admin.HostChange{
			Broker: h.Broker, Before: h.ReadQueues, ReadQueues: h.ReadQueues, WriteQueues: h.WriteQueues, Readable: h.Readable, Writable: h.Writable, Error: h.Error,
		}
	}
	return showChanges(out, name, "is there", changes)
}

func (g *global) topicAlter() *cobra.Command {
	var f topicFlags
	cmd := g.command("alter TOPIC", "Change a topic's number of queues, brokers or permission", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			ch := f.change()
			if ch.Queues == nil && ch.Brokers == nil && ch.Without == nil && ch.Readable == nil {
				return obs.Usage("nothing to change: give --queues, --brokers, --without or --permission")
			}
			changes, err := c.AlterTopic(ctx, args[0], ch)
			if err == nil && f.wait > 0 {
				changes, err = alterUntilDone(ctx, c, args[0], ch, changes, f.wait)
			}
			if err := f.tooMany(changes); err != nil {
				return err
			}
			return errors.Join(showChanges(out, args[0], "altered", changes), err)
		})
	cmd.Long = `Changes a topic. --queues is the new total: it is spread evenly over the brokers.

--without takes the topic off brokers, before they are shut down for good. The
others keep their queues; --queues gives those that stay a new total.

Queues that are to go are closed for writing at once. They stay readable while a
group has unread messages in them or delayed ones are not due: repeat the command
later or wait for it with --wait. They go with the messages that every group has
read. --force drops the unread ones too. Messages that failed and wait for a retry
are in a topic of their group and stay on the broker.`
	cmd.Flags().Var(obs.Int(&f.queues, 1, math.MaxInt32), "queues", "`number` of queues over all brokers")
	cmd.Flags().StringSliceVar(&f.brokers, "brokers", nil, "`names` of the brokers that host it, to add some")
	cmd.Flags().StringSliceVar(&f.without, "without", nil, "`names` of brokers to take the topic off")
	g.completeFlag(cmd, "brokers", brokerNames)
	g.completeFlag(cmd, "without", brokerNames)
	cmd.Flags().Var(obs.Choice(&f.permission, permissionWords()...), "permission", "what clients may do: rw, r, w or none")
	cmd.Flags().BoolVar(&f.force, "force", false, "remove queues though they hold unread messages")
	cmd.Flags().Var(obs.Duration(&f.wait, 0, obs.Forever), "wait", "how long to wait until queues that go are read to the end")
	cmd.ValidArgsFunction = g.complete(topicNames)
	return cmd
}

// tooMany is what is said when no broker takes its share of the queues: by the
// flag's name, since the user does not know of the brokers' fields.
func (f *topicFlags) tooMany(changes []admin.HostChange) error {
	var limit error
	for _, ch := range changes {
		text, ok := strings.CutPrefix(ch.Error, "read_queues ")
		if !ok {
			return nil // another error, or it is done there
		}
		if _, text, ok = strings.Cut(text, ": "); ok && limit == nil {
			limit = obs.Usage("--queues %d: those on broker %s %s", f.queues, ch.Broker, text)
		}
	}
	return limit
}

// alterUntilDone repeats a change while it is pending anywhere.
func alterUntilDone(ctx context.Context, c *admin.Client, topic string, ch admin.TopicChange, changes []admin.HostChange, wait time.Duration) ([]admin.HostChange, error) {
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for pending(changes) != "" {
		select {
		case <-tick.C:
		case <-limited.Done():
			return changes, fmt.Errorf("after %v: %s", wait, pending(changes))
		}
		next, err := c.AlterTopic(ctx, topic, ch)
		if err != nil {
			return changes, err
		}
		for i := range next { // what was there before the first of the changes
			at := slices.IndexFunc(changes, func(ch admin.HostChange) bool { return ch.Broker == next[i].Broker })
			if at >= 0 { // others may have changed the brokers meanwhile
				next[i].Before = changes[at].Before
			}
		}
		changes = next
	}
	return changes, nil
}

func pending(changes []admin.HostChange) string {
	for _, ch := range changes {
		if ch.Pending != "" {
			return ch.Broker + ": " + ch.Pending
		}
	}
	return ""
}

func showChanges(out *printer, topic, done string, changes []admin.HostChange) error {
	if len(changes) == 0 {
		return nil
	}
	return out.print(changes, func() error {
		var read, write int32
		failed, hosts := false, 0
		t := newGrid("BROKER", "BEFORE", "QUEUES", "PERMISSION", "STATE").numbers(1, 2)
		for _, ch := range changes {
			state := "done"
			switch {
			case ch.Error != "":
				state, failed = "failed: "+ch.Error, true
			case ch.Pending != "":
				state = "pending: " + ch.Pending
			case ch.Removed:
				state = "removed"
			}
			if !ch.Removed {
				hosts++
			}
			read, write = read+ch.ReadQueues, write+ch.WriteQueues
			t.row(ch.Broker, ch.Before, queueCount(ch.ReadQueues, ch.WriteQueues), permission(ch.Readable, ch.Writable), state)
		}
		if !failed {
			_, _ = fmt.Fprintf(out, "%s %s: %s over %s\n\n", topic, done, queues(read, write), plural(hosts, "broker", "brokers"))
		}
		return t.print(out)
	})
}

func (g *global) topicDelete() *cobra.Command {
	var yes bool
	cmd := g.command("delete TOPIC", "Delete a topic with all its messages", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			topics, _, err := c.Topics(ctx, args[0])
			if err != nil {
				return err
			}
			if err := out.confirm(yes, "Delete topic %s with %s?", args[0], plural(topics[0].Messages, "message", "messages")); err != nil {
				return err
			}
			deleted, failures, err := c.DeleteTopic(ctx, args[0])
			if err != nil {
				return err
			}
			return deletion(out, "topic "+args[0], deleted, failures)
		})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.ValidArgsFunction = g.complete(topicNames)
	return cmd
}

// deletion prints on which brokers something was deleted.
func deletion(out *printer, what string, deleted []string, failures []admin.Failure) error {
	err := out.print(struct {
		Deleted  []string        `json:"deleted_on"`
		Failures []admin.Failure `json:"failures"`
	}{orEmpty(deleted), orEmpty(failures)}, func() error {
		_, err := fmt.Fprintf(out, "%s deleted on %s\n", what, joinOrDash(deleted))
		return err
	})
	if len(failures) > 0 {
		out.failures(failures)
		return errors.Join(err, fmt.Errorf("%s may still be there on %s", what, plural(len(failures), "server", "servers")))
	}
	return err
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// queues is a number of queues in words.
func queues(read, write int32) string {
	if read == write {
		return plural(read, "queue", "queues")
	}
	return queueCount(read, write) + " queues"
}

// queueCount is the number of queues; with both counts where some are closed
// for writing.
func queueCount(read, write int32) string {
	if read == write {
		return fmt.Sprint(read)
	}
	return fmt.Sprintf("%d (%d writable)", read, write)
}

// spread shows how many queues each broker has.
func spread(t *admin.Topic) string {
	parts := make([]string, len(t.Hosts))
	for i, h := range t.Hosts {
		parts[i] = fmt.Sprintf("%s: %s", h.Broker, queueCount(h.ReadQueues, h.WriteQueues))
	}
	return joinOrDash(parts)
}

// permissions of a topic, of each broker where they differ.
func permissions(t *admin.Topic) string {
	first, same := "-", true
	var all []string
	for i, h := range t.Hosts {
		p := permission(h.Readable, h.Writable)
		if i == 0 {
			first = p
		}
		same = same && p == first
		all = append(all, h.Broker+": "+p)
	}
	if same {
		return first
	}
	return strings.Join(all, ", ")
}

func permission(readable, writable bool) string {
	switch {
	case readable && writable:
		return "rw"
	case readable:
		return "r"
	case writable:
		return "w"
	}
	return "none"
}
