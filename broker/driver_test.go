package broker

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
	"github.com/tacitmq/tacit/broker/lease"
)

// One entry that names a queue that is gone must neither hold up the others nor
// vanish without a word.
func TestWhatCannotBeStoredIsNamedAndTheRestIsStored(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	e := start(t, testConfig(t.TempDir()), WithLogger(zap.New(core)))
	e.topic("T", 1)
	e.fill(0, 5)
	at := func(topic string, offset int64) lease.Offset {
		return lease.Offset{Key: lease.Key{Group: "g", Queue: allocate.Queue{Topic: topic, Broker: "b1"}}, Offset: offset}
	}
	batch := []group.Persist{
		{Offsets: []lease.Offset{at("Gone", 3), at("T", 4)}},
		{Offsets: []lease.Offset{at("Gone", 4)}},
	}
	if err := e.srv.driver.writeEach(e.ctx(), batch); err != nil {
		t.Fatal(err)
	}
	if got, ok := e.srv.store.State().Offset("g", localQueueOf("T", 0)); !ok || got != 4 {
		t.Errorf("stored %d, %v", got, ok)
	}
	dropped := logs.FilterMessage("dropped what cannot be stored").All()
	if len(dropped) != 1 {
		t.Fatalf("said %v", logs.All())
	}
	if f := dropped[0].ContextMap(); f["topic"] != "Gone" || f["group"] != "g" || f["offsets"] != int64(2) || f["error"] == nil {
		t.Errorf("said %v", f)
	}
}
