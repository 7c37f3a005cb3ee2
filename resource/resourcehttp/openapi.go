// SPDX-License-Identifier: MPL-2.0

package resourcehttp

import (
	"maps"
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/resource"
)

func describeType(reg resource.Registration) api.ResourceType {
	return api.ResourceType{
		Type: api.FromResourceType(reg.Type), Scope: reg.Scope.String(), Federated: reg.Federated,
		Message: string(reg.Message.ProtoReflect().Descriptor().FullName()),
		Path:    api.ResourcePath + resource.TypeString(reg.Type),
	}
}

// describe returns the OpenAPI document of all types.
func describe(types []resource.Registration) object {
	s := schemas{}
	for _, m := range []string{"ID", "Status"} {
		s.message(pb.File_api_pb_resource_proto.Messages().ByName(protoreflect.Name(m)))
	}
	s["Type"] = object{"type": "object", "properties": object{
		"type":      ref("wanfed.v1.Type"),
		"scope":     object{"type": "string", "enum": []string{"namespace", "partition", "cluster"}},
		"federated": object{"type": "boolean"}, "message": text, "path": text,
	}}
	paths := object{
		api.ResourceTypesPath: object{"get": get("types", "The registered types",
			object{"type": "array", "items": ref("Type")}, nil)},
		api.OpenAPIPath: object{"get": get("openapi", "This document", object{"type": "object"}, nil)},
	}
	for _, reg := range types {
		maps.Copy(paths, s.typePaths(reg))
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "wanfed resources", "version": version.Version,
			"license": object{"name": "MPL-2.0", "identifier": "MPL-2.0"},
			"description": "Resources of every type that this server knows. " +
				"Reads need a certificate of the federation, or come from this machine. Writes need an operator's " +
				"certificate. Errors are one line of text.",
		},
		"paths": paths,
		"components": object{
			"schemas":         s,
			"securitySchemes": object{"certificate": object{"type": "mutualTLS"}},
		},
		"security": []object{{"certificate": []string{}}, {}},
	}
}

var text = object{"type": "string"}

// typePaths returns the paths of one type and adds its schemas.
func (s schemas) typePaths(reg resource.Registration) object {
	typ := resource.TypeString(reg.Type)
	name := reg.Type.Group + "." + reg.Type.GroupVersion + "." + reg.Type.Kind
	s[name] = s.resource(reg, true)
	s[name+".Write"] = s.resource(reg, false)
	s[name+".List"] = object{
		"type": "object", "required": []string{"resources"},
		"properties": object{"resources": object{"type": "array", "items": ref(name)}},
	}
	tags := []string{typ}
	tagged := func(op object) object { op["tags"] = tags; return op }
	list := tagged(get("list."+name, "List or watch "+typ, ref(name+".List"), parameters(reg, opList.params)))
	// With ?watch, the response to a list is a stream of events.
	listed := list["responses"].(object)["200"].(object)["content"].(object)
	listed["text/event-stream"] = object{"schema": text}
	write := object{
		"operationId": "write." + name, "summary": "Create or replace a " + typ,
		"parameters": parameters(reg, opWrite.params),
		"requestBody": object{"required": true, "content": object{"application/json": object{"schema": object{
			"oneOf": []object{ref(name + ".Write"), ref("wanfed.v1.Status")}, // a status with ?status=
		}}}},
		"responses": responses("200", object{"description": "As stored", "content": jsonContent(ref(name))}),
	}
	remove := object{
		"operationId": "delete." + name, "summary": "Delete a " + typ,
		"parameters": parameters(reg, opDelete.params),
		"responses":  responses("204", object{"description": "Deleted, or marked for deletion"}),
	}
	inPath := object{"name": "name", "in": "path", "required": true, "schema": text, "description": "percent-encoded"}
	return object{
		api.ResourcePath + typ: object{"get": list},
		api.ResourcePath + typ + "/{name}": object{
			"parameters": []object{inPath},
			"get": tagged(get("read."+name, "Read one "+typ,
				object{"anyOf": []object{ref(name), ref("Owned")}}, parameters(reg, opRead.params))),
			"put": tagged(write), "delete": tagged(remove),
		},
	}
}

