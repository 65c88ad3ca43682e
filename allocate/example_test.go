package allocate_test

import (
	"fmt"

	"github.com/tacitmq/tacit/allocate"
)

func ExampleShare() {
	in := allocate.Input{Group: "billing", Topic: "orders"}
	for id := range int32(6) {
		in.Queues = append(in.Queues, allocate.Queue{Topic: "orders", Broker: "broker-a", ID: id})
	}
	in.Members = []allocate.Member{{ClientID: "carol"}, {ClientID: "alice"}, {ClientID: "bob"}}

	all, err := allocate.Share(allocate.Averagely{}, in)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, id := range []string{"alice", "bob", "carol"} {
		fmt.Println(id, all[id])
	}
	// Output:
	// alice [{orders broker-a 0} {orders broker-a 1}]
	// bob [{orders broker-a 2} {orders broker-a 3}]
	// carol [{orders broker-a 4} {orders broker-a 5}]
}

// A member joins: Sticky takes from the others what balance demands, and no more.
func ExampleSticky() {
	queues := make([]allocate.Queue, 8)
	for i := range queues {
		queues[i] = allocate.Queue{Topic: "orders", Broker: "broker-a", ID: int32(i)}
	}
	in := allocate.Input{
		Group: "billing", Topic: "orders", Queues: queues,
		Members: []allocate.Member{
			{ClientID: "alice", Owned: queues[:4]},
			{ClientID: "bob", Owned: queues[4:]},
			{ClientID: "carol"},
		},
	}
	all, err := allocate.Share(allocate.Sticky{}, in)
	if err != nil {
		fmt.Println(err)
		return
	}
	before := in.Owners()
	fmt.Println("loads:", len(all["alice"]), len(all["bob"]), len(all["carol"]))
	fmt.Println("moved:", allocate.Moves(before, all.Owners()))
	fmt.Println("minimum:", allocate.MinimumMoves(before, queues, []string{"alice", "bob", "carol"}))
	// Output:
	// loads: 3 3 2
	// moved: 2
	// minimum: 2
}

func ExampleMachineRoomNearby() {
	s, err := allocate.NewMachineRoomNearby(allocate.Sticky{}, map[string]string{"broker-a": "east", "broker-b": "west"})
	if err != nil {
		fmt.Println(err)
		return
	}
	all, err := allocate.Share(s, allocate.Input{
		Topic: "orders",
		Queues: []allocate.Queue{
			{Topic: "orders", Broker: "broker-a", ID: 0},
			{Topic: "orders", Broker: "broker-b", ID: 0},
		},
		Members: []allocate.Member{
			{ClientID: "alice", Data: allocate.EncodeZone("west", nil)},
			{ClientID: "bob", Data: allocate.EncodeZone("east", nil)},
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(s.Name())
	fmt.Println("alice", all["alice"])
	fmt.Println("bob", all["bob"])
	// Output:
	// machine-room-nearby(sticky,broker-a=east,broker-b=west)
	// alice [{orders broker-b 0}]
	// bob [{orders broker-a 0}]
}

func ExampleByName() {
	for _, name := range []string{"sticky", "machine-room(east,west)", "lottery"} {
		s, err := allocate.ByName(name)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(s.Name())
	}
	// Output:
	// sticky
	// machine-room(east,west)
	// "lottery": unknown allocate strategy
}

// One member of many finds its own part of a sorted snapshot without computing
// the others'.
func ExampleAveragelyRange() {
	from, to := allocate.AveragelyRange(10, 4, 1)
	fmt.Println(from, to)
	// Output: 3 6
}

func ExampleHash() {
	begun := allocate.NewHash().String("billing").String("orders")
	for _, broker := range []string{"broker-a", "broker-b"} {
		fmt.Printf("%s %016x\n", broker, begun.String(broker).Sum64())
	}
	// Output:
	// broker-a 7b49ac1f2de70130
	// broker-b bf953c7ebb33e7d0
}
