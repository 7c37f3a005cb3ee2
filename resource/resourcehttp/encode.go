// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"bytes"
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/resource"
)

// encode gives r as the HTTP API has it. Data that cannot be decoded, since it is of a type that this server does not know, is
// {"@type": ..., "value": base64}.
func (h *handler) encode(r *pb.Resource) api.Resource {
	data, err := h.dataOf(r)
	if err != nil {
		data, _ = json.Marshal(map[string]any{"@type": r.GetData().GetTypeUrl(), "value": r.GetData().GetValue()})
	}
	return api.FromResource(r, data)
}

func (h *handler) dataOf(r *pb.Resource) (json.RawMessage, error) {
	reg, err := h.Registry.Lookup(r.GetId().GetType())
	if err != nil {
		return nil, err
	}
	msg := newMessage(reg)
	if err := r.GetData().UnmarshalTo(msg); err != nil {
		return nil, err
	}
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg) // marshal takes out its random spaces
}

func newMessage(reg resource.Registration) proto.Message {
	return reg.Message.ProtoReflect().New().Interface()
}

// marshal gives v as JSON in one line, or, if pretty, in many, which begin with prefix.
func marshal(v any, prefix string, pretty bool) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if pretty {
		enc.SetIndent(prefix, "  ")
	}
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
