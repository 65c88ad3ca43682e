package allocate_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

func TestMemberDataSurvivesTheWire(t *testing.T) {
	t.Parallel()
	for _, queues := range [][]allocate.Queue{
		nil,
		{{}},
		{{"orders", "broker-a", 0}, {"orders", "broker-a", 0}, {"主题", "😀", 2147483647}, {"", "", -2147483648}},
	} {
		got, err := allocate.DecodeQueues(allocate.EncodeQueues(queues))
		if err != nil || !slices.Equal(got, queues) {
			t.Errorf("%v came back as %v (%v)", queues, got, err)
		}
	}
	for _, zone := range []string{"", "hz", "杭州", string(make([]byte, 200))} {
		for _, inner := range [][]byte{nil, []byte("x"), allocate.EncodeZone("rack-1", nil)} {
			gotZone, gotInner, err := allocate.DecodeZone(allocate.EncodeZone(zone, inner))
			if err != nil || gotZone != zone || !bytes.Equal(gotInner, inner) {
				t.Errorf("%q, %q came back as %q, %q (%v)", zone, inner, gotZone, gotInner, err)
			}
		}
	}
}

// TestMemberDataKeepsItsLayout ties the bytes down that members of other versions
// and languages send.
func TestMemberDataKeepsItsLayout(t *testing.T) {
	t.Parallel()
	queues := allocate.EncodeQueues([]allocate.Queue{{"orders", "b1", 3}, {"é", "", -1}})
	if want := "\x02\x06orders\x02b1\x06\x02é\x00\x01"; string(queues) != want {
		t.Errorf("queues %q, want %q", queues, want)
	}
	if got, want := string(allocate.EncodeZone("hz", []byte("inner"))), "\x02hzinner"; got != want {
		t.Errorf("zone %q, want %q", got, want)
	}
}

func TestMalformedMemberDataIsRefused(t *testing.T) {
	t.Parallel()
	whole := allocate.EncodeQueues([]allocate.Queue{{"orders", "broker-a", 1}, {"orders", "broker-a", 2}})
	bad := [][]byte{append(slices.Clone(whole), 0), {0xff}, {0xff, 0xff, 0xff, 0xff, 0x0f}, []byte("\x01\x00\x00\x80\x80\x80\x80\x20")}
	for n := 1; n < len(whole); n++ {
		bad = append(bad, whole[:n])
	}
	for _, data := range bad {
		if got, err := allocate.DecodeQueues(data); !errors.Is(err, allocate.ErrBadData) {
			t.Errorf("%x decoded as %v (%v)", data, got, err)
		}
		if err := allocate.CheckData(allocate.Config{}, data); !errors.Is(err, allocate.ErrBadData) {
			t.Errorf("%x accepted: %v", data, err)
		}
	}
	for _, data := range [][]byte{{5, 'a'}, {0xff}, bytes.Repeat([]byte{0xff}, 12)} {
		if zone, _, err := allocate.DecodeZone(data); !errors.Is(err, allocate.ErrBadData) {
			t.Errorf("%x decoded as %q (%v)", data, zone, err)
		}
	}

	nearby := must(allocate.NewMachineRoomNearby(allocate.Config{}, nil))
	for _, c := range []struct {
		data []byte
		want error
	}{
		{allocate.EncodeZone("hz", whole), nil},
		{allocate.EncodeZone("hz", whole[:3]), allocate.ErrBadData},
		{allocate.EncodeZone("", nil), allocate.ErrNoMemberZone},
		{nil, allocate.ErrNoMemberZone},
		{[]byte{9}, allocate.ErrBadData},
	} {
		if err := allocate.CheckData(nearby, c.data); !errors.Is(err, c.want) {
			t.Errorf("%x: %v, want %v", c.data, err, c.want)
		}
	}
	if err := allocate.CheckData(allocate.Sticky{}, []byte{0xff}); err != nil {
		t.Errorf("a strategy without data refused some: %v", err)
	}

	in := allocate.Input{
		Queues:  []allocate.Queue{{"orders", "hz@b", 0}},
		Members: []allocate.Member{{ClientID: "a", Data: []byte{0xff}}},
	}
	if _, err := allocate.Share(allocate.Config{}, in); !errors.Is(err, allocate.ErrBadData) {
		t.Errorf("config shared malformed data: %v", err)
	}
	if _, err := allocate.Share(nearby, in); !errors.Is(err, allocate.ErrNoMemberZone) {
		t.Errorf("nearby shared malformed data: %v", err)
	}
}

func FuzzMemberData(f *testing.F) {
	f.Add(allocate.EncodeQueues([]allocate.Queue{{"orders", "broker-a", 1}}))
	f.Add(allocate.EncodeZone("hz", []byte("inner")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, data []byte) {
		if queues, err := allocate.DecodeQueues(data); err == nil {
			again, err := allocate.DecodeQueues(allocate.EncodeQueues(queues))
			if err != nil || !slices.Equal(again, queues) {
				t.Errorf("%v came back as %v (%v)", queues, again, err)
			}
		} else if !errors.Is(err, allocate.ErrBadData) {
			t.Errorf("%v is not ErrBadData", err)
		}
		if zone, inner, err := allocate.DecodeZone(data); err == nil {
			zone2, inner2, err := allocate.DecodeZone(allocate.EncodeZone(zone, inner))
			if err != nil || zone2 != zone || !bytes.Equal(inner2, inner) {
				t.Errorf("%q, %x came back as %q, %x (%v)", zone, inner, zone2, inner2, err)
			}
		}
	})
}
