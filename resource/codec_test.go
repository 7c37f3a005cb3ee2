// SPDX-License-Identifier: MPL-2.0

package resource

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
)

// What Codec makes of a message is what protobuf makes of it; bytes that are there already are not copied.
func TestCodec(t *testing.T) {
	ev := &pb.WatchEvent{Event: &pb.WatchEvent_Upsert_{Upsert: &pb.WatchEvent_Upsert{Resource: &pb.Resource{Version: "7"}}}}
	raw, err := proto.Marshal(ev)
	if err != nil {
		t.Fatal(err)
	}
	encoded, both := new(pb.WatchEvent), proto.CloneOf(ev)
	encoded.ProtoReflect().SetUnknown(raw)
	both.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // of a later version
	for name, m := range map[string]proto.Message{
		"event": ev, "encoded event": encoded, "event with more": both, "empty event": new(pb.WatchEvent), "another": &pb.ReadRequest{Id: &pb.ID{Name: "x"}},
	} {
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		data, err := Codec().Marshal(m)
		if err != nil || string(data.Materialize()) != string(want) {
			t.Errorf("%s: %x (%v), want %x", name, data.Materialize(), err, want)
		}
		back := m.ProtoReflect().New().Interface()
		if err := Codec().Unmarshal(data, back); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	data, err := Codec().Marshal(encoded)
	if err != nil || len(data) != 1 || &data[0].ReadOnlyData()[0] != &raw[0] {
		t.Error("an encoded event was copied")
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = Codec().Marshal(encoded) }); n > 3 {
		t.Errorf("%v allocations", n)
	}
}
