package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer/rebalance"
	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/session"
)

// explainFlags ask for a change.
type explainFlags struct {
	topic  string
	add    []string
	joins  int
	remove []string
	queues int
}

func (g *global) explainCommand() *cobra.Command {
	var f explainFlags
	cmd := g.command("explain GROUP", "Say why queues are where they are, and what would happen if", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			return explainGroup(ctx, c, out, args[0], &f)
		})
	cmd.GroupID = "look"
	cmd.Long = `Explains the last pass of a group: what went in, the strategy, what came out and
why. It runs the very function that the members run, on the view that they use,
and checks its result against what each of them reports.

Without more flags it also shows what would happen if a member joined or left or
queues were added or removed. With them it shows that one change in full:

  tacit explain packers --join 2
  tacit explain packers --remove-member c1 --queues 24`
	fl := cmd.Flags()
	fl.StringVar(&f.topic, "topic", "", "explain this `topic` only")
	fl.Var(obs.Int(&f.joins, 0, 10_000), "join", "what if this `number` of members joined")
	fl.StringSliceVar(&f.add, "add-member", nil, "what if members with these client `ids` joined")
	fl.StringSliceVar(&f.remove, "remove-member", nil, "what if the members with these client `ids` left")
	fl.Var(obs.Int(&f.queues, 0, math.MaxInt32), "queues", "what if the topic had this `number` of queues")
	cmd.ValidArgsFunction = g.complete(groupNames)
	g.completeFlag(cmd, "topic", topicNames)
	return cmd
}

// topicExplanation is what is said of one topic.
type topicExplanation struct {
	Group      string       `json:"group"`
	Topic      string       `json:"topic"`
	State      admin.State  `json:"state"`
	Down       []string     `json:"brokers_down,omitempty"`
	ViewBroker string       `json:"view_broker"`
	Version    string       `json:"version"`
	Inputs     inputs       `json:"inputs"`
	Result     answer       `json:"result"`
	Agreed     int          `json:"members_that_report_this_result"`
	Change     *answer      `json:"change,omitempty"`
	WhatIf     []whatIfLine `json:"what_if,omitempty"`
}

// inputs of a pass.
type inputs struct {
	Digest  string            `json:"digest"`
	Queues  []admin.QueueName `json:"queues"`
	Members []inputMember     `json:"members"`
}

type inputMember struct {
	ClientID   string   `json:"client_id"`
	Instance   string   `json:"instance,omitempty"`
	Strategies []string `json:"strategies"`
	Owns       int      `json:"owns"`
	// Agrees says that the result of its last pass is the one computed here.
	Agrees bool `json:"agrees"`
}

// answer of a pass.
type answer struct {
	Change   string            `json:"change,omitempty"`
	Error    string            `json:"error,omitempty"`
	Strategy string            `json:"strategy"`
	Digest   string            `json:"digest"`
	Reason   string            `json:"reason"`
	Shares   []share           `json:"shares"`
	Moves    []moveLine        `json:"moves"`
	Minimum  int               `json:"minimum_moves"`
	Unowned  []admin.QueueName `json:"unowned"`
}

type share struct {
	ClientID string            `json:"client_id"`
	Before   int               `json:"before"`
	After    int               `json:"after"`
	Joins    bool              `json:"joins,omitempty"`
	Queues   []admin.QueueName `json:"queues"`
}

type moveLine struct {
	admin.QueueName
	From string `json:"from"`
	To   string `json:"to"`
}

type whatIfLine struct {
	Change  string `json:"change"`
	Error   string `json:"error,omitempty"`
	Moved   int    `json:"moved"`
	Minimum int    `json:"minimum"`
	Low     int    `json:"fewest_queues"`
	High    int    `json:"most_queues"`
}

