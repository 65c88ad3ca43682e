package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/message"
)

func (g *global) groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", GroupID: "look", Short: "List, describe, reset and delete consumer groups"}
	list := g.command("list", "List the consumer groups", cobra.NoArgs, listGroups)
	list.Long = `Lists the consumer groups. LAG is what is left to read on all queues; "≤" stands
before it where the group has not committed yet, which it does within seconds, and
"-" is that of a broadcasting group, whose members keep their progress themselves.
RETRY is what failed and is to be handed out again. With the state stand brokers
of the group's topics that are down: their queues stand still.`
	cmd.AddCommand(
		list, g.groupDescribe(), g.groupReset(), g.groupDelete(),
	)
	return cmd
}

// groupLine is a group in a list.
type groupLine struct {
	Group   string      `json:"group"`
	State   admin.State `json:"state"`
	Mode    string      `json:"mode"`
	Members int         `json:"members"`
	Topics  []string    `json:"topics"`
	Queues  int         `json:"queues"`
	Down    []string    `json:"brokers_down,omitempty"` // of the topics
	// Lag is summed up where it is known; null of a broadcasting group. LagAtMost
	// counts also all that is stored in queues where the group has not committed yet,
	// if there are any.
	Lag       *int64 `json:"lag"`
	LagAtMost *int64 `json:"lag_at_most,omitempty"`
	Retry     int64  `json:"retry"` // messages that failed and are to come again
}

func listGroups(ctx context.Context, c *admin.Client, out *printer, _ []string) error {
	groups, failures, err := c.Groups(ctx)
	if err != nil {
		return err
	}
	defer out.failures(failures)
	lines := make([]groupLine, len(groups))
	for i := range groups {
		gr := &groups[i]
		l := groupLine{Group: gr.Name, State: gr.State, Mode: gr.Mode, Members: len(gr.Members), Topics: []string{}, Down: gr.Down(), LagAtMost: gr.LagAtMost(), Retry: gr.Retries()}
		if !gr.Broadcasting() {
			l.Lag = new(gr.Lag())
		}
		for _, t := range gr.Topics {
			if t.Topic != message.RetryTopic(gr.Name) {
				l.Topics = append(l.Topics, t.Topic)
			}
		}
		for _, q := range gr.Queues {
			if q.Topic != message.RetryTopic(gr.Name) {
				l.Queues++
			}
		}
		lines[i] = l
	}
	return out.print(lines, func() error {
		t := newGrid("GROUP", "STATE", "MODE", "MEMBERS", "QUEUES", "LAG", "RETRY", "TOPICS").numbers(3, 4, 5, 6)
		for _, l := range lines {
			t.row(l.Group, stateText(l.State, l.Down), l.Mode, l.Members, l.Queues, lagText(l.Lag, l.LagAtMost), l.Retry, joinOrDash(l.Topics))
		}
		return t.print(out)
	})
}

func (g *global) groupDescribe() *cobra.Command {
	var members, verbose, state bool
	cmd := g.command("describe GROUP", "Show a group's progress on each queue, its members or its state", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			gr, failures, err := c.DescribeGroup(ctx, args[0])
			if err != nil {
				return err
			}
			defer out.failures(failures)
			switch {
			case len(gr.Members) == 0:
				out.warn("group %s has no members", gr.Name)
			case gr.State != admin.Settled:
				out.warn("group %s is not settled: %s", gr.Name, gr.State)
			}
			return out.print(gr, func() error {
				switch {
				case state:
					return groupState(out, gr, verbose)
				case members:
					return groupMembers(out, gr, verbose)
				}
				return groupOffsets(out, gr, verbose)
			})
		})
	cmd.Long = `Shows a group. By default: how far it is on each queue, and who owns the queue.
LAG is what is left to read; "≤" stands before it where the group has not committed
yet, which it does within seconds, and "-" where nothing is known, as in a
broadcasting group, whose members keep their progress themselves. Queues without an
owner are listed too, and those of brokers that do not answer. Messages that
failed and wait for their next attempt are counted below the table.`
	cmd.Flags().BoolVar(&members, "members", false, "show the members")
	cmd.Flags().BoolVar(&state, "state", false, "show the state of each topic: view broker, strategy, members")
	cmd.Flags().BoolVar(&verbose, "verbose", false, "show more columns: epochs, queues of each member, versions")
	cmd.MarkFlagsMutuallyExclusive("members", "state")
	cmd.ValidArgsFunction = g.complete(groupNames)
	return cmd
}

