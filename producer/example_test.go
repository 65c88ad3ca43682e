package producer_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/tacitmq/tacit/message"
	"github.com/tacitmq/tacit/producer"
)

// Messages with one key go to one queue, in order.
func Example() {
	run := func(ctx context.Context, body []byte) error {
		p, err := producer.New([]string{"127.0.0.1:9876"}, producer.WithSelector(producer.ByKey()))
		if err != nil {
			return err
		}
		defer p.Close(ctx)
		_, err = p.Send(ctx, &message.Message{Topic: "orders", Keys: []string{"customer-7"}, Body: body})
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := run(ctx, []byte("paid")); err != nil {
		log.Print(err)
	}
}

// Many messages under way at once; each is told of exactly once.
func ExampleProducer_SendAsync() {
	ctx := context.Background()
	p, err := producer.New([]string{"127.0.0.1:9876"}, producer.WithCompression(producer.S2))
	if err != nil {
		log.Fatal(err)
	}
	for i := range 1000 {
		m := &message.Message{Topic: "orders", Body: fmt.Append(nil, i)}
		p.SendAsync(ctx, m, func(r producer.Result) {
			if r.Err != nil {
				log.Print(r.Err)
			}
		})
	}
	if err := p.Close(ctx); err != nil { // waits for all of them
		log.Print(err)
	}
}

// Bad settings are told all at once.
func ExampleNew() {
	_, err := producer.New([]string{"127.0.0.1:9876"}, producer.WithTimeout(0), producer.WithMaxInFlight(0))
	fmt.Println(err)
	// Output:
	// producer: timeout 0s: must be positive
	// batches in flight 0: must be 1 to 1024
}
