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

// describe makes the OpenAPI document of all types.
func describe(types []resource.Registration) object {
	s := schemas{}
	for _, m := range []string{"ID", "Status"} {
		s.message(pb.File_api_pb_resource_proto.Messages().ByName(protoreflect.Name(m)))
	}
	s["Type"] = object{"type": "object", "properties": object{
		"type": ref("wanfed.v1.Type"), "scope": object{"type": "string", "enum": []string{"namespace", "partition", "cluster"}},
		"federated": object{"type": "boolean"}, "message": text, "path": text,
	}}
	paths := object{
		api.ResourceTypesPath: object{"get": get("types", "The registered types", "application/json", object{"type": "array", "items": ref("Type")}, nil)},
		api.OpenAPIPath:       object{"get": get("openapi", "This document", "application/json", object{"type": "object"}, nil)},
	}
	for _, reg := range types {
		maps.Copy(paths, s.typePaths(reg))
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "wanfed resources", "version": version.Version, "license": object{"name": "MPL-2.0", "identifier": "MPL-2.0"},
			"description": "Resources of every type that this server knows. Reading needs a certificate of the federation, or this machine; " +
				"writing an operator's certificate. Errors are one line of text.",
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

// typePaths are the paths of one type, and its schemas.
func (s schemas) typePaths(reg resource.Registration) object {
	typ := resource.TypeString(reg.Type)
	name := reg.Type.Group + "." + reg.Type.GroupVersion + "." + reg.Type.Kind
	s[name] = s.resource(reg, true)
	s[name+".Write"] = s.resource(reg, false)
	s[name+".List"] = object{"type": "object", "properties": object{"resources": object{"type": "array", "items": ref(name)}}, "required": []string{"resources"}}
	tags := []string{typ}
	tagged := func(op object) object { op["tags"] = tags; return op }
	list := tagged(get("list."+name, "List or watch "+typ, "application/json", ref(name+".List"), parameters(reg, opList.params)))
	list["responses"].(object)["200"].(object)["content"].(object)["text/event-stream"] = object{"schema": text} // ?watch
	write := object{
		"operationId": "write." + name, "summary": "Create or replace a " + typ, "parameters": parameters(reg, opWrite.params),
		"requestBody": object{"required": true, "content": object{"application/json": object{"schema": object{
			"oneOf": []object{ref(name + ".Write"), ref("wanfed.v1.Status")}, // the latter with ?status=
		}}}},
		"responses": responses(object{"description": "As stored", "content": object{"application/json": object{"schema": ref(name)}}}, "200"),
	}
	remove := object{
		"operationId": "delete." + name, "summary": "Delete a " + typ, "parameters": parameters(reg, opDelete.params),
		"responses": responses(object{"description": "It is not there, or marked"}, "204"),
	}
	inPath := object{"name": "name", "in": "path", "required": true, "schema": text, "description": "percent-encoded"}
	return object{
		api.ResourcePath + typ: object{"get": list},
		api.ResourcePath + typ + "/{name}": object{
			"parameters": []object{inPath},
			"get":        tagged(get("read."+name, "Read one "+typ, "application/json", object{"anyOf": []object{ref(name), ref("Owned")}}, parameters(reg, opRead.params))),
			"put":        tagged(write), "delete": tagged(remove),
		},
	}
}

// resource is the schema of a type's resources, as they are answered or written.
func (s schemas) resource(reg resource.Registration, answered bool) object {
	data := s.message(reg.Message.ProtoReflect().Descriptor())
	properties := object{
		"id": ref("wanfed.v1.ID"), "owner": ref("wanfed.v1.ID"), "version": text, "generation": text,
		"metadata": object{"type": "object", "additionalProperties": text},
		"status":   object{"type": "object", "additionalProperties": ref("wanfed.v1.Status")},
		"data":     data,
	}
	index := object{"type": "string", "format": "uint64", "readOnly": true}
	for _, name := range []string{"create_index", "modify_index", "primary_modify_index"} {
		properties[name] = index
	}
	s["Owned"] = object{"type": "object", "description": "with ?owned: resources of any type", "properties": object{"resources": object{"type": "array", "items": object{"type": "object"}}}}
	required := []string{"data"}
	if answered {
		required = []string{"id", "version", "generation", "data"}
	}
	return object{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}

// get is an operation that reads.
func get(id, summary, contentType string, schema object, params []object) object {
	op := object{
		"operationId": id, "summary": summary,
		"responses": responses(object{"description": "Done", "content": object{contentType: object{"schema": schema}}}, "200"),
	}
	if params != nil {
		op["parameters"] = params
	}
	return op
}

// responses are those of every operation, and good.
func responses(good object, code string) object {
	out := object{code: good}
	for code, why := range map[int]string{
		400: "It breaks a rule; the text names field, value and rule", 403: "Not allowed", 404: "Not there", 409: "Another version, uid or state is stored than expected",
		413: "Too large", 503: "Nothing was done; try again", 504: "Nobody knows whether it was done",
	} {
		out[strconv.Itoa(code)] = object{"description": why, "content": object{"text/plain": object{"schema": text}}}
	}
	return out
}

// about says what each parameter means. Those without a value are switches.
var about = map[string]struct {
	help   string
	toggle bool
}{
	"dc":         {"ask a server of that datacenter", false},
	"pretty":     {"indent the JSON", true},
	"partition":  {"default: default; in lists * is every one", false},
	"namespace":  {"default: default; in lists * is every one", false},
	"prefix":     {"of names", false},
	"uid":        {"only the resource that has this uid", false},
	"version":    {"only if this version is stored", false},
	"consistent": {"see everything acknowledged before", true},
	"watch":      {"answer with server-sent events: upsert, delete, end-of-snapshot, end", true},
	"owned":      {"list what the resource owns", true},
	"dry-run":    {"check, and answer what would be stored, without writing", true},
	"status":     {"write the status of this key; the body is a status", false},
}

func parameters(reg resource.Registration, names []string) []object {
	var out []object
	for _, name := range append([]string{"dc", "pretty"}, names...) {
		if name == "namespace" && reg.Scope != resource.ScopeNamespace || name == "partition" && reg.Scope == resource.ScopeCluster {
			continue
		}
		schema := text
		if about[name].toggle {
			schema = object{"type": "boolean"}
		}
		p := object{"name": name, "in": "query", "description": about[name].help, "schema": schema}
		if about[name].toggle {
			p["allowEmptyValue"] = true
		}
		out = append(out, p)
	}
	return out
}
