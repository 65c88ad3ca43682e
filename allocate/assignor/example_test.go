package assignor_test

import (
	"fmt"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/allocate/assignor"
)

// A second member joins. In the first rebalance the first one gives up what is to
// move, in the second the newcomer gets it.
func ExampleCooperativeSticky() {
	queues := []allocate.Queue{{Topic: "orders", Broker: "b1"}, {Topic: "orders", Broker: "b1", ID: 1}, {Topic: "orders", Broker: "b1", ID: 2}}
	in := assignor.Input{
		Topics: map[string][]allocate.Queue{"orders": queues},
		Members: []assignor.Member{
			{ID: "alice", Topics: []string{"orders"}, Owned: queues, Generation: 1},
			{ID: "bob", Topics: []string{"orders"}, Generation: assignor.NoGeneration},
		},
	}
	for generation := range 2 {
		out, err := assignor.CooperativeSticky().Assign(in)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("alice has", len(out["alice"]), "and bob", len(out["bob"]))
		for i := range in.Members {
			m := &in.Members[i]
			m.Owned, m.Generation = out[m.ID], int64(2+generation)
		}
	}
	// Output:
	// alice has 2 and bob 0
	// alice has 2 and bob 1
}
