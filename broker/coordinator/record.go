package coordinator

import (
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/coordination"
)

// Kind tells records of a group apart.
type Kind uint8

// The kinds of records.
const (
	ClassicKind Kind = iota
	ConsumerGroupKind
	ConsumerMemberKind
	ConsumerTargetKind
	ConsumerCurrentKind
)

// Key names a record. MemberID is empty for those of a whole group.
type Key struct {
	Group    string
	Kind     Kind
	MemberID string
}

// Compare orders keys by group, kind and member id.
func (k Key) Compare(o Key) int {
	if c := strings.Compare(k.Group, o.Group); c != 0 {
		return c
	}
	if k.Kind != o.Kind {
		return int(k.Kind) - int(o.Kind)
	}
	return strings.Compare(k.MemberID, o.MemberID)
}

// Record is a stored part of a group's state; a later one with the same key
// replaces it.
//
//sumtype:decl
type Record interface {
	Key() Key
	record()
}

type (
	// Classic is the last completed generation of a classic group.
	Classic struct {
		Group      string
		Generation coordination.Generation
		Assignor   string
		Leader     string          // member id
		Members    []ClassicMember // in the order in which they joined; none: the group is empty
	}
	// ConsumerGroup is the head of a group of the consumer protocol.
	ConsumerGroup struct {
		Group       string
		Epoch       coordination.Generation
		TargetEpoch coordination.Generation
		Assignor    string // that made the target
	}
	// ConsumerMember is what a member said of itself.
	ConsumerMember struct {
		Group, MemberID  string
		Instance         string
		ClientID         string
		Rack             string
		RebalanceTimeout time.Duration
		Topics           []string // sorted
		Assignor         string
	}
	// ConsumerTarget is what a member is to have.
	ConsumerTarget struct {
		Group, MemberID string
		Queues          []allocate.Queue // sorted
	}
	// ConsumerCurrent is what a member has.
	ConsumerCurrent struct {
		Group, MemberID string
		Epoch, Previous coordination.Generation
		Assigned        []allocate.Queue // sorted
		Revoking        []allocate.Queue // sorted; to be given up
		Away            bool             // a static member that left for a while
	}
)

// ClassicMember is a member of a classic generation.
type ClassicMember struct {
	MemberID         string
	Instance         string
	ClientID         string
	SessionTimeout   time.Duration
	RebalanceTimeout time.Duration
	Assignors        []string
	Subscription     coordination.Subscription
	Assigned         []allocate.Queue // sorted
}

// Key returns the record's name.
func (r Classic) Key() Key { return Key{Group: r.Group, Kind: ClassicKind} }

// Key returns the record's name.
func (r ConsumerGroup) Key() Key { return Key{Group: r.Group, Kind: ConsumerGroupKind} }

// Key returns the record's name.
func (r ConsumerMember) Key() Key { return Key{r.Group, ConsumerMemberKind, r.MemberID} }

// Key returns the record's name.
func (r ConsumerTarget) Key() Key { return Key{r.Group, ConsumerTargetKind, r.MemberID} }

// Key returns the record's name.
func (r ConsumerCurrent) Key() Key { return Key{r.Group, ConsumerCurrentKind, r.MemberID} }

func (Classic) record()         {}
func (ConsumerGroup) record()   {}
func (ConsumerMember) record()  {}
func (ConsumerTarget) record()  {}
func (ConsumerCurrent) record() {}
