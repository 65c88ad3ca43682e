package demo

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

// produceEvery is how often the producer looks what is due.
const produceEvery = time.Millisecond

// inTurn gives every queue a message in turn, so that each has them at a steady
// rate.
func inTurn() producer.Selector {
	n := 0
	return producer.SelectorFunc(func(_ *message.Message, queues []allocate.Queue) int {
		n++
		return n % len(queues)
	})
}

// produce sends numbered messages at a steady rate until ctx ends and then waits
// for the outcome of all. send and outcome get every message, outcome in any
// order.
func produce(ctx context.Context, nameServers []string, topic string, rate int, first uint64, send func(seq uint64, at time.Time), outcome func(seq uint64, err error)) error {
	p, err := producer.New(nameServers, producer.WithSelector(inTurn()))
	if err != nil {
		return fmt.Errorf("start producer: %w", err)
	}
	tick := time.NewTicker(produceEvery)
	defer tick.Stop()
	start, seq := time.Now(), first
	for ctx.Err() == nil {
		due := first + uint64(time.Since(start).Seconds()*float64(rate)) //nolint:gosec // not negative
		for ; seq < due; seq++ {
			n := seq // the outcome comes when seq has gone on
			m := &message.Message{Topic: topic, Body: strconv.AppendUint(nil, n, 10)}
			send(n, time.Now())
			p.SendAsync(ctx, m, func(r producer.Result) { outcome(n, r.Err) })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	if err := p.Close(end); err != nil {
		return fmt.Errorf("stop producer: %w", err)
	}
	return nil
}
