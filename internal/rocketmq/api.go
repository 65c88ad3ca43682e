package rocketmq

import (
	"strings"
	"time"

	"github.com/tacitmq/tacit/allocate"
)

// retryPrefix begins the name of a group's retry topic.
const retryPrefix = "%RETRY%"

// RetryTopic is the topic every clustering push consumer of a group subscribes to as well.
func RetryTopic(group string) string { return retryPrefix + group }

func isRetry(topic string) bool { return strings.HasPrefix(topic, retryPrefix) }

// Request is what a client sends to a broker or name server.
//
//sumtype:decl
type Request interface {
	request()
	// Size is that of the frame in bytes, see [frameSize].
	Size() int
}

// Requests, with their codes.
type (
	// Heartbeat (34) tells a broker of the client's group.
	Heartbeat struct {
		ClientID, Group string
		Topics          []string
	}
	// Unregister (35) takes the client out of the group, or out of its producers.
	Unregister struct {
		ClientID, Group string
		Producer        bool
	}
	// ConsumerList (38) asks for the ids of a group.
	ConsumerList struct{ Group string }
	// QueryOffset (14) asks where the group is.
	QueryOffset struct {
		Group string
		Queue allocate.Queue
	}
	// UpdateOffset (15) saves where it is; it has no answer.
	UpdateOffset struct {
		Group  string
		Queue  allocate.Queue
		Offset int64
	}
	// RouteQuery (105) asks a name server for a topic's route.
	RouteQuery struct{ Topic string }
)

func (Heartbeat) request()    {}
func (Unregister) request()   {}
func (ConsumerList) request() {}
func (QueryOffset) request()  {}
func (UpdateOffset) request() {}
func (RouteQuery) request()   {}

// Answer is what comes back.
//
//sumtype:decl
type Answer interface {
	answer()
	// Size is that of the frame in bytes, see [frameSize].
	Size() int
}

// Answers.
type (
	// Done is success without content.
	Done struct{}
	// Refused is any error: no such topic, no consumer of the group.
	Refused struct{}
	// IDs are a group's client ids: of each connection, so there may be doubles. Shared:
	// not to be changed.
	IDs struct{ IDs []string }
	// Offset is where the group is.
	Offset struct{ Offset int64 }
	// Routed answers RouteQuery.
	Routed struct{ Route Route }
)

func (Done) answer()    {}
func (Refused) answer() {}
func (IDs) answer()     {}
func (Offset) answer()  {}
func (Routed) answer()  {}

// Notice (40) tells a client that the ids of a group changed; it has no answer.
type Notice struct{ Group string }

// Route is where a topic is: its brokers, and its readable queues in order. Shared: not to
// be changed.
type Route struct {
	Brokers []string
	Queues  []allocate.Queue
}

// Event is what a client is told.
//
//sumtype:decl
type Event interface{ event() }

// Events of a client.
type (
	// Start is the first event: the consumer is built and started.
	Start struct{}
	// Wake says that the time of the last WakeAt has come.
	Wake struct{}
	// Answered ends a Call.
	Answered struct {
		ID     uint64
		Answer Answer
	}
	// Failed ends a Call that has no answer: a connection that could not be made or
	// broke, or a timeout.
	Failed struct{ ID uint64 }
	// Notified is the arrival of a Notice.
	Notified struct{}
	// Connected says that a connection to a broker became active.
	Connected struct{ Broker string }
	// Pulled says that a pull for the queue begins, or would but for flow control.
	Pulled struct{ Queue allocate.Queue }
	// Shutdown stops the consumer in order.
	Shutdown struct{}
)

func (Start) event()     {}
func (Wake) event()      {}
func (Answered) event()  {}
func (Failed) event()    {}
func (Notified) event()  {}
func (Connected) event() {}
func (Pulled) event()    {}
func (Shutdown) event()  {}

// Effect is what a client wants done.
//
//sumtype:decl
type Effect interface{ effect() }

// Effects of a client.
type (
	// WakeAt asks for a Wake then; it replaces an earlier one.
	WakeAt struct{ At time.Time }
	// Call sends a request, over a connection that is made if there is none, and is ended
	// by Answered or Failed within CallTimeout. An empty To is the name server.
	Call struct {
		ID      uint64
		To      string
		Request Request
	}
	// Save sends where the group is in a queue: the lowest offset not yet done. One-way.
	Save struct{ Queue allocate.Queue }
	// Take puts a queue into the table; it is pulled, from At on, beginning with Offset.
	Take struct {
		Queue  allocate.Queue
		Offset int64
		At     time.Time
	}
	// Drop takes a queue out of the table: nothing more is handed out, results of running
	// listeners are thrown away. A Save came before it.
	Drop struct{ Queue allocate.Queue }
	// Halt stops the listener pool.
	Halt struct{}
	// Stopped ends the client; its connections are closed.
	Stopped struct{}
)

func (WakeAt) effect()  {}
func (Call) effect()    {}
func (Save) effect()    {}
func (Take) effect()    {}
func (Drop) effect()    {}
func (Halt) effect()    {}
func (Stopped) effect() {}
