// Package protofield appends single fields of protobuf messages, for those that
// write a message's wire form themselves. Of proto3's scalars the zero value is
// absent. Sizes are those of fields with numbers up to 15, whose tags take a byte.
package protofield

import "google.golang.org/protobuf/encoding/protowire"

// AppendUint appends a varint field.
func AppendUint(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// AppendBool appends a bool field.
func AppendBool(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return AppendUint(b, field, 1)
}

// AppendString appends a string field; whether it is UTF-8 is the caller's care.
func AppendString(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

// SizeUint is the size of a varint field.
func SizeUint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

// SizeString is the size of a string field.
func SizeString(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}
