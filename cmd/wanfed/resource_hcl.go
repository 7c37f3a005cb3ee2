// SPDX-License-Identifier: MPL-2.0

package main

import (
	"encoding/json"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// readHCL reads a file that is one resource,
//
//	type = "catalog/v1/Node"
//	name = "web1"
//	data { address = "10.0.0.1" }
//
// or several, each in a block: resource "catalog/v1/Node" "web1" { data { ... } }.
func readHCL(name string, src []byte) ([]document, error) {
	if len(src) > maxHCL {
		return nil, fmt.Errorf("%s has more than %d bytes: is it the right file? So many resources are read from JSON, which takes far less memory", name, maxHCL)
	}
	if line, ok := hclDepth(src); !ok {
		return nil, tooDeep(name, line)
	}
	f, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, faults(hclErrors(diags)...)
	}
	body := f.Body.(*hclsyntax.Body)
	var all []document
	var other *hclsyntax.Block // that is not a resource
	for _, b := range body.Blocks {
		if b.Type != "resource" {
			other = b
			continue
		}
		d, err := resourceBlock(b)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	switch {
	case len(all) == 0 && other == nil && len(body.Attributes) == 0:
		return nil, nil
	case len(all) > 0 && (other != nil || len(body.Attributes) > 0):
		return nil, fmt.Errorf("%s: beside resource blocks there is something else: put each resource into a block of its own", name)
	case len(all) > 0:
		return all, nil
	}
	d, err := hclDocument(fmt.Sprintf("%s:1", name), body, nil)
	return []document{d}, err
}

func resourceBlock(b *hclsyntax.Block) (document, error) {
	where := fmt.Sprintf("%s:%d", b.TypeRange.Filename, b.TypeRange.Start.Line)
	if len(b.Labels) != 2 {
		return document{}, fmt.Errorf(`%s: a resource block has two labels: resource "TYPE" "NAME" {`, where)
	}
	return hclDocument(where, b.Body, map[string]any{"type": b.Labels[0], "name": b.Labels[1]})
}

func hclDocument(where string, body *hclsyntax.Body, extra map[string]any) (document, error) {
	fields, err := hclObject(body)
	if err != nil {
		return document{}, err
	}
	for name, value := range extra {
		if _, ok := fields[name]; ok {
			return document{}, fmt.Errorf("%s: %s is in the block's labels already", where, name)
		}
		fields[name] = value
	}
	raw, err := json.Marshal(fields)
	if err != nil {
		return document{}, fmt.Errorf("%s: %w", where, err)
	}
	return decodeDocument(where, raw)
}

// hclObject gives attributes and blocks as a JSON object. A block is an object, several of one name are a list, and a block's labels
// are the keys of objects around it.
func hclObject(body *hclsyntax.Body) (map[string]any, error) {
	out := make(map[string]any)
	for name, a := range body.Attributes {
		v, diags := a.Expr.Value(nil)
		if diags.HasErrors() {
			return nil, faults(hclErrors(diags)...)
		}
		raw, err := ctyjson.Marshal(v, v.Type())
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %s: %w", a.NameRange.Filename, a.NameRange.Start.Line, name, err)
		}
		out[name] = json.RawMessage(raw)
	}
	for _, b := range body.Blocks {
		inner, err := hclObject(b.Body)
		if err != nil {
			return nil, err
		}
		if err := addBlock(out, append([]string{b.Type}, b.Labels...), inner); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", b.TypeRange.Filename, b.TypeRange.Start.Line, err)
		}
	}
	return out, nil
}

// addBlock puts inner into out under the keys, one object within the other.
func addBlock(out map[string]any, keys []string, inner map[string]any) error {
	key := keys[0]
	if len(keys) > 1 {
		next, ok := out[key].(map[string]any)
		if !ok && out[key] != nil {
			return fmt.Errorf("%s is both an attribute, or a block without labels, and a block with labels", key)
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
