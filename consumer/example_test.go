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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	c, err := consumer.New([]string{"127.0.0.1:9876"}, "billing",
		consumer.Each(func(_ context.Context, m *message.Message) error {
			fmt.Printf("%s %s\n", m.Key(), m.Body)
			return nil
		}),
		consumer.WithTopic("orders", "*"))
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil { // leaves the group when ctx ends
		log.Fatal(err)
	}
}

// A loop of one's own. The next Poll confirms what the one before returned.
func ExampleLitePullConsumer() {
	ctx := context.Background()
	c, err := consumer.NewLitePull([]string{"127.0.0.1:9876"}, "billing", consumer.WithTopic("orders", "*"))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close(ctx)
	for {
		msgs, err := c.Poll(ctx)
		if err != nil {
			log.Print(err)
			return
		}
		for _, m := range msgs {
			fmt.Printf("%s %s\n", m.Key(), m.Body)
		}
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
