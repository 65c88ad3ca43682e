package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tacitmq/tacit/internal/admin"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/internal/rpcerr"
)

// resetFlags say where to and what.
type resetFlags struct {
	earliest, latest bool
	offset           int64
	time             string
	shift            int64
	ago              time.Duration
	topics           []string
	allTopics        bool
	execute, force   bool
}

func (g *global) groupReset() *cobra.Command {
	var f resetFlags
	var cmd *cobra.Command
	cmd = g.command("reset-offsets GROUP", "Set where a group goes on, with a preview", cobra.ExactArgs(1),
		func(ctx context.Context, c *admin.Client, out *printer, args []string) error {
			r, err := f.reset(cmd, args[0], time.Now())
			if err != nil {
				return err
			}
			return resetOffsets(ctx, c, out, r)
		})
	cmd.Long = `Sets the offsets from which a group goes on. Without --execute nothing is
changed: what would be is shown.

Queues that members hold are refused unless --force is given, since members would
go on from where they are. Stop the group first.

A topic may be narrowed down to queues of one broker, and to some ids:
  --topic orders:broker-a       all queues of orders on broker-a
  --topic orders:broker-a/0,1   two of them
  --topic orders:/0             queue 0 on every broker`
	fl := cmd.Flags()
	fl.BoolVar(&f.earliest, "to-earliest", false, "to the oldest message stored")
	fl.BoolVar(&f.latest, "to-latest", false, "past the newest message")
	fl.Var(obs.Int(&f.offset, 0, math.MaxInt64), "to-offset", "to this `offset`")
	fl.Var(obs.Text(&f.time, checkTime), "to-time", "to the first message stored at or after this `time`, as 2006-01-02T15:04:05Z or 2006-01-02")
	fl.Var(obs.Duration(&f.ago, 0, obs.Forever), "by-duration", "to the first message stored since this `duration` ago, as 90m")
	fl.Var(obs.Int(&f.shift, math.MinInt64, math.MaxInt64), "shift-by", "by this `number` of messages, back if negative")
	fl.StringArrayVar(&f.topics, "topic", nil, "`topic` to reset, as orders or orders:broker/0,1; may be repeated")
	fl.BoolVar(&f.allTopics, "all-topics", false, "reset all topics of the group")
	fl.BoolVar(&f.execute, "execute", false, "carry it out")
	fl.BoolVar(&f.force, "force", false, "reset queues that members hold, too")
	cmd.MarkFlagsMutuallyExclusive("to-earliest", "to-latest", "to-offset", "to-time", "by-duration", "shift-by")
	cmd.MarkFlagsMutuallyExclusive("topic", "all-topics")
	cmd.ValidArgsFunction = g.complete(groupNames)
	g.completeFlag(cmd, "topic", topicNames)
	return cmd
}

// reset reads the flags.
func (f *resetFlags) reset(cmd *cobra.Command, group string, now time.Time) (r admin.Reset, err error) {
	r = admin.Reset{Group: group, Execute: f.execute, Force: f.force}
	changed := cmd.Flags().Changed
	switch {
	case f.earliest:
		r.Kind = admin.ToEarliest
	case f.latest:
		r.Kind = admin.ToLatest
	case changed("to-offset"):
		r.Kind, r.Offset = admin.ToOffset, f.offset
	case changed("shift-by"):
		r.Kind, r.Shift = admin.ByShift, f.shift
	case changed("by-duration"):
		r.Kind, r.Time = admin.ToTime, now.Add(-f.ago)
	case f.time != "":
		if r.Time, err = parseTime(f.time); err != nil {
			return r, err
		}
		r.Kind = admin.ToTime
	default:
		return r, obs.Usage("where to? give one of --to-earliest, --to-latest, --to-offset, --to-time, --by-duration, --shift-by")
	}
	if len(f.topics) == 0 && !f.allTopics {
		return r, obs.Usage("which topics? give --topic or --all-topics")
	}
	for _, t := range f.topics {
		if err := narrow(&r, t, len(f.topics) > 1); err != nil {
			return r, err
		}
	}
	return r, nil
}

