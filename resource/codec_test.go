// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// upsert returns an event with the store index and the version of a resource.
func upsert(index uint64, version string) *pb.WatchEvent {
	r := &pb.Resource{Version: version, ModifyIndex: index}
	return &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: r}}}
}

// TestCodec_EncodesAsProtobuf checks that the codec encodes like package proto,
// even if events share a slot of its cache.
func TestCodec_EncodesAsProtobuf(t *testing.T) {
	c := Codec()
	withUnknown := upsert(7, "7")
	withUnknown.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // a field of a later version of wanfed
	for name, m := range map[string]proto.Message{
		"event": upsert(7, "7"), "event in the same slot": upsert(7+64, "71"), "event with unknown fields": withUnknown,
		"large event": upsert(7, strings.Repeat("x", maxCachedEvent)), "empty event": new(pb.WatchEvent),
		"deletion": &pb.WatchEvent{Event: &pb.WatchEvent_Delete_{
			Delete: &pb.WatchEvent_Delete{Resource: &pb.Resource{ModifyIndex: 7}},
		}},
		"another message": &pb.ReadRequest{Id: &pb.ID{Name: "x"}},
	} {
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			data, err := c.Marshal(m)
			if err != nil || string(data.Materialize()) != string(want) {
				t.Errorf("Marshal(%s) = %x, %v, want %x", name, data.Materialize(), err, want)
			}
			decoded := m.ProtoReflect().New().Interface()
			if err := c.Unmarshal(data, decoded); err != nil || !proto.Equal(decoded, m) {
				t.Errorf("Unmarshal(%s) = %v, %v, want %v", name, decoded, err, m)
			}
		}
	}
}

// TestCodec_EncodesEventOnce checks that two calls of Marshal share the
// encoding of an event.
func TestCodec_EncodesEventOnce(t *testing.T) {
	c, ev := Codec(), upsert(7, "7")
	first, err := c.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Marshal(ev)
	if err != nil || &first[0].ReadOnlyData()[0] != &second[0].ReadOnlyData()[0] {
		t.Errorf("second Marshal() = another encoding, %v, want the same memory", err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Marshal(ev) }); n > 3 {
		t.Errorf("Marshal() of an encoded event makes %v allocations, want at most 3", n)
	}
}
