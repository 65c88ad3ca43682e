package main

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"

	"github.com/tacitmq/tacit/broker"
	"github.com/tacitmq/tacit/broker/store"
)

// size is a flag in bytes that also takes "64MiB".
type size struct{ n *int64 }

func (s *size) String() string {
	if s.n == nil || *s.n == 0 {
		return "0"
	}
	return humanize.IBytes(uint64(*s.n)) //nolint:gosec // never negative
}

func (s *size) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("%q is no size such as 64MiB", text)
	}
	*s.n = int64(n)
	return nil
}

func (s *size) Type() string { return "size" }

// durability is a flag: fsync, interval or none.
type durability struct{ d *store.Durability }

func (d *durability) String() string {
	if d.d == nil {
		return ""
	}
	return broker.DurabilityName(*d.d)
}

func (d *durability) Set(text string) (err error) {
	*d.d, err = broker.ParseDurability(text)
	return err
}

func (d *durability) Type() string { return "durability" }
