package broker

import (
	"os"
	"testing"
	"time"

	"github.com/tacitmq/tacit/broker/store"
	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/internal/rawcodec"
)

// A group that had read all before a power cut has read all after it: its members
// hear at once, not when their wait ends, that offsets were left out, and commit
// where that ends.
func TestReaderAtTheEndHearsOfLeftOutOffsetsAtOnce(t *testing.T) {
	boot := func(name string) Option {
		return func(o *options) { o.disk = func(o *store.Options) { o.Boot = name } }
	}
	cfg := testConfig(t.TempDir())
	cfg.Durability = store.None
	e := start(t, cfg, boot("1"))
	e.topic("T", 1)
	e.producer().send(batch.Info{Topic: "T"}, bodies("a")...)
	cut := testConfig(t.TempDir()) // as a power cut leaves it that takes nothing back
	if err := os.CopyFS(cut.DataDir, os.DirFS(cfg.DataDir)); err != nil {
		t.Fatal(err)
	}
	e.stop()

	e = start(t, cut, boot("2"))
	begun := time.Now()
	r := e.fetcher().fetch(rawcodec.FetchRequest{Topic: "T", Offset: 1, WaitMillis: 20_000})
	if want := int64(1 + store.SkippedOffsets); r.NextOffset != want || r.MaxOffset != want || r.Error != nil {
		t.Errorf("the answer goes on at %d of %d (%v), want %d", r.NextOffset, r.MaxOffset, r.Error, want)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}
