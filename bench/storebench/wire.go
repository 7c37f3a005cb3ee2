// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawCodec is the gRPC codec of the benchmark's clients. It sends bytes
// unchanged, and decodes a message only into a *[]byte.
type rawCodec struct{}

var _ encoding.CodecV2 = rawCodec{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("message is a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if b, ok := v.(*[]byte); ok {
		*b = data.Materialize()
	}
	return nil
}

// discard is the destination of responses that are not needed.
type discard struct{}

// bytesField appends field n with value v.
func bytesField(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

func varintField(b []byte, n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

// countFields returns how many times a message has field n, and whether it has
// field m.
func countFields(b []byte, n, m protowire.Number) (count int, has bool) {
	for len(b) > 0 {
		num, typ, size := protowire.ConsumeTag(b)
		if size < 0 {
			return count, has
		}
		value := protowire.ConsumeFieldValue(num, typ, b[size:])
		if value < 0 {
			return count, has
		}
		if num == n {
			count++
		}
		has = has || num == m
		b = b[size+value:]
	}
	return count, has
}