func explainGroup(ctx context.Context, c *admin.Client, out *printer, name string, f *explainFlags) error {
	if f.queues < 0 || f.queues > math.MaxInt32 || f.joins < 0 || f.joins > 10_000 {
		return obs.Usage("queues %d, join %d: must be 0 or more", f.queues, f.joins)
	}
	gr, failures, err := c.DescribeGroup(ctx, name)
	if err != nil {
		return err
	}
	defer out.failures(failures)
	if gr.Broadcasting() {
		return fmt.Errorf("group %s is broadcasting: its members share nothing, each gets every message", name)
	}
	var all []*topicExplanation
	for _, t := range gr.Topics {
		if f.topic == "" && t.Topic == message.RetryTopic(name) && t.State == admin.Settled || f.topic != "" && t.Topic != f.topic || t.Members == 0 {
			continue
		}
		if t.ViewBroker == "" {
			out.warn("topic %s: no broker serves a view of the group: %s", t.Topic, t.State)
			continue
		}
		if len(t.View.Members) == 0 {
			out.warn("topic %s: the group is %s, nobody is in its view just now: there is no pass to explain", t.Topic, t.State)
			continue
		}
		x, err := explainTopic(gr, t, f)
		if err != nil {
			return fmt.Errorf("topic %s: %w", t.Topic, err)
		}
		all = append(all, x)
	}
	if len(all) == 0 {
		switch {
		case len(gr.Members) == 0:
			return fmt.Errorf("group %s has no members: there is no pass to explain", name)
		case f.topic != "":
			return fmt.Errorf("no member of group %s subscribes to topic %q", name, f.topic)
		}
		return fmt.Errorf("no view of group %s can be had now", name)
	}
	return out.print(all, func() error {
		for i, x := range all {
			if i > 0 {
				_, _ = fmt.Fprintln(out)
			}
			if err := x.show(out); err != nil {
				return err
			}
		}
		return nil
	})
}

func explainTopic(gr *admin.Group, t admin.GroupTopic, f *explainFlags) (*topicExplanation, error) {
	now, err := rebalance.Explain(rebalance.Question{Group: gr.Name, View: t.View})
	x := &topicExplanation{
		Group: gr.Name, Topic: t.Topic, State: t.State, Down: t.Down, ViewBroker: t.ViewBroker, Version: t.Version,
		Inputs: inputs{Digest: digest(t.View.Inputs), Queues: names(t.View.Queues)}, Result: newAnswer("", now, err),
	}
	expected := session.OwnersDigest(t.Topic, now.After)
	for i := range t.View.Members {
		m := &t.View.Members[i]
		in := inputMember{ClientID: m.ClientID, Instance: m.Instance, Owns: len(m.Owned), Agrees: err == nil && m.Expected == expected}
		for _, o := range m.Offers {
			in.Strategies = append(in.Strategies, o.Strategy)
		}
		if in.Agrees {
			x.Agreed++
		}
		x.Inputs.Members = append(x.Inputs.Members, in)
	}
	if f.joins > 0 || len(f.add)+len(f.remove) > 0 || f.queues > 0 {
		q, text, err := question(gr.Name, &t.View, f)
		if err != nil {
			return nil, err
		}
		e, err := rebalance.Explain(q)
		x.Change = new(newAnswer(text, e, err))
		return x, nil
	}
	for _, w := range usual(&t.View) {
		q, text, err := question(gr.Name, &t.View, &w)
		if err != nil {
			continue // nobody left to leave
		}
		e, err := rebalance.Explain(q)
		x.WhatIf = append(x.WhatIf, newLine(text, e, err))
	}
	return x, nil
}

// usual are the changes that are shown if none is asked for.
func usual(v *session.View) []explainFlags {
	const most = 4
	out := []explainFlags{{joins: 1}}
	for i, m := range v.Members {
		if len(v.Members) > 1 && i < most {
			out = append(out, explainFlags{remove: []string{m.ClientID}})
		}
	}
	brokers := len(hosted(v))
	if n := len(v.Queues); n > 0 {
		out = append(out, explainFlags{queues: n + brokers})
		if n > brokers {
			out = append(out, explainFlags{queues: n - brokers})
		}
	}
	return out
}

// hosted counts the queues of each broker in a view.
func hosted(v *session.View) map[string]int32 {
	out := make(map[string]int32)
	for _, q := range v.Queues {
		out[q.Broker]++
	}
	return out
}

