package batch_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/tacitmq/tacit/internal/batch"
	"github.com/tacitmq/tacit/message"
)

// known reports whether err is one of those the package promises.
func known(err error) bool {
	return errors.Is(err, batch.ErrShort) || errors.Is(err, batch.ErrMalformed) ||
		errors.Is(err, batch.ErrChecksum) || errors.Is(err, batch.ErrTooLarge)
}

func seeds(f *testing.F) {
	for _, v := range vectors(f) {
		f.Add(v.bytes)
	}
	f.Add([]byte("TCB\x01"))
	f.Add([]byte(nil))
}

func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		h, err := batch.Parse(b)
		if !bytes.Equal(b, before) {
			t.Fatal("Parse changed its input")
		}
		if err != nil {
			if !known(err) {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		if h.Length > len(b) || len(h.Body()) > h.Length || h.Count < 1 || h.Queue < 0 || len(h.Topic) == 0 {
			t.Fatalf("%+v", h)
		}
		for i := range h.Tags() {
			if !h.MayMatch([]uint64{h.Tag(i)}) {
				t.Fatal("a listed tag does not match")
			}
		}
		for i := range h.Keys() {
			h.Key(i)
		}
		ok := batch.VerifyBody(b, &h) == nil
		batch.PutStamp(b, batch.Stamp{BaseOffset: 1, StoreTime: 2, Origin: 3, Segment: 4, Position: 5, Group: 6})
		again, err := batch.Parse(b)
		if err != nil || again.Stamp != (batch.Stamp{BaseOffset: 1, StoreTime: 2, Origin: 3, Segment: 4, Position: 5, Group: 6}) {
			t.Fatalf("stamped: %+v %v", again.Stamp, err)
		}
		if err := batch.VerifyStamp(b); err != nil {
			t.Fatal(err)
		}
		if (batch.VerifyBody(b, &again) == nil) != ok {
			t.Fatal("the stamp changed what the producer's checksum says")
		}
	})
}

func FuzzIterate(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := batch.Parse(b)
		if err != nil {
			return
		}
		dec := batch.Decoder{MaxBytes: 1 << 20}
		it, err := dec.Open(&h, nil)
		if err != nil {
			if !known(err) {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		var r batch.Record
		var m message.Message
		n := 0
		for {
			ok, err := it.Next(&r)
			if err != nil {
				if !known(err) {
					t.Fatalf("unknown error %v", err)
				}
				if ok, _ := it.Next(&r); ok {
					t.Fatal("a message after an error")
				}
				return
			}
			if !ok {
				break
			}
			n++
			r.Fill(&m, &h, "T", "b")
		}
		if n != h.Count {
			t.Fatalf("%d messages, the header says %d", n, h.Count)
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	f.Add("tag", "key", "name", "value", []byte("body"), int64(1_700_000_000_123), int32(3), uint8(0), uint8(3))
	f.Add("", "", "", "", []byte(nil), int64(0), int32(0), uint8(2), uint8(1))
	f.Fuzz(func(t *testing.T, tag, key, name, value string, body []byte, born int64, times int32, comp, count uint8) {
		times = max(0, times)
		born %= 1 << 50
		in := message.Message{Tag: tag, Body: body, BornTime: time.UnixMilli(born), ReconsumeTimes: times}
		if key != "" {
			in.Keys = []string{key, tag + key}
		}
		if name != "" {
			in.Properties = map[string]string{name: value, "x" + name: tag}
		}
		enc := batch.Encoder{Compression: batch.Compression(comp % 3)}
		for range int(count%8) + 1 {
			enc.Append(&in)
		}
		b, err := enc.Finish([]byte("before"), batch.Info{Topic: "T"})
		if err != nil {
			t.Fatal(err)
		}
		b = b[len("before"):]
		h, err := batch.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		if h.Length != len(b) || batch.VerifyBody(b, &h) != nil {
			t.Fatal("length or checksum is wrong")
		}
		if tag != "" && !h.MayMatch([]uint64{batch.Hash(tag)}) {
			t.Fatal("its own tag does not match")
		}
		var dec batch.Decoder
		it, err := dec.Open(&h, nil)
		if err != nil {
			t.Fatal(err)
		}
		var r batch.Record
		for range int(count%8) + 1 {
			if ok, err := it.Next(&r); !ok || err != nil {
				t.Fatal(ok, err)
			}
			var out message.Message
			r.Fill(&out, &h, "T", "b")
			if out.Tag != tag || !bytes.Equal(out.Body, body) || out.ReconsumeTimes != times || len(out.Keys) != len(in.Keys) ||
				len(out.Properties) != len(in.Properties) || out.Property(name) != in.Property(name) || out.Key() != in.Key() {
				t.Fatalf("%+v", out)
			}
			if born != 0 && !out.BornTime.Equal(in.BornTime) {
				t.Fatal(out.BornTime)
			}
		}
		if ok, err := it.Next(&r); ok || err != nil {
			t.Fatal(ok, err)
		}
	})
}