func groupOffsets(out *printer, gr *admin.Group, verbose bool) error {
	header := []string{"GROUP", "TOPIC", "BROKER", "QUEUE", "CURRENT-OFFSET", "MAX-OFFSET", "LAG", "CLIENT-ID", "HOST"}
	if verbose {
		header = append(header, "EPOCH", "HELD-FOR", "WAITING")
	}
	t := newGrid(header...).numbers(3, 4, 5, 6).spare("GROUP").cut("CLIENT-ID", "HOST").omit("HOST")
	for i := range gr.Queues {
		q := &gr.Queues[i]
		row := []any{gr.Name, q.Topic, q.Broker, q.ID, orDash(q.Committed), orDash(q.Max), lagText(q.Lag, q.LagAtMost), q.Owner, q.Host}
		if verbose {
			held := "-"
			if q.HeldFor != nil {
				held = time.Duration(*q.HeldFor * float64(time.Second)).Round(100 * time.Millisecond).String()
			}
			row = append(row, q.Epoch, held, joinOrDash(q.Waiting))
		}
		t.row(row...)
	}
	if err := t.print(out); err != nil {
		return err
	}
	if n := gr.Retries(); n > 0 {
		_, err := fmt.Fprintf(out, "\n%s to be handed out again: %d due, %d later\n", plural(n, "failed message is", "failed messages are"),
			n-gr.RetriesScheduled, gr.RetriesScheduled)
		return err
	}
	return nil
}

// stateText is a state, and which brokers it leaves out.
func stateText(s admin.State, down []string) string {
	if len(down) == 0 {
		return string(s)
	}
	return fmt.Sprintf("%s, %s down", s, strings.Join(down, " and "))
}

// lagText shows a lag, or what it is at most.
func lagText(lag, atMost *int64) string {
	if atMost != nil {
		return fmt.Sprint("≤", *atMost)
	}
	return orDash(lag)
}

func groupMembers(out *printer, gr *admin.Group, verbose bool) error {
	static := slices.ContainsFunc(gr.Members, func(m admin.GroupMember) bool { return m.Instance != "" })
	header := []string{"GROUP", "CLIENT-ID"}
	if static {
		header = append(header, "INSTANCE-ID")
	}
	header = append(header, "HOST", "#QUEUES")
	number := len(header) - 1
	if verbose {
		header = append(header, "STATE", "HEARD", "BROKERS", "SUBSCRIPTIONS", "QUEUES")
	}
	t := newGrid(header...).numbers(number).spare("GROUP").cut("CLIENT-ID", "INSTANCE-ID")
	for i := range gr.Members {
		m := &gr.Members[i]
		row := []any{gr.Name, m.ClientID}
		if static {
			row = append(row, m.Instance)
		}
		row = append(row, m.Host, len(m.Queues))
		if verbose {
			state := "active"
			if m.Leaving {
				state = "leaving"
			}
			heard := time.Duration(m.LastHeard * float64(time.Second)).Round(100 * time.Millisecond)
			row = append(row, state, heard.String()+" ago", joinOrDash(m.Brokers), subscriptions(m.Subscriptions), assignment(m.Queues))
		}
		t.row(row...)
	}
	return t.print(out)
}

func groupState(out *printer, gr *admin.Group, verbose bool) error {
	header := []string{"GROUP", "TOPIC", "VIEW-BROKER", "STRATEGY", "STATE", "#MEMBERS"}
	if verbose {
		header = append(header, "VIEW-VERSION", "MODE")
	}
	t := newGrid(header...).numbers(5).spare("GROUP")
	for _, tp := range gr.Topics {
		row := []any{gr.Name, tp.Topic, tp.ViewBroker, tp.Strategy, stateText(tp.State, tp.Down), tp.Members}
		if verbose {
			row = append(row, tp.Version, gr.Mode)
		}
		t.row(row...)
	}
	return t.print(out)
}

func subscriptions(list []admin.Subscription) string {
	var out []string
	for _, s := range list {
		if strings.HasPrefix(s.Topic, message.RetryPrefix) {
			continue // every member has it
		}
		if s.Filter == "" || s.Filter == "*" {
			out = append(out, s.Topic)
		} else {
			out = append(out, s.Topic+":"+s.Filter)
		}
	}
	return joinOrDash(out)
}

// assignment writes queues as topic(broker/0,1,2; broker/4).
func assignment(queues []admin.QueueName) string {
	var topics []string
	for from := 0; from < len(queues); {
		topic := queues[from].Topic
		var brokers []string
		for from < len(queues) && queues[from].Topic == topic {
			broker := queues[from].Broker
			var ids []string
			for from < len(queues) && queues[from].Topic == topic && queues[from].Broker == broker {
				ids = append(ids, strconv.Itoa(int(queues[from].ID)))
				from++
			}
			brokers = append(brokers, broker+"/"+strings.Join(ids, ","))
		}
		topics = append(topics, topic+"("+strings.Join(brokers, "; ")+")")
	}
	return joinOrDash(topics)
}

func (g *global) groupDelete() *cobra.Command {
	var yes bool
	cmd := g.command("delete GROUP", "Delete a group without members, with its offsets", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			gr, _, err := c.DescribeGroup(ctx, args[0])
			if err != nil {
				return err
			}
			if len(gr.Members) == 0 {
				if err := out.confirm(yes, "Delete group %s with its offsets on %s?", args[0], plural(len(gr.Queues), "queue", "queues")); err != nil {
					return err
				}
			}
			deleted, failures, err := c.DeleteGroup(ctx, args[0])
			if err != nil {
				return err
			}
			return deletion(out, "group "+args[0], deleted, failures)
		})
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.ValidArgsFunction = g.complete(groupNames)
	return cmd
}
