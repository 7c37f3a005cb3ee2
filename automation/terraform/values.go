// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/wanfed/wanfed/automation/driver"
)

// value converts JSON to a value.
func value(b json.RawMessage) (cty.Value, error) {
	ty, err := ctyjson.ImpliedType(b)
	if err != nil {
		return cty.NilVal, err
	}
	return ctyjson.Unmarshal(b, ty)
}

// literal evaluates the text of a variable of a task.
func literal(name, text string) (cty.Value, error) {
	expr, diags := hclsyntax.ParseExpression([]byte(text), name, hcl.InitialPos)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	v, diags := expr.Value(nil)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	return v, nil
}

// typeTokens returns the type constraint of a value. An object with a key that
// a type constraint cannot have is "any".
func typeTokens(ty cty.Type) hclwrite.Tokens {
	switch {
	case ty == cty.String, ty == cty.Number, ty == cty.Bool:
		return hclwrite.TokensForIdentifier(ty.FriendlyName())
	case ty.IsTupleType():
		var elements []hclwrite.Tokens
		for _, e := range ty.TupleElementTypes() {
			elements = append(elements, typeTokens(e))
		}
		return hclwrite.TokensForFunctionCall("tuple", hclwrite.TokensForTuple(elements))
	case ty.IsObjectType():
		var attrs []hclwrite.ObjectAttrTokens
		for _, name := range slices.Sorted(maps.Keys(ty.AttributeTypes())) {
			if !hclsyntax.ValidIdentifier(name) {
				return hclwrite.TokensForIdentifier("any")
			}
			attrs = append(attrs, hclwrite.ObjectAttrTokens{
				Name: hclwrite.TokensForIdentifier(name), Value: typeTokens(ty.AttributeType(name)),
			})
		}
		return hclwrite.TokensForFunctionCall("object", hclwrite.TokensForObject(attrs))
	}
	return hclwrite.TokensForIdentifier("any") // null
}

// objectOf returns the value of a body. A nested block is an object; several of
// one name are a tuple of objects.
func objectOf(body []driver.Item) (cty.Value, error) {
	attrs := make(map[string]cty.Value)
	blocks := make(map[string][]cty.Value)
	for _, item := range body {
		if !hclsyntax.ValidIdentifier(item.Name) {
			return cty.NilVal, fmt.Errorf("%q is not a name of an argument", item.Name)
		}
		if _, ok := attrs[item.Name]; ok && (item.Value != nil || blocks[item.Name] == nil) {
			return cty.NilVal, fmt.Errorf("%s is set twice", item.Name)
		}
		var v cty.Value
		var err error
		if item.Value == nil {
			v, err = objectOf(item.Body)
			blocks[item.Name] = append(blocks[item.Name], v)
		} else {
			v, err = value(item.Value)
		}
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s: %w", item.Name, err)
		}
		attrs[item.Name] = v
	}
	for name, list := range blocks {
		if len(list) > 1 {
			attrs[name] = cty.TupleVal(list)
		}
	}
	return cty.ObjectVal(attrs), nil
}

// setter writes an argument, which is at a place of the variable of a provider.
type setter func(body *hclwrite.Body, item driver.Item, at hcl.Traversal)

// writeBody writes arguments and nested blocks.
func writeBody(body *hclwrite.Body, items []driver.Item, at hcl.Traversal, set setter) {
	number := make(map[string]int) // of blocks with this name
	for _, item := range items {
		if item.Value == nil {
			number[item.Name]++
		}
	}
	next := make(map[string]int)
	for _, item := range items {
		path := slices.Concat(at, hcl.Traversal{hcl.TraverseAttr{Name: item.Name}})
		if item.Value != nil {
			set(body, item, path)
			continue
		}
		if number[item.Name] > 1 {
			path = append(path, hcl.TraverseIndex{Key: cty.NumberIntVal(int64(next[item.Name]))})
			next[item.Name]++
		}
		writeBody(body.AppendNewBlock(item.Name, item.Labels).Body(), item.Body, path, set)
	}
}

// setReference writes an argument as a reference to a variable.
func setReference(body *hclwrite.Body, item driver.Item, at hcl.Traversal) {
	body.SetAttributeTraversal(item.Name, at)
}

// setValue writes an argument with its value, which objectOf has checked.
func setValue(body *hclwrite.Body, item driver.Item, _ hcl.Traversal) {
	if v, err := value(item.Value); err == nil {
		body.SetAttributeValue(item.Name, v)
	}
}
