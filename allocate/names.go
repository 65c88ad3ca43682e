package allocate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	nameAveragely      = "averagely"
	nameCircle         = "averagely-by-circle"
	nameConfig         = "config"
	nameMachineRoom    = "machine-room"
	nameConsistentHash = "consistent-hash"
	nameNearby         = "machine-room-nearby"
	nameRendezvous     = "rendezvous"
	nameSticky         = "sticky"

	// maxName and maxNesting bound what a name from the network can cost.
	maxName    = 16 << 10
	maxNesting = 4
)

// Default returns the strategy that is used where none is chosen: [Sticky].
func Default() Strategy { return Sticky{} }

// Names returns the names of all strategies without their parameters, sorted.
func Names() []string {
	return []string{
		nameAveragely, nameCircle, nameConfig, nameConsistentHash,
		nameMachineRoom, nameNearby, nameRendezvous, nameSticky,
	}
}

// ByName returns the strategy with a name that a member announced or a user
// wrote. A name holds all parameters, so that members whose strategies have one
// name compute the same, and ByName(s.Name()) equals s:
//
//	averagely  averagely-by-circle  config  rendezvous  sticky
//	consistent-hash                     10 virtual nodes
//	consistent-hash(100)                so many virtual nodes
//	machine-room(hz,sh)                 the rooms
//	machine-room-nearby                 averagely within zones named by brokers
//	machine-room-nearby(sticky)         another strategy within zones
//	machine-room-nearby(sticky,b1=hz)   zones of brokers from a list
//
// In rooms, brokers and zones, "%", "(", ")", ",", "=", white space and control
// characters are written as "%" and two hexadecimal digits for each byte.
//
// A name that is too long, of no strategy or with parameters that do not fit is
// [ErrUnknownStrategy] or the error of the constructor.
func ByName(name string) (Strategy, error) {
	if len(name) > maxName {
		return nil, fmt.Errorf("name of %d bytes, more than %d: %w", len(name), maxName, ErrUnknownStrategy)
	}
	return byName(name, maxNesting)
}

func byName(name string, nesting int) (Strategy, error) {
	base, args, ok := splitName(name)
	if !ok || nesting == 0 {
		return nil, fmt.Errorf("%q: %w", name, ErrUnknownStrategy)
	}
	switch {
	case base == nameMachineRoom:
		rooms, err := unescapeAll(args)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		if len(rooms) == 0 {
			return nil, fmt.Errorf("%q: %w, write machine-room(room,…)", name, ErrNoRooms)
		}
		return newMachineRoom(rooms), nil
	case base == nameNearby:
		return nearbyByName(name, args, nesting)
	case base == nameConsistentHash && len(args) <= 1:
		nodes := DefaultVirtualNodes
		if len(args) == 1 {
			var err error
			if nodes, err = strconv.Atoi(args[0]); err != nil {
				return nil, fmt.Errorf("%q: virtual nodes %q: %w", name, args[0], ErrVirtualNodes)
			}
		}
		s, err := NewConsistentHash(nodes)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		return s, nil
	case len(args) > 0:
		return nil, fmt.Errorf("%q: %w", name, ErrUnknownStrategy)
	}
	switch base {
	case nameAveragely:
		return Averagely{}, nil
	case nameCircle:
		return AveragelyByCircle{}, nil
	case nameConfig:
		return Config{}, nil
	case nameRendezvous:
		return Rendezvous{}, nil
	case nameSticky:
		return Sticky{}, nil
	}
	return nil, fmt.Errorf("%q: %w", name, ErrUnknownStrategy)
}

func nearbyByName(name string, args []string, nesting int) (Strategy, error) {
	if len(args) == 0 {
		return NewMachineRoomNearby(Averagely{}, nil)
	}
	inner, err := byName(args[0], nesting-1)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	if len(args) == 1 {
		return NewMachineRoomNearby(inner, nil)
	}
	zones := make(map[string]string, len(args)-1)
	if !slices.Equal(args[1:], []string{"="}) {
		for _, arg := range args[1:] {
			broker, zone, ok := strings.Cut(arg, "=")
			pair, err := unescapeAll([]string{broker, zone})
			if !ok || err != nil {
				return nil, fmt.Errorf("%q: zone %q: %w", name, arg, ErrUnknownStrategy)
			}
			zones[pair[0]] = pair[1]
		}
	}
	return NewMachineRoomNearby(inner, zones)
}

func formatName(base string, args ...string) string {
	if len(args) == 0 {
		return base
	}
	return base + "(" + strings.Join(args, ",") + ")"
}

// splitName splits base(arg,arg) at the commas outside inner parentheses.
func splitName(name string) (base string, args []string, ok bool) {
	base, list, ok := strings.Cut(name, "(")
	if !ok {
		return name, nil, !strings.Contains(name, ")")
	}
	list, ok = strings.CutSuffix(list, ")")
	if !ok {
		return "", nil, false
	}
	depth, from := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '(':
			depth++
		case ')':
			depth--
		case ',':
			if depth == 0 {
				args = append(args, list[from:i])
				from = i + 1
			}
		}
		if depth < 0 {
			return "", nil, false
		}
	}
	return base, append(args, list[from:]), depth == 0
}

func escapeAll(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = escape(s)
	}
	return out
}

func unescapeAll(list []string) ([]string, error) {
	out := make([]string, len(list))
	for i, s := range list {
		var ok bool
		if out[i], ok = unescape(s); !ok {
			return nil, fmt.Errorf("parameter %q: %w", s, ErrUnknownStrategy)
		}
	}
	return out, nil
}

func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if reserved(s[i]) {
			b.Write([]byte{'%', hex[s[i]>>4], hex[s[i]&15]})
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			if reserved(s[i]) {
				return "", false
			}
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", false
		}
		c, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), true
}

func reserved(c byte) bool { return c <= ' ' || c == 0x7f || strings.IndexByte("%(),=", c) >= 0 }