// question makes a question of flags, and says it in words.
func question(group string, v *session.View, f *explainFlags) (q rebalance.Question, text string, err error) {
	q = rebalance.Question{Group: group, View: *v}
	var parts []string
	ids := slices.Clone(f.add)
	for i := range f.joins {
		ids = append(ids, fmt.Sprintf("new-%d", i+1))
	}
	for _, id := range ids {
		if err := message.CheckClientID(id); err != nil {
			return q, "", &obs.UsageError{Err: err}
		}
		if slices.ContainsFunc(v.Members, func(m session.Member) bool { return m.ClientID == id }) {
			return q, "", obs.Usage("member %q is in the group already", id)
		}
		q.AddMembers = append(q.AddMembers, session.Member{ClientID: id})
	}
	switch {
	case len(ids) == 1 && f.joins == 1:
		parts = append(parts, "a member joins")
	case len(ids) > 3:
		parts = append(parts, fmt.Sprintf("%d members join", len(ids)))
	case len(ids) > 0:
		parts = append(parts, strings.Join(ids, ", ")+" join")
	}
	for _, id := range f.remove {
		if !slices.ContainsFunc(v.Members, func(m session.Member) bool { return m.ClientID == id }) {
			return q, "", obs.Usage("member %q is not in the group", id)
		}
		q.RemoveMembers = append(q.RemoveMembers, id)
	}
	if len(f.remove) > 0 {
		parts = append(parts, strings.Join(f.remove, ", ")+" leaves")
	}
	if f.queues > 0 {
		now := hosted(v)
		if f.queues < len(now) {
			return q, "", obs.Usage("queues %d: must be at least %d, one for each broker", f.queues, len(now))
		}
		for broker, n := range admin.Spread(int32(f.queues), now) { //nolint:gosec // checked
			for id := now[broker]; id < n; id++ {
				q.AddQueues = append(q.AddQueues, allocate.Queue{Topic: v.Topic, Broker: broker, ID: id})
			}
			for id := n; id < now[broker]; id++ {
				q.RemoveQueues = append(q.RemoveQueues, allocate.Queue{Topic: v.Topic, Broker: broker, ID: id})
			}
		}
		parts = append(parts, fmt.Sprintf("%d queues instead of %d", f.queues, len(v.Queues)))
	}
	return q, strings.Join(parts, ", "), nil
}

func newAnswer(change string, e rebalance.Explanation, err error) answer {
	a := answer{
		Change: change, Strategy: e.Strategy, Digest: digest(session.OwnersDigest(e.Topic, e.After)), Reason: e.Text,
		Shares: []share{}, Moves: []moveLine{}, Minimum: e.Minimum, Unowned: names(e.Unowned),
	}
	if err != nil {
		a.Error, a.Digest = err.Error(), ""
		return a
	}
	for _, m := range e.Members {
		s := share{ClientID: m.ClientID, Before: m.Before, After: m.After, Joins: m.Joins, Queues: []admin.QueueName{}}
		for _, h := range e.After {
			if h.ClientID == m.ClientID {
				s.Queues = append(s.Queues, name(h.Queue))
			}
		}
		a.Shares = append(a.Shares, s)
	}
	for _, m := range e.Moved {
		a.Moves = append(a.Moves, moveLine{name(m.Queue), m.From, m.To})
	}
	return a
}

func newLine(change string, e rebalance.Explanation, err error) whatIfLine {
	l := whatIfLine{Change: change, Moved: len(e.Moved), Minimum: e.Minimum}
	if err != nil {
		l.Error = err.Error()
		return l
	}
	for i, m := range e.Members {
		if i == 0 {
			l.Low = m.After
		}
		l.Low, l.High = min(l.Low, m.After), max(l.High, m.After)
	}
	return l
}

