package batch_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/vectors.json anew: the format has changed")

// vector is a batch that clients in any language can check themselves against.
type vector struct {
	Name string `json:"name"`
	Info struct {
		Topic         string `json:"topic"`
		Queue         int32  `json:"queue"`
		ProducerID    uint64 `json:"producerId"`
		ProducerEpoch uint32 `json:"producerEpoch"`
		BaseSequence  uint64 `json:"baseSequence"`
		DueTime       int64  `json:"dueTime"`
	} `json:"info"`
	Compression string       `json:"compression"`
	Messages    []vectorBody `json:"messages"`
	Stamp       *batch.Stamp `json:"stamp,omitempty"`
	// Hex of the batch. Compressed bodies may differ between implementations;
	// those of this file must be readable by all.
	Hex string `json:"hex"`

	bytes []byte
}

type vectorBody struct {
	Tag            string            `json:"tag,omitempty"`
	Keys           []string          `json:"keys,omitempty"`
	Properties     map[string]string `json:"properties,omitempty"`
	Body           string            `json:"body"`
	BornTime       int64             `json:"bornTime"`
	ReconsumeTimes int32             `json:"reconsumeTimes,omitempty"`
}

func (v *vector) encode(t testing.TB) []byte {
	t.Helper()
	enc := batch.Encoder{Compression: compression(v.Compression)}
	for _, m := range v.Messages {
		enc.Append(&message.Message{
			Tag: m.Tag, Keys: m.Keys, Properties: m.Properties, Body: []byte(m.Body),
			BornTime: time.UnixMilli(m.BornTime), ReconsumeTimes: m.ReconsumeTimes,
		})
	}
	b, err := enc.Finish(nil, batch.Info(v.Info))
	if err != nil {
		t.Fatal(err)
	}
	if v.Stamp != nil {
		batch.PutStamp(b, *v.Stamp)
	}
	return b
}

func compression(name string) batch.Compression {
	for _, c := range []batch.Compression{batch.None, batch.S2, batch.Zstd} {
		if c.String() == name {
			return c
		}
	}
	return batch.None
}

