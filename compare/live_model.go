package compare

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/internal/sim"
)

// consumer returns what makes the SDK's options for members of a model; nil if the SDK
// has no such members.
func (m model) consumer(s settings) func() []consumer.Option {
	if s.sim != sim.Decentralized {
		return nil
	}
	return func() []consumer.Option {
		return []consumer.Option{
			consumer.WithMode(s.mode), consumer.WithStrategies(s.strategy), consumer.WithTiming(s.tick, s.heartbeat, s.session),
		}
	}
}

// LiveModelNames returns the names of the models that can run live.
func LiveModelNames() (out []string) {
	for _, m := range models() {
		if m.consumer(m.own) != nil {
			out = append(out, m.Name)
		}
	}
	return out
}

// simulatedOnly are the scenarios that cannot be played live, and why.
//
//nolint:gochecknoglobals // a table that nobody changes
var simulatedOnly = map[string]string{
	"pause": "members share one process, which cannot stop for one of them alone",
}

// LiveScenarioNames returns the names of the scenarios that can be played live.
func LiveScenarioNames() (out []string) {
	for _, s := range Scenarios() {
		if simulatedOnly[s.Name] == "" {
			out = append(out, s.Name)
		}
	}
	return out
}

// checkLive says what of the options cannot be had live. What is not named is left out
// where it cannot.
func (o *Options) checkLive() error {
	var errs []error
	for _, name := range o.Models {
		if can := LiveModelNames(); slices.Contains(ModelNames(), name) && !slices.Contains(can, name) {
			errs = append(errs, fmt.Errorf("model %q runs simulated only: live are %s", name, strings.Join(can, ", ")))
		}
	}
	for _, name := range o.Scenarios {
		if why := simulatedOnly[name]; why != "" {
			errs = append(errs, fmt.Errorf("scenario %q runs simulated only: %s", name, why))
		}
	}
	for _, s := range o.Sizes {
		for _, n := range []struct {
			what    string
			n, most int
		}{{"members", s.Members, MaxLiveMembers}, {"queues", s.Queues, MaxLiveQueues}, {"brokers", s.Brokers, MaxLiveBrokers}} {
			if n.n > n.most {
				errs = append(errs, fmt.Errorf("live %s %d: must be at most %d", n.what, n.n, n.most))
			}
		}
		// Without a queue on each broker there is no telling which ones count.
		if s.Queues < s.Brokers {
			errs = append(errs, fmt.Errorf("live queues %d: must be at least one for each of %d brokers", s.Queues, s.Brokers))
		}
	}
	if o.Network != (Network{}) {
		errs = append(errs, errors.New("latency and loss are of simulated runs: live ones have a loopback"))
	}
	return errors.Join(errs...)
}
