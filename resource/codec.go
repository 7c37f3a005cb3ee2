// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers "proto"
	"google.golang.org/grpc/mem"

	"github.com/wanfed/wanfed/api/pb"
)

// Codec is gRPC's for protobuf, for a server with a Service: an event of a PushedWatch goes out as it is, neither measured nor copied,
// to however many who watch.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if ev, ok := v.(*pb.WatchEvent); ok && ev.Event == nil {
		if b := ev.ProtoReflect().GetUnknown(); len(b) > 0 {
			return mem.BufferSlice{mem.SliceBuffer(b)}, nil
		}
	}
	return c.CodecV2.Marshal(v)
}
