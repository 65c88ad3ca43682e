package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/tacitmq/tacit/compare"
	"github.com/tacitmq/tacit/compare/report"
	"github.com/tacitmq/tacit/internal/obs"
)

// comparison is what the command is asked for.
type comparison struct {
	o       compare.Options
	timers  []string
	phases  []string
	sizes   []string
	seeds   int
	quick   bool
	live    bool
	list    bool
	html    string
	json    string
	csv     string
	command string
}

func compareCommand() *cobra.Command {
	c := &comparison{seeds: 1, timers: []string{string(compare.OwnTimers), string(compare.EqualTimers)}, phases: []string{"spread"}, sizes: []string{"16x128x2"}}
	cmd := &cobra.Command{
		Use:     "compare",
		GroupID: "run",
		Short:   "Compare ways of sharing queues, with and without a coordinator",
		Long: `Plays scenarios (a member joins, is killed, a broker is lost ...) with each model
of sharing queues: Tacit's, RocketMQ's, and those of Kafka. The same workload,
the same seeds, the same instruments for all. The cores of members and brokers
run in virtual time, or with --live real brokers and clients on loopback sockets;
see --list for models and scenarios.

Shown are medians over seeds: the time until the group had settled, for how long
queues had no owner, how many moved against the least possible, how many stopped
though they stayed, how many had two owners at once, messages handed out again,
and what was sent for the group's sake.

Each model can run with its own timers (the defaults of its kind), with those that
detect failures fast (a session timeout of 6 s and a heartbeat of 2 s for Kafka's),
and with timers that are equal for all.`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.Var(obs.Choices(&c.o.Models, compare.ModelNames()...), "models", "`models` to compare; all if empty")
	f.Var(obs.Choices(&c.o.Scenarios, compare.ScenarioNames()...), "scenarios", "`scenarios` to play; all if empty")
	f.StringSliceVar(&c.sizes, "sizes", c.sizes, "`members`xqueuesxbrokers of the group, several after commas")
	f.Var(obs.Choices(&c.timers, string(compare.OwnTimers), string(compare.FastTimers), string(compare.EqualTimers)), "timers", "whose `timers` models have")
	f.Var(obs.Choices(&c.phases, "step", "spread"), "phases", "how heartbeats lie before an event: in `step` or spread")
	f.Var(obs.Int(&c.seeds, 1, compare.MaxSeeds), "seeds", "how many `seeds` each run is made with, from 1 on")
	f.Var(obs.Duration(&c.o.Network.Latency, 0, 10*time.Second), "latency", "of the network, one way; 0: that of a loopback")
	f.Var(obs.Float(&c.o.Network.Loss, 0, 0.5), "loss", "`share` of what is sent that must be sent again")
	f.Var(obs.Int(&c.o.Parallel, 0, 1024), "parallel", "`runs` made at once; 0: one for each core")
	f.BoolVar(&c.live, "live", false, "real brokers and clients in this process, on sockets and disks, one run after another")
	f.BoolVar(&c.quick, "quick", false, "a small group, all models and scenarios simulated, some live, in less than two minutes")
	f.BoolVar(&c.list, "list", false, "show the models and scenarios and end")
	f.StringVar(&c.html, "html", "", "write a report to this `file` that a browser shows without a network")
	f.StringVar(&c.json, "json", "", "write all results to this `file` as JSON; - for the output, in place of the table")
	f.StringVar(&c.csv, "csv", "", "write the medians to this `file` as CSV; - for the output, in place of the table")
	cmd.MarkFlagsMutuallyExclusive("quick", "sizes")
	cmd.MarkFlagsMutuallyExclusive("quick", "seeds")
	cmd.MarkFlagsMutuallyExclusive("quick", "live")
	cmd.MarkFlagsMutuallyExclusive("live", "latency")
	cmd.MarkFlagsMutuallyExclusive("live", "loss")
	hideShared(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := alone(cmd); err != nil {
			return err
		}
		if c.list {
			return list(cmd.OutOrStdout())
		}
		c.command = commandLine(cmd)
		return c.run(cmd)
	}
	return cmd
}

// commandLine is how the comparison can be made again.
func commandLine(cmd *cobra.Command) string {
	words := []string{"tacit", cmd.Name()}
	for _, name := range []string{"quick", "live", "models", "scenarios", "sizes", "timers", "phases", "seeds", "latency", "loss"} {
		f := cmd.Flags().Lookup(name)
		switch {
		case !f.Changed:
		case f.Value.Type() == "bool":
			words = append(words, "--"+name)
		default:
			words = append(words, "--"+name, strings.Trim(f.Value.String(), "[]"))
		}
	}
	return strings.Join(words, " ")
}

func list(w io.Writer) error {
	live := func(names []string, name string) string {
		if slices.Contains(names, name) {
			return "yes"
		}
		return "no"
	}
	// One line each, however long: lists are searched.
	var out strings.Builder
	row := func(name, live, text string) {
		out.WriteString(strings.TrimRight(fmt.Sprintf("%-18s  %-4s  %s", name, live, text), " ") + "\n")
	}
	row("MODEL", "LIVE", "")
	for _, m := range compare.ModelTexts() {
		row(m.Name, live(compare.LiveModelNames(), m.Name), m.Text)
	}
	out.WriteByte('\n')
	row("SCENARIO", "LIVE", "")
	for _, s := range compare.Scenarios() {
		row(s.Name, live(compare.LiveScenarioNames(), s.Name), s.Text)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func (c *comparison) complete() error {
	if c.quick {
		c.sizes, c.seeds = []string{"8x32x2"}, 1
	}
	c.o.Live = c.live
	for _, t := range c.timers {
		c.o.Timers = append(c.o.Timers, compare.Timers(t))
	}
	for _, p := range c.phases {
		c.o.Phases = append(c.o.Phases, map[string]compare.Phase{"step": compare.InStep, "spread": compare.Spread}[p])
	}
	for i := range c.seeds {
		c.o.Seeds = append(c.o.Seeds, uint64(i+1))
	}
	for _, text := range c.sizes {
		s, err := size(text)
		if err != nil {
			return obs.Usage("--sizes %q: %w", text, err)
		}
		c.o.Sizes = append(c.o.Sizes, s)
	}
	if c.json == "-" && c.csv == "-" {
		return obs.Usage("--json - and --csv -: only one of them can have the output")
	}
	return nil
}

// also are the live runs of a quick comparison.
func (c *comparison) also() []compare.Options {
	if !c.quick {
		return nil
	}
	pick := func(asked, all []string) (out []string) {
		for _, name := range all {
			if len(asked) == 0 || slices.Contains(asked, name) {
				out = append(out, name)
			}
		}
		return out
	}
	var able []string
	for _, name := range compare.LiveModelNames() {
		if slices.Contains([]string{"tacit", "eager-range", "cooperative-sticky"}, name) {
			able = append(able, name)
		}
	}
	models, scenarios := pick(c.o.Models, able), pick(c.o.Scenarios, []string{"join", "leave", "crash"})
	if len(models) == 0 || len(scenarios) == 0 || c.o.Network != (compare.Network{}) {
		return nil
	}
	return []compare.Options{{
		Live: true, Models: models, Scenarios: scenarios, Sizes: c.o.Sizes, Seeds: c.o.Seeds,
		Timers: []compare.Timers{compare.FastTimers}, Phases: []compare.Phase{compare.Spread},
	}}
}

// size reads members x queues x brokers.
func size(text string) (s compare.Size, err error) {
	parts := strings.Split(text, "x")
	if len(parts) != 3 {
		return s, errors.New("must be members, queues and brokers, as in 16x128x2")
	}
	for i, at := range []*int{&s.Members, &s.Queues, &s.Brokers} {
		if *at, err = strconv.Atoi(parts[i]); err != nil {
			return s, fmt.Errorf("%q is not a whole number", parts[i])
		}
	}
	return s, s.Check()
}

func (c *comparison) run(cmd *cobra.Command) (err error) {
	if err := c.complete(); err != nil {
		return err
	}
	files := map[string]*os.File{}
	for _, name := range []string{c.html, c.json, c.csv} {
		if name == "" || name == "-" || files[name] != nil {
			continue
		}
		// What cannot be written is better known before the runs.
		f, err := os.OpenFile(filepath.Clean(name), os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a report is for everybody
		if err != nil {
			return fmt.Errorf("open the file of the report: %w", err)
		}
		files[name] = f
	}
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
	}()
	done := c.progress(cmd.ErrOrStderr())
	r, stopped := compare.Compare(cmd.Context(), c.o, c.also()...)
	done()
	if r == nil {
		return obs.Usage("%w", stopped)
	}
	r.Version, r.Command = obs.Version(), c.command
	if len(r.Runs) == 0 {
		return interrupted(stopped)
	}
	if err := c.write(cmd.OutOrStdout(), files, r); err != nil {
		return err
	}
	return interrupted(stopped)
}

func interrupted(err error) error {
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted: these are the runs that had ended")
	}
	return err
}

func (c *comparison) write(stdout io.Writer, files map[string]*os.File, r *compare.Report) error {
	for _, out := range []struct {
		name  string
		write func(io.Writer, *compare.Report) error
	}{{c.html, report.HTML}, {c.json, report.JSON}, {c.csv, report.CSV}} {
		w := stdout
		switch {
		case out.name == "":
			continue
		case out.name != "-":
			f := files[out.name]
			if err := f.Truncate(0); err != nil {
				return fmt.Errorf("empty the file of the report: %w", err)
			}
			w = f
		}
		if err := out.write(w, r); err != nil {
			return fmt.Errorf("%s: %w", out.name, err)
		}
	}
	if c.json == "-" || c.csv == "-" {
		return nil
	}
	_, width := terminal(stdout)
	if width == 0 {
		width = 110
	}
	if err := report.Table(stdout, r, width); err != nil {
		return err
	}
	if c.html != "" {
		fmt.Fprintf(stdout, "\nThe report is in %s.\n", c.html)
	}
	return nil
}

// progress shows on a terminal how far the runs are.
func (c *comparison) progress(stderr io.Writer) (done func()) {
	f, ok := stderr.(*os.File)
	if !ok || !isTerminal(f) {
		return func() {}
	}
	p := mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	last := ""
	bar := p.AddBar(0, mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.CountersNoUnit("%d of %d runs")),
		mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { return last })))
	c.o.Progress = func(n, all int, r *compare.Run) {
		last = r.Model + ", " + r.Scenario
		bar.SetTotal(int64(all), false)
		bar.SetCurrent(int64(n))
	}
	return func() {
		bar.SetTotal(-1, true)
		bar.Abort(true)
		p.Wait()
	}
}