// resource returns the schema of resources of a type, in responses or in
// requests.
func (s schemas) resource(reg resource.Registration, response bool) object {
	data := s.message(reg.Message.ProtoReflect().Descriptor())
	properties := object{
		"id": ref("wanfed.v1.ID"), "owner": ref("wanfed.v1.ID"), "version": text, "generation": text,
		"metadata": object{"type": "object", "additionalProperties": text},
		"status":   object{"type": "object", "additionalProperties": ref("wanfed.v1.Status")},
		"data":     data,
	}
	index := object{"type": "string", "format": "uint64", "readOnly": true}
	for _, name := range []string{"create_index", "modify_index", "primary_modify_index", "primary_epoch"} {
		properties[name] = index
	}
	s["Owned"] = object{
		"type": "object", "description": "with ?owned: resources of all types",
		"properties": object{"resources": object{"type": "array", "items": object{"type": "object"}}},
	}
	required := []string{"data"}
	if response {
		required = []string{"id", "version", "generation", "data"}
	}
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// get returns an operation that reads.
func get(id, summary string, schema object, params []object) object {
	op := object{
		"operationId": id, "summary": summary,
		"responses": responses("200", object{"description": "Done", "content": jsonContent(schema)}),
	}
	if params != nil {
		op["parameters"] = params
	}
	return op
}

func jsonContent(schema object) object { return object{"application/json": object{"schema": schema}} }

// responses returns a successful response and all error responses.
func responses(code string, success object) object {
	out := object{code: success}
	for code, description := range map[int]string{
		400: "The request breaks a rule; the text names field, value and rule", 403: "Not allowed", 404: "Not found",
		409: "The stored version, uid or state is not the expected one",
		413: "Too large", 503: "Nothing was done; try again", 504: "The outcome is unknown",
	} {
		out[strconv.Itoa(code)] = object{"description": description,
			"content": object{"text/plain": object{"schema": text}}}
	}
	return out
}

// parameterHelp describes the parameters. A toggle may have no value.
var parameterHelp = map[string]struct {
	help   string
	toggle bool
}{
	"dc":         {"forward to a server of that datacenter", false},
	"pretty":     {"indent the JSON", true},
	"partition":  {"default: default; in lists, * selects all partitions", false},
	"namespace":  {"default: default; in lists, * selects all namespaces", false},
	"prefix":     {"only names with this prefix", false},
	"uid":        {"only the resource with this uid", false},
	"version":    {"only if this version is stored", false},
	"consistent": {"read everything that was acknowledged before", true},
	"watch":      {"respond with server-sent events: upsert, delete, end-of-snapshot, end", true},
	"owned":      {"list the resources that the resource owns", true},
	"dry-run":    {"check without writing, and return the result", true},
	"status":     {"write the status of this key; the body is a status", false},
}

func parameters(reg resource.Registration, names []string) []object {
	var out []object
	for _, name := range append([]string{"dc", "pretty"}, names...) {
		if name == "namespace" && reg.Scope != resource.ScopeNamespace ||
			name == "partition" && reg.Scope == resource.ScopeCluster {
			continue
		}
		schema := text
		if parameterHelp[name].toggle {
			schema = object{"type": "boolean"}
		}
		p := object{"name": name, "in": "query", "description": parameterHelp[name].help, "schema": schema}
		if parameterHelp[name].toggle {
			p["allowEmptyValue"] = true
		}
		out = append(out, p)
	}
	return out
}

// schemas are the JSON schemas of messages, by full name, in protojson's form.
type schemas map[string]any

type object = map[string]any

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

// wellKnown has the messages with a special form in JSON, except wrappers.
var wellKnown = map[protoreflect.FullName]object{
	"google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
	"google.protobuf.Duration":  {"type": "string", "pattern": `^-?[0-9]+(\.[0-9]+)?s$`},
	"google.protobuf.FieldMask": {"type": "string"},
	"google.protobuf.Empty":     {"type": "object", "maxProperties": 0},
	"google.protobuf.Struct":    {"type": "object"},
	"google.protobuf.ListValue": {"type": "array", "items": object{}},
	"google.protobuf.Value":     {},
	"google.protobuf.Any":       {"type": "object", "properties": object{"@type": text}, "required": []string{"@type"}},
}

// message returns a reference to the schema of m. It adds the schema of m, and
// all schemas to which that schema refers, to s.
func (s schemas) message(m protoreflect.MessageDescriptor) object {
	if known, ok := wellKnown[m.FullName()]; ok {
		return known
	}
	if m.ParentFile().Path() == "google/protobuf/wrappers.proto" { // in JSON, a wrapper is its value
		return s.value(m.Fields().ByName("value"))
	}
	name := string(m.FullName())
	if _, ok := s[name]; ok {
		return ref(name)
	}
	properties := object{}
	// Set the schema before its properties, because a message may contain
	// itself.
	s[name] = object{"type": "object", "properties": properties, "additionalProperties": false}
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

// value returns the schema of one value of a field.
func (s schemas) value(f protoreflect.FieldDescriptor) object {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return s.message(f.Message())
	case protoreflect.EnumKind:
		return enum(f.Enum())
	case protoreflect.BoolKind:
		return object{"type": "boolean"}
	case protoreflect.StringKind:
		return text
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
