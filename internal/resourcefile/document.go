// SPDX-License-Identifier: MPL-2.0

package resourcefile

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/settings"
)

// Maximum sizes of files in bytes. The HCL parser needs up to 500 times the
// size of a file in memory.
const (
	maxFile = 256 << 20
	maxHCL  = 16 << 20
)

// Document is a resource in a file.
type Document struct {
	// Pos is the file name and the line of the resource, for error messages.
	Pos    string
	fields fields
}

// fields is a resource as decoded from a file. A file names the resource either
// by the keys of resourceID at the top level, or, as the HTTP API does, by the
// object ID. Both together are an error.
type fields struct {
	resourceID
	ID       *resourceID       `json:"id"`
	Owner    *resourceID       `json:"owner"`
	Version  numberOrString    `json:"version"`
	Metadata map[string]string `json:"metadata"`
	Data     json.RawMessage   `json:"data"`

	// The following fields are set only by the server, and ignored.
	Generation         any `json:"generation"`
	Status             any `json:"status"`
	CreateIndex        any `json:"create_index"`
	ModifyIndex        any `json:"modify_index"`
	PrimaryModifyIndex any `json:"primary_modify_index"`
}

// resourceID identifies a resource.
type resourceID struct {
	Type      typeName     `json:"type"`
	Name      string       `json:"name"`
	Partition string       `json:"partition"`
	Namespace string       `json:"namespace"`
	Tenancy   *api.Tenancy `json:"tenancy"` // only in the JSON of the HTTP API
	UID       string       `json:"uid"`
}

// typeName is the name of a type. Its JSON is a string, or an object as in the
// HTTP API.
type typeName string

func (t *typeName) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '{' {
		return json.Unmarshal(b, (*string)(t))
	}
	var name api.ResourceTypeName
	err := json.Unmarshal(b, &name)
	*t = typeName(name.String())
	return err
}

// numberOrString is a string whose JSON is a string or a number. In YAML and
// HCL, a version without quotes is a number.
type numberOrString string

func (t *numberOrString) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	*t = numberOrString(b)
	return nil
}

// Resource converts d to a resource. resolve returns the type for a type name.
func (d *Document) Resource(resolve func(name string) (api.ResourceTypeName, error)) (api.Resource, error) {
	f := &d.fields
	r := api.Resource{Version: string(f.Version), Metadata: f.Metadata, Data: f.Data}
	id := &f.resourceID
	if f.ID != nil {
		if *id != (resourceID{}) {
			return r, errors.New("id and a second type, name, partition, namespace or uid; remove one of the two")
		}
		id = f.ID
	}
	if len(f.Data) == 0 || string(f.Data) == "null" {
		return r, errors.New("data is required")
	}
	var err error
	if r.ID, err = id.resolve(resolve); err != nil {
		return r, err
	}
	if f.Owner != nil {
		owner, err := f.Owner.resolve(resolve)
		if err != nil {
			return r, fmt.Errorf("owner: %w", err)
		}
		r.Owner = &owner
	}
	return r, nil
}

func (i resourceID) resolve(resolve func(name string) (api.ResourceTypeName, error)) (api.ResourceID, error) {
	id := api.ResourceID{UID: i.UID, Name: i.Name, Tenancy: api.Tenancy{Partition: i.Partition, Namespace: i.Namespace}}
	if i.Tenancy != nil {
		id.Tenancy = *i.Tenancy
	}
	if i.Type == "" || i.Name == "" {
		return id, errors.New("type and name are required")
	}
	var err error
	id.Type, err = resolve(string(i.Type))
	return id, err
}

// Read reads the resources of a file, in their order. The path "-" means stdin.
func Read(path string, stdin io.Reader) ([]Document, error) {
	name, src := path, []byte(nil)
	var err error
	if path == "-" {
		name = "stdin"
		src, err = settings.ReadAll(stdin, name, maxFile)
	} else {
		src, err = settings.ReadFile(path, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	all, err := decoderFor(path, src)(name, src)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s has no resource", name)
	}
	return all, err
}

type decoder func(name string, src []byte) ([]Document, error)

// hclLine matches the first line of an HCL attribute or block. It matches no
// line of YAML.
var hclLine = regexp.MustCompile(`^\s*\w+\s*(=|("[^"]*"\s*)*\{)`)

// decoderFor returns the decoder for the extension of the file. For an unknown
// extension, the first character and the first line that is not a comment
// select the decoder.
func decoderFor(path string, src []byte) decoder {
	switch filepath.Ext(path) {
	case ".json":
		return decodeJSON
	case ".yaml", ".yml":
		return decodeYAML
	case ".hcl":
		return decodeHCL
	}
	if trimmed := bytes.TrimSpace(src); len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		return decodeJSON
	}
	for line := range bytes.Lines(src) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' || bytes.HasPrefix(line, []byte("//")) {
			continue
		}
		if hclLine.Match(line) {
			return decodeHCL
		}
		break
	}
	return decodeYAML
}

// decodeJSON decodes consecutive values. Each value is a resource, a list of
// resources, or a response of the HTTP API to a list request.
func decodeJSON(name string, src []byte) ([]Document, error) {
	dec := json.NewDecoder(bytes.NewReader(src))
	var all []Document
	for {
		rest := bytes.TrimLeft(src[dec.InputOffset():], " \t\r\n")
		pos := fmt.Sprintf("%s:%d", name, 1+bytes.Count(src[:len(src)-len(rest)], []byte("\n")))
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pos, err)
		}
		if all, err = appendDocuments(all, pos, raw); err != nil {
			return nil, err
		}
	}
}

// appendDocuments appends the resources of one JSON value.
func appendDocuments(all []Document, pos string, raw json.RawMessage) ([]Document, error) {
	if raw[0] != '[' {
		var list struct{ Resources []json.RawMessage }
		if json.Unmarshal(raw, &list) != nil || list.Resources == nil {
			d, err := decodeDocument(pos, raw)
			return append(all, d), err
		}
		raw, _ = json.Marshal(list.Resources)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", pos, err)
	}
	for i, one := range list {
		d, err := decodeDocument(fmt.Sprintf("%s, element %d", pos, i+1), one)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func decodeDocument(pos string, raw json.RawMessage) (Document, error) {
	d := Document{Pos: pos}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d.fields); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			field := cmp.Or(strings.TrimPrefix(wrong.Field, "resourceID."), "a resource")
			return d, fmt.Errorf("%s: %s must not be a %s", pos, field, wrong.Value)
		}
		return d, fmt.Errorf("%s: %s", pos, strings.TrimPrefix(err.Error(), "json: "))
	}
	return d, nil
}
