// Package tools pins the programs that build and check this project: buf and
// the protobuf plugins, golangci-lint, gofumpt, benchstat. They live in a
// module of their own so that none of their dependencies enters the SDK's.
//
//	go tool -modfile=internal/tools/go.mod NAME
package tools
