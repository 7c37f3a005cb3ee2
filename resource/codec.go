// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers "proto"
	"google.golang.org/grpc/mem"

	"github.com/wanfed/wanfed/api/pb"
)

// Codec returns gRPC's codec for protobuf with a cache of encoded watch events.
// A server with a Service uses the codec to encode a recent event once for all
// watches.
func Codec() encoding.CodecV2 { return &codec{CodecV2: encoding.GetCodecV2("proto")} }

type codec struct {
	encoding.CodecV2
	events [64]atomic.Pointer[encodedEvent] // by store index, modulo 64
}

// maxCachedEvent bounds an event that the codec caches, in bytes.
const maxCachedEvent = 64 << 10

// encodedEvent is the encoding of an event, which is immutable.
type encodedEvent struct {
	event *pb.WatchEvent
	data  mem.SliceBuffer
}

// Marshal implements encoding.CodecV2.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	ev, ok := v.(*pb.WatchEvent)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	index := max(ev.GetUpsert().GetResource().GetModifyIndex(), ev.GetDelete().GetResource().GetModifyIndex())
	slot := &c.events[index%uint64(len(c.events))]
	if e := slot.Load(); e != nil && e.event == ev {
		return mem.BufferSlice{e.data}, nil
	}
	out, err := c.CodecV2.Marshal(v)
	if err != nil || out.Len() > maxCachedEvent {
		return out, err
	}
	e := &encodedEvent{event: ev, data: out.Materialize()}
	out.Free()
	slot.Store(e)
	return mem.BufferSlice{e.data}, nil
}
