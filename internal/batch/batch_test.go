package batch_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

func TestMessagesComeBackAsTheyWereSent(t *testing.T) {
	born := time.UnixMilli(1_700_000_000_123)
	in := []message.Message{
		{Tag: "a", Keys: []string{"k1", "k2"}, Properties: map[string]string{"x": "1", "y": ""}, Body: []byte("one"), BornTime: born},
		{Body: nil, BornTime: born, ReconsumeTimes: 3},
		{Tag: "b", Body: make([]byte, 5000), BornTime: born},
	}
	for _, c := range []batch.Compression{batch.None, batch.S2, batch.Zstd} {
		t.Run(c.String(), func(t *testing.T) {
			enc := batch.Encoder{Compression: c}
			var dec batch.Decoder
			for range 2 { // buffers are reused
				for i := range in {
					enc.Append(&in[i])
				}
				b, err := enc.Finish(nil, batch.Info{Topic: "T", Queue: 7, ProducerID: 1, ProducerEpoch: 2, BaseSequence: 3})
				if err != nil {
					t.Fatal(err)
				}
				batch.PutStamp(b, batch.Stamp{BaseOffset: 100, StoreTime: 5})
				h, err := batch.Parse(b)
				if err != nil {
					t.Fatal(err)
				}
				if err := batch.Verify(b, &h); err != nil {
					t.Fatal(err)
				}
				if !h.IsFor("T", 7) || h.Count != 3 || h.Tags() != 2 || h.Keys() != 2 || h.Compression != c {
					t.Fatalf("header %+v", h)
				}
				it, err := dec.Open(&h, nil)
				if err != nil {
					t.Fatal(err)
				}
				var r batch.Record
				for i := range in {
					ok, err := it.Next(&r)
					if !ok || err != nil {
						t.Fatal(ok, err)
					}
					var m message.Message
					r.Fill(&m, &h, "T", "b1")
					if m.Offset != int64(100+i) || m.Tag != in[i].Tag || string(m.Body) != string(in[i].Body) ||
						len(m.Keys) != len(in[i].Keys) || len(m.Properties) != len(in[i].Properties) ||
						!m.BornTime.Equal(born) || m.ReconsumeTimes != in[i].ReconsumeTimes {
						t.Fatalf("message %d: %+v", i, m)
					}
				}
				if ok, err := it.Next(&r); ok || err != nil {
					t.Fatal(ok, err)
				}
			}
		})
	}
}

// A batch made in place is the one that Finish makes, also with more hashes than there is room for in front.
func TestSealMakesTheBatchOfFinish(t *testing.T) {
	for _, c := range []batch.Compression{batch.None, batch.S2, batch.Zstd} {
		for _, keys := range []int{0, 3, 600} {
			t.Run(fmt.Sprint(c, keys), func(t *testing.T) {
				plain, inPlace := batch.Encoder{Compression: c}, batch.Encoder{Compression: c}
				var buf []byte
				for round := range 4 { // the buffer is used again
					inPlace.Use(buf, 100)
					for i := range max(1, keys) {
						m := message.Message{Tag: "tag", Body: bytes.Repeat([]byte{byte(i), byte(round)}, 300)}
						if i < keys {
							m.Keys = []string{fmt.Sprint("key", i)}
						}
						plain.Append(&m)
						inPlace.Append(&m)
					}
					info := batch.Info{Topic: "T", Queue: 7, ProducerID: 1, ProducerEpoch: 2, BaseSequence: uint64(round)}
					want, err := plain.Finish(nil, info)
					if err != nil {
						t.Fatal(err)
					}
					var got []byte
					if got, buf, err = inPlace.Seal(info); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got, want) {
						t.Fatalf("round %d: %d bytes differ from %d", round, len(got), len(want))
					}
				}
				if _, _, err := inPlace.Seal(batch.Info{Topic: "T"}); err == nil {
					t.Error("a batch without messages")
				}
			})
		}
	}
}
