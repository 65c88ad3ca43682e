package sim

import (
	"github.com/tacitmq/tacit/allocate"
	"github.com/tacitmq/tacit/broker/group"
)

// Model is how the members of a world share queues.
type Model int

// Models.
const (
	// Decentralized is Tacit's: the engine in members, the registry in brokers.
	Decentralized Model = iota
	// RocketMQ is that of Apache RocketMQ 5.3, see package rocketmq.
	RocketMQ
	// Coordinated is that of Kafka: the engine of package coordinated in members, the
	// coordinator in brokers.
	Coordinated
)

// program is what runs in a member's process in place of the engine, for one life.
type program interface {
	start()
	// leave begins a graceful stop; the program ends its member when it has.
	leave()
	disconnected(s *stream)
	// hangUp closes all connections: the process has died, and its host says so.
	hangUp()
	// show tells Watch who owns what, after the process was paused, went on or ended.
	show()
}

// service is what a broker does with its streams in place of the registry, for one life.
type service interface {
	start()
	// stop says that the process has died; silent: its host with it.
	stop(silent bool)
	opened(s *stream, id group.SessionID)
	ended(s *stream)
	// changed says that the topics on its disk are others now.
	changed()
	// stored says that a queue has one more message.
	stored(q allocate.Queue)
}

func (m Model) program(of *Member) program {
	switch m {
	case RocketMQ:
		return newRocketMember(of)
	case Coordinated:
		return newCoordMember(of)
	case Decentralized:
	}
	return nil
}

func (m Model) service(of *Broker) service {
	switch m {
	case RocketMQ:
		return newRocketBroker(of)
	case Coordinated:
		return newCoordBroker(of)
	case Decentralized:
	}
	return nil
}
