// SPDX-License-Identifier: MPL-2.0

package view

import (
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty/convert"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/wanfed/wanfed/automation/input"
	"github.com/wanfed/wanfed/internal/testutil"
)

// TestValue_Types compares values of the federation with the types that modules
// declare. A conversion drops attributes that the type does not have, so the
// converted value must be equal.
func TestValue_Types(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		v := start(t, federated())
		for kind, variable := range map[string]string{
			"federation": "federation", "gateway": "gateways", "member": "members", "datacenter": "datacenters",
		} {
			w := open(t, v, `{"kind":"`+kind+`"}`)
			time.Sleep(3 * time.Second)
			got := value(t, w).JSON
			expr, diags := hclsyntax.ParseExpression([]byte(input.Type(variable)), variable, hcl.InitialPos)
			if diags.HasErrors() {
				t.Fatalf("Type(%s): %v", variable, diags)
			}
			ty, diags := typeexpr.TypeConstraint(expr)
			if diags.HasErrors() {
				t.Fatalf("Type(%s): %v", variable, diags)
			}
			implied, err := ctyjson.ImpliedType(got)
			if err != nil {
				t.Fatal(err)
			}
			val, err := ctyjson.Unmarshal(got, implied)
			if err != nil {
				t.Fatal(err)
			}
			converted, err := convert.Convert(val, ty)
			if err != nil {
				t.Errorf("%s = %s, does not have the type %s: %v", variable, got, input.Type(variable), err)
				continue
			}
			if back, err := ctyjson.Marshal(converted, ty); err != nil || string(back) != string(got) {
				t.Errorf("%s converted = %s, %v, want %s", variable, back, err, got)
			}
		}
	})
}
