package batch

import "github.com/tacitmq/tacit/allocate"

// Hash returns the hash of a tag or key as it stands in a batch: that of the
// wire contract (see [allocate.Hash]) over the one string.
func Hash(s string) uint64 { return allocate.NewHash().String(s).Sum64() }