// show prints the explanation for people.
func (x *topicExplanation) show(out *printer) error {
	perBroker := make(map[string]int)
	for _, q := range x.Inputs.Queues {
		perBroker[q.Broker]++
	}
	var brokers []string
	for b, n := range perBroker {
		brokers = append(brokers, fmt.Sprintf("%s %d", b, n))
	}
	slices.Sort(brokers)
	_, _ = fmt.Fprintf(out, "Group %s, topic %s: %s\n\n", x.Group, x.Topic, stateText(x.State, x.Down))
	t := newGrid()
	t.row("View", fmt.Sprintf("of %s, version %s", x.ViewBroker, x.Version))
	t.row("Queues", fmt.Sprintf("%d: %s", len(x.Inputs.Queues), joinOrDash(brokers)))
	t.row("Members", len(x.Inputs.Members))
	t.row("Inputs", "digest "+x.Inputs.Digest)
	if x.Result.Error != "" {
		t.row("Result", "none: "+x.Result.Error)
		return errors.Join(t.print(out), x.whatIf(out))
	}
	t.row("Strategy", x.Result.Strategy)
	t.row("Result", fmt.Sprintf("digest %s, reported by %d of %s", x.Result.Digest, x.Agreed, plural(len(x.Inputs.Members), "member", "members")))
	if err := t.print(out); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "\n%s\n\n", paragraph(out, x.Result.Reason))
	t = newGrid("CLIENT-ID", "OWNS", "GETS", "AGREES", "STRATEGIES", "QUEUES").numbers(1, 2).cut("CLIENT-ID", "STRATEGIES")
	for i, m := range x.Inputs.Members {
		agrees := "yes"
		if !m.Agrees {
			agrees = "no"
		}
		t.row(m.ClientID, m.Owns, x.Result.Shares[i].After, agrees, joinOrDash(m.Strategies), strings.TrimSuffix(strings.TrimPrefix(assignment(x.Result.Shares[i].Queues), x.Topic+"("), ")"))
	}
	return errors.Join(t.print(out), x.whatIf(out))
}

// whatIf prints the change that was asked for, or the usual ones.
func (x *topicExplanation) whatIf(out *printer) error {
	if c := x.Change; c != nil {
		_, _ = fmt.Fprintf(out, "\nWhat if: %s\n", c.Change)
		if c.Error != "" {
			_, err := fmt.Fprintf(out, "  nothing would change: %s\n", c.Error)
			return err
		}
		_, _ = fmt.Fprintf(out, "%s\n\n", paragraph(out, c.Reason))
		t := newGrid("CLIENT-ID", "OWNS", "WOULD-GET", "QUEUES").numbers(1, 2).cut("CLIENT-ID")
		for _, s := range c.Shares {
			t.row(s.ClientID, s.Before, s.After, strings.TrimSuffix(strings.TrimPrefix(assignment(s.Queues), x.Topic+"("), ")"))
		}
		if err := t.print(out); err != nil || len(c.Moves) == 0 {
			return err
		}
		_, _ = fmt.Fprintln(out)
		t = newGrid("MOVES", "FROM", "TO").cut("FROM", "TO")
		for _, m := range c.Moves {
			t.row(fmt.Sprintf("%s/%d", m.Broker, m.ID), m.From, m.To)
		}
		return t.print(out)
	}
	_, _ = fmt.Fprintln(out)
	t := newGrid("WHAT-IF", "MOVED", "MINIMUM", "QUEUES-EACH").numbers(1, 2).cut("WHAT-IF")
	for _, l := range x.WhatIf {
		switch {
		case l.Error != "":
			t.row(l.Change, "-", "-", l.Error)
		case l.Low == l.High:
			t.row(l.Change, l.Moved, l.Minimum, l.Low)
		default:
			t.row(l.Change, l.Moved, l.Minimum, fmt.Sprintf("%d to %d", l.Low, l.High))
		}
	}
	return t.print(out)
}

func digest(d session.Digest) string { return fmt.Sprintf("%016x", uint64(d)) }

func name(q allocate.Queue) admin.QueueName {
	return admin.QueueName{Topic: q.Topic, Broker: q.Broker, ID: q.ID}
}

func names(list []allocate.Queue) []admin.QueueName {
	out := make([]admin.QueueName, 0, len(list))
	for _, q := range list {
		out = append(out, name(q))
	}
	return out
}
