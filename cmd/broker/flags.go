package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/route"
)

// durability is a flag: fsync, interval or none.
func durability(at *store.Durability) pflag.Value {
	return obs.ChoiceOf(at, broker.DurabilityName, store.Fsync, store.Interval, store.None)
}

func checkName(name string) error {
	if route.CheckBroker(name) != nil {
		return fmt.Errorf("must be 1 to %d letters, digits, dots, hyphens and underscores", route.MaxNameLength)
	}
	return nil
}

func checkCluster(name string) error {
	if route.CheckCluster(name) != nil {
		return fmt.Errorf("must be at most %d letters, digits, dots, hyphens and underscores", route.MaxNameLength)
	}
	return nil
}

func notEmpty(text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	return nil
}

// together checks the flags that limit one another, by the names people gave them.
func together(cfg *broker.Config) (errs []error) {
	below := func(is bool, flag, value, other, limit string) {
		if is {
			errs = append(errs, fmt.Errorf("--%s %s: must not be below --%s, %s", flag, value, other, limit))
		}
	}
	below(cfg.SegmentBytes < int64(cfg.MaxBatchBytes), "segment-size", obs.SizeText(cfg.SegmentBytes), "max-batch-bytes", obs.SizeText(cfg.MaxBatchBytes))
	below(cfg.MaxFetchMemory < int64(cfg.MaxFetchBytes), "max-fetch-memory", obs.SizeText(cfg.MaxFetchMemory), "max-fetch-bytes", obs.SizeText(cfg.MaxFetchBytes))
	below(cfg.MaxQueues < cfg.DefaultQueues, "max-queues", fmt.Sprint(cfg.MaxQueues), "default-queues", fmt.Sprint(cfg.DefaultQueues))
	below(cfg.GroupSessionTimeout <= cfg.GroupHeartbeat, "group-session-timeout", cfg.GroupSessionTimeout.String(), "group-heartbeat", cfg.GroupHeartbeat.String())
	below(cfg.SessionTimeoutMax < cfg.SessionTimeoutMin, "session-timeout-max", cfg.SessionTimeoutMax.String(), "session-timeout-min", cfg.SessionTimeoutMin.String())
	return errs
}
