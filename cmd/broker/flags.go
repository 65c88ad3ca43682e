package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/obs"
	"github.com/tacitmq/tacit/message"
)

// durability is a flag: fsync, interval or none.
func durability(at *store.Durability) pflag.Value {
	return obs.ChoiceOf(at, broker.DurabilityName, store.Fsync, store.Interval, store.None)
}

func checkName(name string) error {
	if message.CheckClientID(name) != nil {
		return fmt.Errorf("must be 1 to %d printable ASCII characters without blanks", message.MaxClientIDLength)
	}
	return nil
}

func notEmpty(text string) error {
	if text == "" {
		return errors.New("must not be empty")
	}
	return nil
}