func vectors(t testing.TB) []vector {
	t.Helper()
	b, err := os.ReadFile("testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	for i := range out {
		if out[i].bytes, err = hex.DecodeString(out[i].Hex); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestFormatIsThatOfTheVectors(t *testing.T) {
	all := vectors(t)
	if *rewrite {
		for i := range all {
			all[i].Hex = hex.EncodeToString(all[i].encode(t))
		}
		b, err := json.MarshalIndent(all, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("testdata/vectors.json", append(b, '\n'), 0o644); err != nil { //nolint:gosec // test data
			t.Fatal(err)
		}
		t.Skip("vectors were written anew")
	}
	for _, v := range all {
		t.Run(v.Name, func(t *testing.T) {
			if c := compression(v.Compression); c == batch.None && !bytes.Equal(v.encode(t), v.bytes) {
				t.Errorf("encoded\n%x, want\n%x", v.encode(t), v.bytes)
			}
			h, err := batch.Parse(v.bytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := batch.VerifyBody(v.bytes, &h); err != nil {
				t.Fatal(err)
			}
			if v.Stamp != nil && (h.Stamp != *v.Stamp || batch.VerifyStamp(v.bytes) != nil) {
				t.Fatalf("stamp %+v", h.Stamp)
			}
			if h.Compression.String() != v.Compression {
				t.Fatalf("compressed by %v", h.Compression)
			}
			got := batch.Info{Topic: string(h.Topic), Queue: h.Queue, ProducerID: h.ProducerID, ProducerEpoch: h.ProducerEpoch, BaseSequence: h.BaseSequence, DueTime: h.DueTime}
			if got != batch.Info(v.Info) || h.Count != len(v.Messages) {
				t.Fatalf("header %+v", h)
			}
			var dec batch.Decoder
			it, err := dec.Open(&h, nil)
			if err != nil {
				t.Fatal(err)
			}
			var r batch.Record
			for i, want := range v.Messages {
				if ok, err := it.Next(&r); !ok || err != nil {
					t.Fatal(ok, err)
				}
				var m message.Message
				r.Fill(&m, &h, got.Topic, "b")
				if string(m.Body) != want.Body || m.Tag != want.Tag || m.BornTime.UnixMilli() != want.BornTime ||
					fmt.Sprint(m.Keys) != fmt.Sprint(want.Keys) || fmt.Sprint(m.Properties) != fmt.Sprint(want.Properties) {
					t.Fatalf("message %d: %+v", i, m)
				}
			}
		})
	}
}

// The values were computed by a separate program.
func TestHashesAreThoseOfTheContract(t *testing.T) {
	for s, want := range map[string]uint64{
		"":          0xaca6d6b54be3ed05,
		"a":         0x2753892a614e6925,
		"TagA":      0x861363aca8922dad,
		"schlüssel": 0x20d639a581e8c9e1,
	} {
		if got := batch.Hash(s); got != want {
			t.Errorf("%q: %#x, want %#x", s, got, want)
		}
	}
}

// Every single changed bit is found by one of the checks.
func TestEveryFlippedBitIsFound(t *testing.T) {
	for _, v := range vectors(t) {
		b := bytes.Clone(v.bytes)
		batch.PutStamp(b, batch.Stamp{BaseOffset: 77, StoreTime: 5})
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			h, err := batch.Parse(b)
			if err == nil {
				err = batch.Verify(b, &h)
			}
			if err == nil {
				t.Fatalf("%s: bit %d of byte %d flipped, and nobody minds", v.Name, bit%8, bit/8)
			}
			if !known(err) {
				t.Fatal(err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestCutBatchesAreShort(t *testing.T) {
	b := vectors(t)[0].bytes
	for n := range len(b) {
		if _, err := batch.Parse(b[:n]); !errors.Is(err, batch.ErrShort) {
			t.Fatalf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	if _, err := batch.Parse(append(bytes.Clone(b), 1, 2, 3)); err != nil {
		t.Fatalf("bytes after the batch: %v", err)
	}
}

func TestTagsAndKeysBeyondTheBoundMatchEverything(t *testing.T) {
	var enc batch.Encoder
	for i := range batch.MaxKeyHashes + 1 {
		enc.Append(&message.Message{Tag: fmt.Sprint("t", i), Keys: []string{fmt.Sprint("k", i)}})
	}
	b, err := enc.Finish(nil, batch.Info{Topic: "T"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := batch.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if h.Flags != batch.FlagManyTags|batch.FlagManyKeys || h.Tags() != 0 || h.Keys() != 0 || !h.MayMatch([]uint64{1}) {
		t.Fatalf("%+v", h)
	}
	// The encoder begins afresh.
	enc.Append(&message.Message{Tag: "t"})
	if b, err = enc.Finish(b[:0], batch.Info{Topic: "T"}); err != nil {
		t.Fatal(err)
	}
	if h, err = batch.Parse(b); err != nil || h.Flags != 0 || h.Tags() != 1 || h.MayMatch([]uint64{1}) || !h.MayMatch(nil) {
		t.Fatalf("%+v %v", h, err)
	}
}

func TestDecompressionIsBounded(t *testing.T) {
	for _, c := range []batch.Compression{batch.S2, batch.Zstd} {
		enc := batch.Encoder{Compression: c}
		enc.Append(&message.Message{Body: make([]byte, 10<<20)})
		b, err := enc.Finish(nil, batch.Info{Topic: "T"})
		if err != nil || len(b) > 1<<20 {
			t.Fatal(len(b), err)
		}
		h, err := batch.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		dec := batch.Decoder{MaxBytes: 1 << 20}
		if _, err := dec.Open(&h, nil); !errors.Is(err, batch.ErrTooLarge) {
			t.Fatal(err)
		}
		h.RawSize = 1 << 19 // a header that lies about the size
		if _, err := dec.Open(&h, nil); !errors.Is(err, batch.ErrMalformed) {
			t.Fatal(err)
		}
	}
}

func TestUnusableInfoIsRefused(t *testing.T) {
	for name, info := range map[string]batch.Info{
		"no topic":       {},
		"long topic":     {Topic: strings.Repeat("x", 256)},
		"negative queue": {Topic: "T", Queue: -1},
		"negative due":   {Topic: "T", DueTime: -1},
		"sequence":       {Topic: "T", BaseSequence: 1 << 63},
	} {
		var enc batch.Encoder
		enc.Append(&message.Message{})
		if _, err := enc.Finish(nil, info); !errors.Is(err, batch.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var enc batch.Encoder
	if _, err := enc.Finish(nil, batch.Info{Topic: "T"}); !errors.Is(err, batch.ErrMalformed) {
		t.Errorf("no messages: %v", err)
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, n := range []int{1, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m := message.Message{Tag: "tag", Keys: []string{"key"}, Body: make([]byte, 1024), BornTime: time.UnixMilli(1_700_000_000_000)}
			var enc batch.Encoder
			var out []byte
			b.ReportAllocs()
			b.SetBytes(int64(n * len(m.Body)))
			for b.Loop() {
				for range n {
					enc.Append(&m)
				}
				var err error
				if out, err = enc.Finish(out[:0], batch.Info{Topic: "topic"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchBatch(b *testing.B, n int) []byte {
	m := message.Message{Tag: "tag", Keys: []string{"key"}, Body: make([]byte, 1024), BornTime: time.UnixMilli(1_700_000_000_000)}
	var enc batch.Encoder
	for range n {
		enc.Append(&m)
	}
	out, err := enc.Finish(nil, batch.Info{Topic: "topic"})
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func BenchmarkParseVerifyStamp(b *testing.B) {
	x := benchBatch(b, 64)
	b.ReportAllocs()
	b.SetBytes(int64(len(x)))
	for b.Loop() {
		h, err := batch.Parse(x)
		if err != nil || batch.VerifyBody(x, &h) != nil {
			b.Fatal(err)
		}
		batch.PutStamp(x, batch.Stamp{BaseOffset: 1})
	}
}

func BenchmarkIterate(b *testing.B) {
	x := benchBatch(b, 64)
	h, err := batch.Parse(x)
	if err != nil {
		b.Fatal(err)
	}
	var dec batch.Decoder
	b.ReportAllocs()
	b.SetBytes(int64(len(x)))
	for b.Loop() {
		it, err := dec.Open(&h, nil)
		if err != nil {
			b.Fatal(err)
		}
		var r batch.Record
		for ok := true; ok; {
			if ok, err = it.Next(&r); err != nil {
				b.Fatal(err)
			}
		}
	}
}
