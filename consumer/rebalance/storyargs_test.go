package rebalance

import (
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/session"
)

func (s *story) arg(d *datadriven.TestData, key string) string {
	if v := s.list(d, key); len(v) > 0 {
		return v[0]
	}
	return ""
}

func (s *story) list(d *datadriven.TestData, key string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func (s *story) number(v string) int {
	n, err := strconv.Atoi(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *story) duration(v string) time.Duration {
	d, err := time.ParseDuration(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *story) queue(v string) allocate.Queue {
	o, _, _ := s.lease(v)
	return o.Queue
}

func (s *story) queues(d *datadriven.TestData, key string) []allocate.Queue {
	var out []allocate.Queue
	for _, v := range s.list(d, key) {
		out = append(out, s.queue(v))
	}
	return out
}

func (s *story) grants(d *datadriven.TestData, key string, kept bool) []session.Grant {
	var out []session.Grant
	for _, v := range s.list(d, key) {
		o, off, has := s.lease(v)
		out = append(out, session.Grant{Queue: o.Queue, Epoch: o.Epoch, Offset: off, HasOffset: has, Kept: kept})
	}
	return out
}

// lease reads topic/broker/id[@epoch[+offset]].
func (s *story) lease(v string) (session.Owned, int64, bool) {
	v, off, hasOffset := strings.Cut(v, "+")
	v, epoch, hasEpoch := strings.Cut(v, "@")
	parts := strings.Split(v, "/")
	if len(parts) != 3 {
		s.t.Fatalf("%q is not topic/broker/id", v)
	}
	o := session.Owned{Queue: allocate.Queue{Topic: parts[0], Broker: parts[1], ID: int32(s.number(parts[2]))}}
	if hasEpoch {
		b, n, _ := strings.Cut(epoch, ".")
		o.Epoch = session.Epoch{Broker: uint64(s.number(b)), Counter: uint64(s.number(n))}
	}
	if hasOffset {
		return o, int64(s.number(off)), true
	}
	return o, 0, false
}
