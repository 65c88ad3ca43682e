// Package e2e runs real processes on real sockets and a real disk, and ends them
// with real signals: make e2e. Everything is in test files behind the build tag
// e2e. The processes under test are cmd/nameserver and cmd/broker and, built on
// the public SDK alone, the consumer and producer programs below internal.
package e2e
