package compare

import (
	"context"
	"fmt"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

// produceEvery is how often the producer looks what is due.
const produceEvery = 5 * time.Millisecond

// startProducer sends a message to each queue every messageEvery, in turn, and returns
// what stops it.
func (l *live) startProducer() (stop func() error, err error) {
	n := 0
	inTurn := producer.SelectorFunc(func(_ *message.Message, queues []allocate.Queue) int {
		n++
		return n % len(queues)
	})
	p, err := producer.New(l.c.NameServers(), producer.WithSelector(inTurn))
	if err != nil {
		return nil, fmt.Errorf("start producer: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(l.ctx))
	ended := make(chan struct{})
	go func() { // stop waits for it
		defer close(ended)
		l.produce(ctx, p)
	}()
	return func() error {
		cancel()
		<-ended
		// What is not stored by now matters to nobody.
		now, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.Close(now)
		return nil
	}, nil
}

func (l *live) produce(ctx context.Context, p *producer.Producer) {
	tick := time.NewTicker(produceEvery)
	defer tick.Stop()
	last, due := l.now(), 0.0
	var lag time.Duration
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		now := l.now()
		due += float64(l.total.Load()) * float64(now-last) / float64(messageEvery)
		last = now
		for ; due >= 1; due-- {
			p.SendAsync(ctx, &message.Message{Topic: topic, Body: []byte("x")}, func(r producer.Result) {
				if r.Err == nil {
					l.tell(observation{kind: wasStored, queues: []allocate.Queue{r.Queue}, offset: r.Offset})
				}
			})
		}
		if now-lag >= messageEvery {
			lag = now
			l.tell(observation{kind: lagDue})
		}
	}
}