// narrow reads TOPIC[:[BROKER][/ID,...]].
func narrow(r *admin.Reset, text string, several bool) error {
	topic, part, narrowed := strings.Cut(text, ":")
	r.Topics = append(r.Topics, topic)
	if !narrowed {
		return nil
	}
	if several {
		return obs.Usage("--topic %q: only a single topic can be narrowed down to queues", text)
	}
	broker, ids := part, ""
	if i := strings.LastIndexByte(part, '/'); i >= 0 {
		broker, ids = part[:i], part[i+1:]
	}
	if broker != "" {
		r.Brokers = []string{broker}
	}
	for id := range strings.SplitSeq(ids, ",") {
		if id == "" && ids == "" {
			break
		}
		n, err := strconv.ParseInt(id, 10, 32)
		if err != nil || n < 0 {
			return obs.Usage("--topic %q: %q is no queue id", text, id)
		}
		r.IDs = append(r.IDs, int32(n))
	}
	return nil
}

// parseTime reads a time; without a zone it is a local one.
func parseTime(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("must be as " + timeForms)
}

const timeForms = "2006-01-02T15:04:05Z, 2006-01-02T15:04:05 or 2006-01-02"

// checkTime accepts what --to-time takes.
func checkTime(text string) error {
	_, err := parseTime(text)
	return err
}

// resetResult is what is printed as JSON. Executed says that all of it was carried
// out; changes that were not have an error.
type resetResult struct {
	Group    string               `json:"group"`
	Executed bool                 `json:"executed"`
	Changes  []admin.OffsetChange `json:"changes"`
	Failures []admin.Failure      `json:"failures"`
}

func newResetResult(r *admin.Reset, changes []admin.OffsetChange, failures []admin.Failure, err error) resetResult {
	return resetResult{Group: r.Group, Executed: r.Execute && err == nil && len(failures) == 0, Changes: orEmpty(changes), Failures: orEmpty(failures)}
}

func resetOffsets(ctx context.Context, c *admin.Client, out *printer, r admin.Reset) error {
	// A group may be given offsets before its first start; a typo looks the same.
	gr, _, unknown := c.DescribeGroup(ctx, r.Group)
	changes, failures, err := c.ResetOffsets(ctx, r)
	if changes == nil && err != nil {
		out.failures(failures)
		return err
	}
	if errors.Is(err, rpcerr.ErrGroupActive) && !out.json && !slices.ContainsFunc(changes, func(ch admin.OffsetChange) bool { return ch.Executed }) {
		out.failures(failures)
		return fmt.Errorf("%w (--force); nothing was changed", err)
	}
	held := 0
	for _, ch := range changes {
		if ch.Holder != "" {
			held++
		}
	}
	printErr := out.print(newResetResult(&r, changes, failures, err), func() error {
		t := newGrid("GROUP", "TOPIC", "BROKER", "QUEUE", "BEFORE", "AFTER", "MAX-OFFSET", "LAG", "NOTE").numbers(3, 4, 5, 6, 7).spare("GROUP").cut("NOTE")
		for _, ch := range changes {
			t.row(r.Group, ch.Topic, ch.Broker, ch.ID, orDash(ch.Before), ch.After, ch.Max, ch.Lag, resetNote(ch))
		}
		return t.print(out)
	})
	out.failures(failures)
	if errors.Is(unknown, rpcerr.ErrGroupNotFound) {
		out.warn("there was no group %s yet: these are the offsets it begins with", r.Group)
	}
	if gr != nil && gr.Broadcasting() {
		out.warn("group %s is broadcasting: its members keep their progress themselves, this does not move them", r.Group)
	}
	switch {
	case err != nil:
		return errors.Join(printErr, err)
	case printErr != nil:
		return printErr
	case len(failures) > 0 && r.Execute:
		return errors.New("offsets on brokers that did not answer were not reset")
	case held > 0 && !r.Force && !r.Execute:
		out.warn("members hold %s: stop the group before you execute this", fmt.Sprint(held, " of these queues"))
	}
	if !r.Execute && !out.json {
		_, _ = fmt.Fprintln(out.stderr, "This is a preview. Carry it out with --execute.")
	}
	return nil
}

func resetNote(ch admin.OffsetChange) string {
	var notes []string
	if ch.Error != "" {
		notes = append(notes, "failed: "+ch.Error)
	}
	if ch.Clamped {
		notes = append(notes, fmt.Sprintf("moved into what is stored, %d to %d", ch.Min, ch.Max))
	}
	if ch.Holder != "" {
		notes = append(notes, "held by "+ch.Holder)
	}
	return strings.Join(notes, "; ")
}
