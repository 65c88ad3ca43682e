package rebalance

import (
	"testing"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

func TestGroupSettlesThroughJoinsLeavesAndCrashes(t *testing.T) {
	c := newCluster(t, map[string]map[string]int{"orders": {"b1": 8, "b2": 8}})
	for _, id := range ids(3) {
		c.join(id, nil)
	}
	c.run(time.Second)
	before := c.settled()
	c.join("c09", nil)
	c.run(time.Second)
	after := c.settled()
	if n, least := allocate.Moves(before, after), 4; n != least {
		t.Errorf("a join moved %d queues, want %d", n, least)
	}
	c.step(c.members["c00"], Leave{})
	c.run(time.Second)
	c.settled()
	if !c.members["c00"].left {
		t.Error("the leave did not end")
	}
	c.crash(c.members["c01"])
	c.run(time.Second)
	c.settled()
	c.topics["orders"]["b1"] = 12
	c.reroute()
	c.run(time.Second)
	c.settled()
	c.topics["orders"]["b2"] = 2
	c.reroute()
	c.run(time.Second)
	c.settled()
	assigned := c.members["c02"].moves + c.members["c09"].moves
	c.brokers["b1"].crash()
	c.run(2 * time.Second)
	c.brokers["b1"].start()
	c.run(5 * time.Second)
	c.settled()
	if n := c.members["c02"].moves + c.members["c09"].moves - assigned; n != 0 {
		t.Errorf("a broker's restart assigned %d queues anew", n)
	}
}
