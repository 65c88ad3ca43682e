package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/consumer"
	"github.com/tacitmq/tacit/message"
)

// A member of a group that handles messages until the program is interrupted.
func Example() {
	pack := func(_ context.Context, order []byte) error { fmt.Printf("%s\n", order); return nil }
	run := func(ctx context.Context) error {
		c, err := consumer.New([]string{"127.0.0.1:9876"}, "packers",
			consumer.Each(func(ctx context.Context, m *message.Message) error {
				return pack(ctx, m.Body) // an error brings the message back later, at last among the dead letters
			}),
			consumer.WithTopic("orders", "*"))
		if err != nil {
			return err
		}
		return c.Run(ctx) // until ctx ends: drains, commits, leaves
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Print(err)
	}
}

// A loop of one's own.
func ExampleLitePullConsumer() {
	pack := func(order []byte) { fmt.Printf("%s\n", order) }
	run := func(ctx context.Context) error {
		c, err := consumer.NewLitePull([]string{"127.0.0.1:9876"}, "packers", consumer.WithTopic("orders", "*"))
		if err != nil {
			return err
		}
		defer c.Close(ctx)
		for {
			msgs, err := c.Poll(ctx) // confirms what the last Poll returned
			if err != nil {
				return err
			}
			for _, m := range msgs {
				pack(m.Body)
			}
		}
	}
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

// Messages of a queue one after another; what fails is tried again in place.
func ExampleOrderly() {
	h := consumer.Orderly(func(_ context.Context, m *message.Message) error {
		if len(m.Body) == 0 {
			return consumer.RetryAfter(10*time.Second, errors.New("body is empty"))
		}
		return nil
	})
	_, err := consumer.New(nil, "billing", h, consumer.WithTopic("orders", "*"), consumer.WithMode(consumer.Immediate))
	fmt.Println(err)
	// Output: consumer of group "billing": orderly handlers need mode exclusive, not immediate
}

// State per queue is loaded when a queue comes and stored before it goes.
func ExampleWithListener() {
	_ = consumer.WithListener(consumer.ListenerFuncs{
		Assigned: func(_ context.Context, queues []allocate.Queue) { fmt.Println("load", queues) },
		Revoked:  func(_ context.Context, queues []allocate.Queue) { fmt.Println("store", queues) },
		Lost:     func(_ context.Context, queues []allocate.Queue) { fmt.Println("forget", queues) },
	})
}

// Tags are joined by "||" in any order.
func ExampleWithTopic() {
	_, err := consumer.New(nil, "billing", consumer.Each(func(context.Context, *message.Message) error { return nil }),
		consumer.WithTopic("orders", "paid||"))
	fmt.Println(err)
	// Output: consumer of group "billing": filter "paid||": must be "*" or tags of 1 to 255 bytes joined by "||"
}
