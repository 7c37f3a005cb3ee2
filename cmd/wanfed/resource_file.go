// SPDX-License-Identifier: MPL-2.0

package main

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

	"go.yaml.in/yaml/v3"

	"github.com/wanfed/wanfed/api"
)

// document is a resource as files have it: type, name and data, perhaps more; or a whole one as the server answers it. What the server
// decides is taken and ignored.
type document struct {
	documentID
	ID       *documentID       `json:"id"`
	Owner    *documentID       `json:"owner"`
	Version  looseText         `json:"version"`
	Metadata map[string]string `json:"metadata"`
	Data     json.RawMessage   `json:"data"`

	Generation         any `json:"generation"`
	Status             any `json:"status"`
	CreateIndex        any `json:"create_index"`
	ModifyIndex        any `json:"modify_index"`
	PrimaryModifyIndex any `json:"primary_modify_index"`

	where string // file and line, for errors
}

// documentID names a resource.
type documentID struct {
	Type      typeText     `json:"type"`
	Name      string       `json:"name"`
	Partition string       `json:"partition"`
	Namespace string       `json:"namespace"`
	Tenancy   *api.Tenancy `json:"tenancy"` // as the server has it
	UID       string       `json:"uid"`
}

// typeText is a type as a user writes it, or an object as the server does.
type typeText string

func (t *typeText) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] != '{' {
		return json.Unmarshal(b, (*string)(t))
	}
	var name api.ResourceTypeName
	err := json.Unmarshal(b, &name)
	*t = typeText(name.String())
	return err
}

// looseText is a string that may be written as a number: YAML and HCL make one of a version without quotes.
type looseText string

func (t *looseText) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, (*string)(t))
	}
	*t = looseText(b)
	return nil
}

// id returns the document's, with the type as it is written.
func (d *document) id() documentID {
	if d.ID != nil {
		return *d.ID
	}
	return d.documentID
}

// resource returns what the document says, its types as resolve has them.
func (d *document) resource(resolve func(text string) (api.ResourceTypeName, error)) (api.Resource, error) {
	r := api.Resource{Version: string(d.Version), Metadata: d.Metadata, Data: d.Data}
	if d.ID != nil && d.documentID != (documentID{}) {
		return r, errors.New("it has both id and type, name, partition, namespace or uid beside it")
	}
	if len(d.Data) == 0 || string(d.Data) == "null" {
		return r, errors.New("it has no data")
	}
	var err error
	if r.ID, err = d.id().resolve(resolve); err != nil {
		return r, err
	}
	if d.Owner != nil {
		owner, err := d.Owner.resolve(resolve)
		if err != nil {
			return r, fmt.Errorf("owner: %w", err)
		}
		r.Owner = &owner
	}
	return r, nil
}

func (d documentID) resolve(resolve func(text string) (api.ResourceTypeName, error)) (api.ResourceID, error) {
	id := api.ResourceID{UID: d.UID, Name: d.Name, Tenancy: api.Tenancy{Partition: d.Partition, Namespace: d.Namespace}}
	if d.Tenancy != nil {
		id.Tenancy = *d.Tenancy
	}
	if d.Type == "" || d.Name == "" {
		return id, errors.New("it needs a type and a name")
	}
	var err error
	id.Type, err = resolve(string(d.Type))
	return id, err
}

// readDocuments reads the resources of a file, "-" for stdin, in their order.
func readDocuments(path string, stdin io.Reader) ([]document, error) {
	name, src := path, []byte(nil)
	var err error
	if path == "-" {
		name = "stdin"
		src, err = readAtMost(stdin, name, maxResources)
	} else {
		src, err = readBounded(path, maxResources)
	}
	if err != nil {
		return nil, fmt.Errorf("read resources: %w", err)
	}
	read := map[string]func(string, []byte) ([]document, error){".json": readJSON, ".yaml": readYAML, ".yml": readYAML, ".hcl": readHCL}[filepath.Ext(path)]
	if read == nil {
		read = guessFormat(src)
	}
	all, err := read(name, src)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s has no resource", name)
	}
	return all, err
}

// hclLine is what begins an attribute or a block of HCL, and no line of YAML.
var hclLine = regexp.MustCompile(`^\s*\w+\s*(=|("[^"]*"\s*)*\{)`)

// guessFormat goes by the first character, and the first line that is no comment.
func guessFormat(src []byte) func(string, []byte) ([]document, error) {
	trimmed := bytes.TrimSpace(src)
	if len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') {
		return readJSON
	}
	for line := range bytes.Lines(src) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' || bytes.HasPrefix(line, []byte("//")) {
			continue
		}
		if hclLine.Match(line) {
			return readHCL
		}
		break
	}
	return readYAML
}

// readJSON reads documents one after the other; each is a resource, a list of them, or what a list by HTTP answers.
func readJSON(name string, src []byte) ([]document, error) {
	dec := json.NewDecoder(bytes.NewReader(src))
	var all []document
	for {
		rest := bytes.TrimLeft(src[dec.InputOffset():], " \t\r\n")
		where := fmt.Sprintf("%s:%d", name, 1+bytes.Count(src[:len(src)-len(rest)], []byte("\n")))
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if all, err = addDocuments(all, where, raw); err != nil {
			return nil, err
		}
	}
}

// addDocuments adds what one JSON value has.
func addDocuments(all []document, where string, raw json.RawMessage) ([]document, error) {
	if raw[0] != '[' {
		var list struct{ Resources []json.RawMessage }
		if json.Unmarshal(raw, &list) != nil || list.Resources == nil {
			d, err := decodeDocument(where, raw)
			return append(all, d), err
		}
		raw, _ = json.Marshal(list.Resources)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", where, err)
	}
	for i, one := range list {
		d, err := decodeDocument(fmt.Sprintf("%s, element %d", where, i+1), one)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func decodeDocument(where string, raw json.RawMessage) (document, error) {
	d := document{where: where}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return d, fmt.Errorf("%s: %s is a %s", where, cmp.Or(strings.TrimPrefix(wrong.Field, "documentID."), "a resource"), wrong.Value)
		}
		return d, fmt.Errorf("%s: %s", where, strings.TrimPrefix(err.Error(), "json: "))
	}
	return d, nil
}

// readYAML reads documents divided by lines of "---".
func readYAML(name string, src []byte) ([]document, error) {
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var all []document
	for {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		where := fmt.Sprintf("%s:%d", name, node.Content[0].Line) // a document has one
		keepText(&node)
		var v any
		if err := node.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		if v == nil { // nothing between two lines of ---
			continue
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: it is not what JSON can say: %w", where, err)
		}
		if all, err = addDocuments(all, where, raw); err != nil {
			return nil, err
		}
	}
}

// keepText leaves dates the texts that they are: protobuf's JSON has them so.
func keepText(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		keepText(child)
	}
}
