// SPDX-License-Identifier: MPL-2.0

package resourcefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"go.yaml.in/yaml/v3"

	"github.com/wanfed/wanfed/internal/settings"
)

// decodeYAML decodes documents separated by "---".
func decodeYAML(name string, src []byte) ([]Document, error) {
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var all []Document
	for {
		var node yaml.Node
		err := dec.Decode(&node)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		pos := fmt.Sprintf("%s:%d", name, node.Content[0].Line)
		timestampsToStrings(&node)
		var v any
		if err := node.Decode(&v); err != nil {
			return nil, fmt.Errorf("%s: %w", pos, err)
		}
		if v == nil { // an empty document
			continue
		}
		raw, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: a value has no form in JSON: %w", pos, err)
		}
		if all, err = appendDocuments(all, pos, raw); err != nil {
			return nil, err
		}
	}
}

// timestampsToStrings converts timestamps to strings, because the JSON form of
// protobuf messages needs their original text.
func timestampsToStrings(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, child := range n.Content {
		timestampsToStrings(child)
	}
}

// decodeHCL decodes a file of one resource,
//
//	type = "catalog/v1/Node"
//	name = "web1"
//	data { address = "10.0.0.1" }
//
// or a file with a block for each resource:
//
//	resource "catalog/v1/Node" "web1" { data { ... } }
//
// A policy block is a resource of type policy/v1/Policy, see policyDocument.
func decodeHCL(name string, src []byte) ([]Document, error) {
	if len(src) > maxHCL {
		return nil, fmt.Errorf("%s has more than %d bytes; check that it is the right file, "+
			"or use JSON, which needs less memory", name, maxHCL)
	}
	f, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, settings.DiagError(diags)
	}
	body := f.Body.(*hclsyntax.Body)
	var all []Document
	other := len(body.Attributes) > 0 // the file has content other than resource blocks
	for _, b := range body.Blocks {
		document := blockDocument
		switch {
		case b.Type == "policy" && len(b.Labels) > 0:
			document = policyDocument
		case b.Type != "resource":
			other = true
			continue
		}
		d, err := document(b)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	switch {
	case len(all) > 0 && other:
		return nil, fmt.Errorf("%s has resource blocks and other content; put each resource into a block", name)
	case len(all) > 0 || !other:
		return all, nil
	}
	d, err := bodyDocument(name+":1", body, nil)
	return []Document{d}, err
}

func blockDocument(b *hclsyntax.Block) (Document, error) {
	pos := fmt.Sprintf("%s:%d", b.TypeRange.Filename, b.TypeRange.Start.Line)
	if len(b.Labels) != 2 {
		return Document{}, fmt.Errorf(`%s: a resource block needs two labels: resource "TYPE" "NAME" {`, pos)
	}
	return bodyDocument(pos, b.Body, map[string]any{"type": b.Labels[0], "name": b.Labels[1]})
}

// policyDocument returns the resource of a policy block. Each resource block in
// it is a rule:
//
//	policy "joe" {
//	  resource "kv/v1/Entry" {
//	    prefix = "app/"
//	    access = "write"
//	  }
//	}
func policyDocument(b *hclsyntax.Block) (Document, error) {
	pos := fmt.Sprintf("%s:%d", b.TypeRange.Filename, b.TypeRange.Start.Line)
	if len(b.Labels) != 1 || len(b.Body.Attributes) > 0 {
		return Document{}, fmt.Errorf(`%s: a policy has one label and only resource blocks: policy "NAME" { resource "TYPE" {`, pos)
	}
	rules := make([]any, 0, len(b.Body.Blocks))
	for _, inner := range b.Body.Blocks {
		if inner.Type != "resource" || len(inner.Labels) != 1 {
			return Document{}, fmt.Errorf(`%s:%d: a policy has only blocks with one label: resource "TYPE" {`,
				inner.TypeRange.Filename, inner.TypeRange.Start.Line)
		}
		rule, err := objectOf(inner.Body)
		if err != nil {
			return Document{}, err
		}
		if rule["type"] != nil {
			return Document{}, fmt.Errorf("%s: type is set in the label of the block as well", pos)
		}
		rule["type"] = inner.Labels[0]
		rules = append(rules, rule)
	}
	raw, err := json.Marshal(map[string]any{
		"type": "policy/v1/Policy", "name": b.Labels[0], "data": map[string]any{"rules": rules},
	})
	if err != nil {
		return Document{}, fmt.Errorf("%s: %w", pos, err)
	}
	return decodeDocument(pos, raw)
}

func bodyDocument(pos string, body *hclsyntax.Body, labels map[string]any) (Document, error) {
	object, err := objectOf(body)
	if err != nil {
		return Document{}, err
	}
	for name, value := range labels {
		if _, ok := object[name]; ok {
			return Document{}, fmt.Errorf("%s: %s is set in the labels of the block as well", pos, name)
		}
		object[name] = value
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return Document{}, fmt.Errorf("%s: %w", pos, err)
	}
	return decodeDocument(pos, raw)
}

// objectOf converts attributes and blocks to a JSON object. A block becomes an
// object. Several blocks with one name become a list. The labels of a block
// become keys of enclosing objects.
func objectOf(body *hclsyntax.Body) (map[string]any, error) {
	out := make(map[string]any)
	for name, a := range body.Attributes {
		v, diags := a.Expr.Value(nil)
		if diags.HasErrors() {
			return nil, settings.DiagError(diags)
		}
		raw, err := ctyjson.Marshal(v, v.Type())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", a.NameRange.Filename, a.NameRange.Start.Line, name, err)
		}
		out[name] = json.RawMessage(raw)
	}
	for _, b := range body.Blocks {
		inner, err := objectOf(b.Body)
		if err != nil {
			return nil, err
		}
		if err := addBlock(out, append([]string{b.Type}, b.Labels...), inner); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", b.TypeRange.Filename, b.TypeRange.Start.Line, err)
		}
	}
	return out, nil
}

// addBlock adds inner to out. All keys but the last select nested objects.
func addBlock(out map[string]any, keys []string, inner map[string]any) error {
	key := keys[0]
	if len(keys) > 1 {
		next, ok := out[key].(map[string]any)
		if !ok && out[key] != nil {
			return fmt.Errorf("%s is an attribute or a block without labels, and a block with labels", key)
		}
		if next == nil {
			next = make(map[string]any)
			out[key] = next
		}
		return addBlock(next, keys[1:], inner)
	}
	switch before := out[key].(type) {
	case nil:
		out[key] = inner
	case map[string]any:
		out[key] = []any{before, inner}
	case []any:
		out[key] = append(before, inner)
	default:
		return fmt.Errorf("%s is both an attribute and a block", key)
	}
	return nil
}
