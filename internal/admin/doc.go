// Package admin asks all brokers of a cluster and makes one answer of theirs: it
// is what tools are built on.
//
// Nobody in a cluster knows everything. Name servers say which brokers there
// are; each broker knows its own queues, the leases of them and the members that
// have a session with it. Every call here asks all that matter at once, each
// bounded by [Config.Timeout], and merges. A broker or name server that does not
// answer is named in the result, as a [Failure], and never spoils what the
// others said; a call returns an error only if nothing can be said at all, or if
// the request itself is wrong.
//
// The structs are made to be printed as JSON: times in RFC 3339, durations in
// seconds, null for what is not known.
package admin
