// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"google.golang.org/protobuf/reflect/protoreflect"
)

// schemas collects the JSON schemas of messages, by full name, as protojson reads and writes them.
type schemas map[string]any

type object = map[string]any

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// wellKnown are the messages that protojson has a form of its own for.
var wellKnown = map[protoreflect.FullName]object{
	"google.protobuf.Timestamp":   {"type": "string", "format": "date-time"},
	"google.protobuf.Duration":    {"type": "string", "pattern": `^-?[0-9]+(\.[0-9]+)?s$`},
	"google.protobuf.FieldMask":   {"type": "string"},
	"google.protobuf.Empty":       {"type": "object", "maxProperties": 0},
	"google.protobuf.Struct":      {"type": "object"},
	"google.protobuf.ListValue":   {"type": "array", "items": object{}},
	"google.protobuf.Value":       {},
	"google.protobuf.Any":         {"type": "object", "properties": object{"@type": object{"type": "string"}}, "required": []string{"@type"}},
	"google.protobuf.BoolValue":   {"type": "boolean"},
	"google.protobuf.StringValue": {"type": "string"},
	"google.protobuf.BytesValue":  {"type": "string", "contentEncoding": "base64"},
	"google.protobuf.DoubleValue": {"type": "number"},
	"google.protobuf.FloatValue":  {"type": "number"},
	"google.protobuf.Int32Value":  {"type": "integer", "format": "int32"},
	"google.protobuf.UInt32Value": {"type": "integer", "format": "uint32"},
	"google.protobuf.Int64Value":  {"type": "string", "format": "int64"},
	"google.protobuf.UInt64Value": {"type": "string", "format": "uint64"},
}

// message returns a reference to m's schema, which it adds with all that it needs.
func (s schemas) message(m protoreflect.MessageDescriptor) object {
	if known, ok := wellKnown[m.FullName()]; ok {
		return known
	}
	name := string(m.FullName())
	if _, ok := s[name]; ok {
		return ref(name)
	}
	properties := object{}
	s[name] = object{"type": "object", "properties": properties, "additionalProperties": false} // before its fields: it may hold itself
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		properties[string(f.Name())] = s.field(f)
	}
	return ref(name)
}

func (s schemas) field(f protoreflect.FieldDescriptor) object {
	switch {
	case f.IsMap():
		return object{"type": "object", "additionalProperties": s.value(f.MapValue())}
	case f.IsList():
		return object{"type": "array", "items": s.value(f)}
	}
	return s.value(f)
}

// value is one of a field.
func (s schemas) value(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return s.message(f.Message())
	case protoreflect.EnumKind:
		return enum(f.Enum())
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return object{"type": "string"}
	case protoreflect.BytesKind:
		return object{"type": "string", "contentEncoding": "base64"}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return object{"type": "number"}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return object{"type": "string", "format": "int64"}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return object{"type": "string", "format": "uint64"}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return object{"type": "integer", "format": "uint32", "minimum": 0}
	}
	return object{"type": "integer", "format": "int32"}
}

func enum(e protoreflect.EnumDescriptor) object {
	var names []string
	for i := range e.Values().Len() {
		names = append(names, string(e.Values().Get(i).Name()))
	}
	if e.FullName() == "google.protobuf.NullValue" {
		return object{"type": "null"}
	}
	return object{"type": "string", "enum": names}
}
