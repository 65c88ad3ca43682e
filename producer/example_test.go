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
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	p, err := producer.New([]string{"127.0.0.1:9876"}, producer.WithSelector(producer.ByKey()))
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close(ctx)
	res, err := p.Send(ctx, &message.Message{Topic: "orders", Keys: []string{"4711"}, Body: []byte("paid")})
	if err != nil {
		log.Print(err)
		return
	}
	fmt.Println(res[0].Queue, res[0].Offset)
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
