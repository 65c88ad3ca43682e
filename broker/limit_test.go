package broker

import (
	"errors"
	"testing"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rpcerr"
)

// What producers take for granted: every broker, however low its own limit, reads a batch of 16 MiB less 64 KiB and refuses
// it by name, and the stream goes on.
func TestEveryBrokerReadsAndNamesWhatIsTooLarge(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.MaxBatchBytes = 64 << 10
	e := start(t, cfg)
	e.topic("T", 1)
	p := e.producer()
	if _, err := p.try(make([]byte, 16<<20-64<<10)); !errors.Is(err, rpcerr.ErrMessageTooLarge) {
		t.Errorf("error is %v", err)
	}
	if _, err := p.try(encodeBatch(t, batch.Info{Topic: "T"}, bodies("a")...)); err != nil {
		t.Errorf("the batch after it: %v", err)
	}
}
