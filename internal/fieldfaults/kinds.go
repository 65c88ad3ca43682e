package main

import (
	"fmt"
	"strconv"
)

// kind is one family of faults: what its scenarios have in common, as a rule.
type kind struct {
	name  string // the three letters in an id
	title string
	rule  string
	count int   // scenarios are numbered from 1 to count
	must  []int // numbers of those that lose, repeat or reorder messages: each has a test
}

// kinds returns every kind of fault, in the order of the page.
func kinds() []kind {
	return []kind{
		{"OWN", "Queues without owner or with two", "In a settled group every readable queue of every subscribed topic has exactly one owner among the live members.", 7, []int{1, 2, 4, 5}},
		{"IDN", "Client identity", "Two live members are never taken for one, and one is never taken for two.", 5, []int{1, 2}},
		{"SUB", "Subscriptions within a group", "Different or changing subscriptions in a group never lose messages silently.", 6, []int{1, 2, 3}},
		{"RTE", "Route changes: brokers, queues, topics", "Every change of brokers, queues and topics reaches every client within a known time.", 13, []int{1, 2, 6, 7, 8}},
		{"NSV", "Name server faults, restarts, address lists", "Name servers may restart, disagree, move or be replaced without lasting harm.", 9, []int{2}},
		{"OFF", "Offsets: start, commit, rollback", "Stored progress moves forward only, never past unfinished work, and never falls back because of a fault.", 12, []int{1, 3, 5, 6, 9, 10}},
		{"HND", "Handover of a queue between members", "A queue changes hands without loss and with bounded, counted repeats.", 8, []int{1, 2, 6, 8}},
		{"ORD", "Order and queue locks", "In orderly mode one handler at a time per queue, in sequence, also across a handover.", 8, []int{2, 5, 7}},
		{"STL", "Consumption that stops or waits", "Nothing but an empty queue or the user stops consumption; after any fault it resumes without a restart.", 12, nil},
		{"MEM", "Dead, false-dead and restless members", "Dead members leave within a known time, live ones stay, and changes are worked off calmly.", 8, []int{3}},
		{"LIF", "Start, shutdown, restart in process, leaks", "Shutdown finishes or returns started work, frees everything, and can be followed by a new start.", 12, []int{1, 2, 12}},
		{"ALC", "Allocation strategies", "Each strategy is complete, deterministic, balanced as it promises, and moves as little as it promises.", 7, []int{1}},
		{"CTL", "Pause, resume, seek, reset, and what tools show", "What operators and applications order happens exactly, survives a rebalance as documented, and is shown truthfully.", 9, []int{3, 4, 6}},
		{"RBS", "Panics, races, malformed input", "No input and no timing ends a process or corrupts data.", 8, []int{1, 2, 3, 5, 6}},
		{"STO", "Disk, damaged files, clocks", "Full disks, damaged files and wrong clocks cause errors, not silent loss.", 7, []int{1, 4, 7}},
		{"SEC", "TLS and access control", "Wrong or changing credentials give clear errors and never silent loss or blocked queues.", 4, nil},
		{"SCL", "Many groups, topics, clients, large messages", "Cost grows with the work, not with the square of the number of parties.", 6, nil},
	}
}

// id is one scenario, as F-OWN-01.
type id struct {
	kind string
	n    int
}

func (i id) String() string { return fmt.Sprintf("F-%s-%02d", i.kind, i.n) }

// parseID reads the two middle parts of a test's name, as OWN and 01, and
// refuses a scenario that does not exist.
func parseID(name, number string) (id, error) {
	n, err := strconv.Atoi(number)
	if err != nil {
		return id{}, fmt.Errorf("number of F-%s-%s: %w", name, number, err)
	}
	for _, k := range kinds() {
		if k.name == name {
			if n < 1 || n > k.count {
				return id{}, fmt.Errorf("scenario F-%s-%s: %s has scenarios 01 to %02d", name, number, name, k.count)
			}
			return id{name, n}, nil
		}
	}
	return id{}, fmt.Errorf("scenario F-%s-%s: no kind %s", name, number, name)
}
