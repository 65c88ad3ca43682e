package coordination

import "fmt"

// Code is the outcome of a request. Numbers and meaning are those of Kafka's protocol.
type Code int16

// What a member does is said at each. To lose is to drop all queues without a commit.
const (
	// OK is no error.
	OK Code = 0
	// LoadInProgress: the coordinator does not know the group's state; the member sends
	// [Resume], or comes again after a while.
	LoadInProgress Code = 14
	// NotAvailable: nobody coordinates the group just now; look it up again.
	NotAvailable Code = 15
	// NotCoordinator: another broker does; look it up again.
	NotCoordinator Code = 16
	// IllegalGeneration: the member missed a rebalance; lose, and join with its id.
	IllegalGeneration Code = 22
	// InconsistentProtocol: no assignor in common, or another kind of group. Final.
	InconsistentProtocol Code = 23
	// UnknownMember: the member was removed; lose, and join without an id.
	UnknownMember Code = 25
	// InvalidSessionTimeout: not within the coordinator's bounds. Final.
	InvalidSessionTimeout Code = 26
	// RebalanceInProgress: join again.
	RebalanceInProgress Code = 27
	// InvalidRequest: out of limits. Final.
	InvalidRequest Code = 42
	// MemberIDRequired: join again with the id in the answer.
	MemberIDRequired Code = 79
	// GroupMaxSize: the group is full. Final.
	GroupMaxSize Code = 81
	// FencedInstance: another process uses the instance id. Final.
	FencedInstance Code = 82
	// FencedEpoch: the member's epoch is not one the coordinator gave; lose, and join
	// with epoch 0.
	FencedEpoch Code = 110
	// UnreleasedInstance: a live member has that instance id; come again later.
	UnreleasedInstance Code = 111
	// UnsupportedAssignor: the coordinator has none of that name. Final.
	UnsupportedAssignor Code = 112
)

// Final reports whether repeating cannot help.
func (c Code) Final() bool {
	switch c {
	case InconsistentProtocol, InvalidSessionTimeout, InvalidRequest, GroupMaxSize, FencedInstance, UnsupportedAssignor:
		return true
	case OK, LoadInProgress, NotAvailable, NotCoordinator, IllegalGeneration, UnknownMember, RebalanceInProgress, MemberIDRequired,
		FencedEpoch, UnreleasedInstance:
	}
	return false
}

func (c Code) String() string {
	switch c {
	case OK:
		return "ok"
	case LoadInProgress:
		return "coordinator load in progress"
	case NotAvailable:
		return "coordinator not available"
	case NotCoordinator:
		return "not coordinator"
	case IllegalGeneration:
		return "illegal generation"
	case InconsistentProtocol:
		return "inconsistent group protocol"
	case UnknownMember:
		return "unknown member id"
	case InvalidSessionTimeout:
		return "invalid session timeout"
	case RebalanceInProgress:
		return "rebalance in progress"
	case InvalidRequest:
		return "invalid request"
	case MemberIDRequired:
		return "member id required"
	case GroupMaxSize:
		return "group max size reached"
	case FencedInstance:
		return "fenced instance id"
	case FencedEpoch:
		return "fenced member epoch"
	case UnreleasedInstance:
		return "unreleased instance id"
	case UnsupportedAssignor:
		return "unsupported assignor"
	}
	return fmt.Sprintf("code(%d)", int16(c))
}
