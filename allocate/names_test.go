package allocate_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tacitmq/tacit/allocate"
)

// TestNamesHoldAllParameters checks the names of the wire: they must stay, and
// give back an equal strategy.
func TestNamesHoldAllParameters(t *testing.T) {
	t.Parallel()
	nearby := func(inner allocate.Strategy, zones map[string]string) allocate.Strategy {
		return must(allocate.NewMachineRoomNearby(inner, zones))
	}
	for want, s := range map[string]allocate.Strategy{
		"averagely":             allocate.Averagely{},
		"averagely-by-circle":   allocate.AveragelyByCircle{},
		"config":                allocate.Config{},
		"rendezvous":            allocate.Rendezvous{},
		"sticky":                allocate.Sticky{},
		"consistent-hash":       must(allocate.NewConsistentHash(10)),
		"consistent-hash(0)":    must(allocate.NewConsistentHash(0)),
		"consistent-hash(1000)": must(allocate.NewConsistentHash(allocate.MaxVirtualNodes)),
		"machine-room(hz,sh)":   must(allocate.NewMachineRoom("sh", "hz", "sh")),
		"machine-room()":        must(allocate.NewMachineRoom("")),
		"machine-room(a%2Cb,c%28%25%29%3D%20%7F,杭州)":    must(allocate.NewMachineRoom("a,b", "c(%)= \x7f", "杭州")),
		"machine-room-nearby":                           nearby(allocate.Averagely{}, nil),
		"machine-room-nearby(sticky)":                   nearby(allocate.Sticky{}, nil),
		"machine-room-nearby(averagely,b1=hz,b2=s%2Ch)": nearby(allocate.Averagely{}, map[string]string{"b2": "s,h", "b1": "hz"}),
		"machine-room-nearby(averagely,=)":              nearby(allocate.Averagely{}, map[string]string{}),
		"machine-room-nearby(machine-room-nearby(machine-room(a,b),x=y),z=)": nearby(
			nearby(must(allocate.NewMachineRoom("a", "b")), map[string]string{"x": "y"}), map[string]string{"z": ""}),
	} {
		if got := s.Name(); got != want {
			t.Errorf("name %q, want %q", got, want)
		}
		if got, err := allocate.ByName(want); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("ByName(%q) = %#v, %v", want, got, err)
		}
	}
}

func TestNamesWithoutParametersAreAllListed(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(allocate.Names()) || len(allocate.Names()) != 8 {
		t.Errorf("names %v", allocate.Names())
	}
	for _, name := range allocate.Names() {
		s, err := allocate.ByName(name)
		if name == "machine-room" {
			if !errors.Is(err, allocate.ErrNoRooms) {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || s.Name() != name {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if got := allocate.Default().Name(); got != "sticky" {
		t.Errorf("default %q", got)
	}
}

func TestWrongNamesAndParametersAreRefused(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{
		"":                                allocate.ErrUnknownStrategy,
		"Sticky":                          allocate.ErrUnknownStrategy,
		"sticky ":                         allocate.ErrUnknownStrategy,
		"sticky()":                        allocate.ErrUnknownStrategy,
		"sticky)":                         allocate.ErrUnknownStrategy,
		"sticky(":                         allocate.ErrUnknownStrategy,
		"averagely(1)":                    allocate.ErrUnknownStrategy,
		"consistent-hash(1,2)":            allocate.ErrUnknownStrategy,
		"consistent-hash(-1)":             allocate.ErrVirtualNodes,
		"consistent-hash(1001)":           allocate.ErrVirtualNodes,
		"consistent-hash(x)":              allocate.ErrVirtualNodes,
		"machine-room":                    allocate.ErrNoRooms,
		"machine-room(%4)":                allocate.ErrUnknownStrategy,
		"machine-room(%zz)":               allocate.ErrUnknownStrategy,
		"machine-room(a b)":               allocate.ErrUnknownStrategy,
		"machine-room(a(b)":               allocate.ErrUnknownStrategy,
		"machine-room(a)b)":               allocate.ErrUnknownStrategy,
		"machine-room-nearby(nothing)":    allocate.ErrUnknownStrategy,
		"machine-room-nearby(sticky,b)":   allocate.ErrUnknownStrategy,
		"machine-room-nearby(sticky,b=%)": allocate.ErrUnknownStrategy,
		strings.Repeat("machine-room-nearby(", 9) + "sticky" + strings.Repeat(")", 9): allocate.ErrUnknownStrategy,
		strings.Repeat("x", 20_000): allocate.ErrUnknownStrategy,
	} {
		if s, err := allocate.ByName(name); !errors.Is(err, want) {
			t.Errorf("ByName(%.50q) = %v, %v; want %v", name, s, err, want)
		}
	}
	if _, err := allocate.NewMachineRoom(); !errors.Is(err, allocate.ErrNoRooms) {
		t.Errorf("machine room without rooms: %v", err)
	}
	if _, err := allocate.NewMachineRoomNearby(nil, nil); !errors.Is(err, allocate.ErrNoInner) {
		t.Errorf("machine room nearby without inner strategy: %v", err)
	}
	for _, n := range []int{-1, allocate.MaxVirtualNodes + 1} {
		if _, err := allocate.NewConsistentHash(n); !errors.Is(err, allocate.ErrVirtualNodes) {
			t.Errorf("%d virtual nodes: %v", n, err)
		}
	}
}

func FuzzByName(f *testing.F) {
	for _, name := range append(allocate.Names(), "machine-room(a%2Cb,c)", "machine-room-nearby(machine-room-nearby(sticky),b=z,c=)") {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s, err := allocate.ByName(name)
		if err != nil {
			return
		}
		again, err := allocate.ByName(s.Name())
		if err != nil || !reflect.DeepEqual(again, s) || again.Name() != s.Name() {
			t.Errorf("%q is %q, again %#v (%v), not %#v", name, s.Name(), again, err, s)
		}
	})
}
