// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/driver"
	"github.com/wanfed/wanfed/automation/input"
)

// renderCase is a task, and what Consul-Terraform-Sync 0.9 generates for it, as
// values.
type renderCase struct {
	Name, Label string
	Task        json.RawMessage
	Backend     map[string]map[string]json.RawMessage
	Providers   []driver.Provider
	Required    map[string]driver.RequiredProvider
	Inputs      input.Set
	Want        struct {
		Module    map[string]any    // arguments
		Providers map[string]any    // arguments and nested blocks
		Backend   map[string]any    // by type
		Required  map[string]any    `json:"required_providers"`
		Types     map[string]string // of variables
		Values    map[string]any    // of variables of providers and of the task
	}
}

func renderCases(t *testing.T) (cases []renderCase) {
	t.Helper()
	f, err := os.Open("testdata/render.jsonl")
	if err != nil {
		t.Fatalf("Open() = %v, want nil", err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c renderCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatalf("Unmarshal(%.100s) = %v, want nil", lines.Bytes(), err)
		}
		cases = append(cases, c)
	}
	if len(cases) != 24 {
		t.Fatalf("testdata has %d cases, want 24", len(cases))
	}
	return cases
}

// work returns the task of the case.
func (c *renderCase) work(t *testing.T) *driver.Work {
	t.Helper()
	w := &driver.Work{Name: c.Label, Task: new(pb.Task), Dir: t.TempDir(), Providers: c.Providers, Required: c.Required}
	if err := protojson.Unmarshal(c.Task, w.Task); err != nil {
		t.Fatalf("Unmarshal() = %v, want nil", err)
	}
	for kind, args := range c.Backend {
		w.Backend.Type = kind
		for name, v := range args {
			w.Backend.Body = append(w.Backend.Body, driver.Item{Name: name, Value: v})
		}
	}
	return w
}

// rendered evaluates a generated root module.
type rendered struct {
	t     *testing.T
	dir   string
	files *hclparse.Parser
	ctx   *hcl.EvalContext
	types map[string]string
	vars  map[string]cty.Value
}

func (r *rendered) body(name string) *hclsyntax.Body {
	r.t.Helper()
	f, diags := r.files.ParseHCLFile(filepath.Join(r.dir, name))
	if diags.HasErrors() {
		r.t.Fatalf("parse %s: %v", name, diags)
	}
	return f.Body.(*hclsyntax.Body)
}

func (r *rendered) eval(expr hcl.Expression) cty.Value {
	r.t.Helper()
	v, diags := expr.Value(r.ctx)
	if diags.HasErrors() {
		r.t.Fatalf("evaluate: %v", diags)
	}
	return v
}

// plain returns the arguments and nested blocks of a body as JSON values.
func (r *rendered) plain(b *hclsyntax.Body) map[string]any {
	r.t.Helper()
	out := make(map[string]any)
	for name, a := range b.Attributes {
		out[name] = plain(r.t, r.eval(a.Expr))
	}
	for _, block := range b.Blocks {
		out[block.Type] = r.plain(block.Body)
	}
	return out
}

func plain(t *testing.T, v cty.Value) (out any) {
	t.Helper()
	b, err := ctyjson.Marshal(v, v.Type())
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatalf("convert %#v to JSON: %v", v, err)
	}
	return out
}

// evaluate reads the generated files of a run.
func evaluate(t *testing.T, c *run) *rendered {
	t.Helper()
	r := &rendered{t: t, dir: c.Dir, files: hclparse.NewParser(), types: make(map[string]string), vars: make(map[string]cty.Value)}
	given := make(map[string]cty.Type) // of the variables of the module with the inputs
	for name := range c.root.files {
		if filepath.Ext(name) == ".tfvars" {
			for variable, a := range r.body(name).Attributes {
				r.vars[variable] = r.eval(a.Expr)
			}
			continue
		}
		for _, block := range r.body(name).Blocks {
			if block.Type != "variable" {
				continue
			}
			ty, diags := typeexpr.TypeConstraint(block.Body.Attributes["type"].Expr)
			if diags.HasErrors() {
				t.Fatalf("type of %s: %v", block.Labels[0], diags)
			}
			if name == inputsFile {
				given[block.Labels[0]], ty = ty, ty.ElementType()
			}
			r.types[block.Labels[0]] = typeexpr.TypeString(ty)
		}
	}
	delete(r.types, inputsDir) // CTS does not have it
	for name, text := range c.root.env {
		v, err := literal(name, text)
		if err != nil {
			t.Fatalf("%s = %v, want nil", name, err)
		}
		r.vars[strings.TrimPrefix(name, "TF_VAR_")] = v
	}
	r.ctx = &hcl.EvalContext{
		Variables: map[string]cty.Value{"var": cty.ObjectVal(withDir(r.vars, c.Dir))},
		Functions: map[string]function.Function{"jsondecode": stdlib.JSONDecodeFunc, "file": readFile, "merge": stdlib.MergeFunc},
	}
	for _, block := range r.body(mainFile).Blocks {
		if block.Type == "locals" {
			locals := make(map[string]cty.Value)
			for name, a := range block.Body.Attributes {
				locals[name] = r.eval(a.Expr)
			}
			r.ctx.Variables["local"] = cty.ObjectVal(locals)
			r.inputs(c.Name+"_inputs", locals, given)
		}
	}
	return r
}

func withDir(vars map[string]cty.Value, dir string) map[string]cty.Value {
	vars = maps.Clone(vars)
	vars[inputsDir] = cty.StringVal(dir)
	return vars
}

// inputs evaluates the module that converts the inputs.
func (r *rendered) inputs(label string, locals map[string]cty.Value, types map[string]cty.Type) {
	r.t.Helper()
	if len(types) == 0 {
		return
	}
	vars, outputs := make(map[string]cty.Value), make(map[string]cty.Value)
	for name, ty := range types {
		v, err := convert.Convert(locals[name], ty)
		if err != nil {
			r.t.Fatalf("convert %s to the type of the module of inputs: %v", name, err)
		}
		vars[name] = v
	}
	ctx := &hcl.EvalContext{Variables: map[string]cty.Value{"var": cty.ObjectVal(vars)}, Functions: r.ctx.Functions}
	for _, block := range r.body(inputsFile).Blocks {
		if block.Type == "output" {
			v, diags := block.Body.Attributes["value"].Expr.Value(ctx)
			if diags.HasErrors() {
				r.t.Fatalf("output %s: %v", block.Labels[0], diags)
			}
			outputs[block.Labels[0]] = v
		}
	}
	r.ctx.Variables["module"] = cty.ObjectVal(map[string]cty.Value{label: cty.ObjectVal(outputs)})
}

var readFile = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "path", Type: cty.String}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		b, err := os.ReadFile(args[0].AsString())
		return cty.StringVal(string(b)), err
	},
})

// TestGenerate_AsCTS compares the generated files with those of CTS.
func TestGenerate_AsCTS(t *testing.T) {
	bin := &binary{version: version.Must(version.NewVersion("1.11.4"))}
	for _, c := range renderCases(t) {
		t.Run(c.Name, func(t *testing.T) {
			w := c.work(t)
			root, err := generate(w, bin)
			if err != nil {
				t.Fatalf("generate() = %v, want nil", err)
			}
			generated := &run{Work: w, Request: driver.Request{Inputs: c.Inputs}, root: root}
			if err := generated.write(); err != nil {
				t.Fatalf("write() = %v, want nil", err)
			}
			r := evaluate(t, generated)
			providers, values := make(map[string]any), make(map[string]any)
			for _, block := range r.body(mainFile).Blocks {
				switch block.Type {
				case "module":
					switch block.Labels[0] {
					case c.Label:
						compare(t, "arguments of the module", r.plain(block.Body), c.Want.Module)
					case c.Label + "_inputs":
					default:
						t.Errorf("label of the module = %q, want %q", block.Labels[0], c.Label)
					}
				case "provider":
					providers[block.Labels[0]] = r.plain(block.Body)
				case "terraform":
					for _, inner := range block.Body.Blocks {
						if inner.Type == "backend" {
							compare(t, "backend", map[string]any{inner.Labels[0]: r.plain(inner.Body)}, c.Want.Backend)
						} else {
							compare(t, "required providers", r.plain(inner.Body), c.Want.Required)
						}
					}
				}
			}
			compare(t, "providers", providers, c.Want.Providers)
			for name, v := range r.vars {
				values[name] = plain(t, v)
			}
			compare(t, "values", values, c.Want.Values)
			c.compareTypes(t, r)
		})
	}
}

// compareTypes compares the types of the variables. Those of documents and
// resources depend on the value, and are not in the generated files.
func (c *renderCase) compareTypes(t *testing.T, r *rendered) {
	t.Helper()
	for name := range c.Want.Types {
		if input.Type(name) == "any" {
			r.types[name] = "any"
		}
	}
	compare(t, "types", r.types, c.Want.Types)
}

func compare(t *testing.T, what string, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

// Values that contain HCL cannot change the configuration.
func TestGenerate_NothingIsPasted(t *testing.T) {
	const evil = "\"\n}\nmodule \"x\" { source = \"./x\" } ${path.root} %{ if true }"
	quoted, err := json.Marshal(evil)
	if err != nil {
		t.Fatalf("Marshal() = %v, want nil", err)
	}
	bin := &binary{version: version.Must(version.NewVersion("1.11.4"))}
	text := string(quoted)
	text = strings.NewReplacer("${", "$${", "%{", "%%{").Replace(text)
	w := &driver.Work{Name: "t", Dir: t.TempDir(), Task: &pb.Task{
		Terraform: &pb.TerraformDriver{Module: evil, Version: evil},
		Variables: map[string]string{"v": "{ " + text + " = " + text + ", b = [" + text + ", null] }"},
	}}
	w.Providers = []driver.Provider{{Name: "p", Alias: evil, Body: []driver.Item{{Name: "a", Value: quoted},
		{Name: "b", Labels: []string{evil}, Body: []driver.Item{{Name: "c", Value: quoted}}},
		{Name: "b", Labels: []string{"2"}, Body: []driver.Item{{Name: "c", Value: json.RawMessage("2")}}}}}}
	w.Required = map[string]driver.RequiredProvider{"p": {Source: evil, Version: evil}}
	w.Backend = driver.Backend{Type: "consul", Body: []driver.Item{{Name: "path", Value: quoted}}}
	root, err := generate(w, bin)
	if err != nil {
		t.Fatalf("generate() = %v, want nil", err)
	}
	c := &run{Work: w, root: root}
	if err := c.write(); err != nil {
		t.Fatalf("write() = %v, want nil", err)
	}
	r := evaluate(t, c)
	var kinds []string
	for _, block := range r.body(mainFile).Blocks {
		kinds = append(kinds, block.Type)
		switch block.Type {
		case "module":
			if block.Labels[0] != "t" {
				continue
			}
			got := r.plain(block.Body)
			compare(t, "module", got, map[string]any{"source": evil, "version": evil, "services": map[string]any{},
				"v": map[string]any{evil: evil, "b": []any{evil, nil}}})
		case "provider":
			for i, want := range []any{evil, 2.0} {
				compare(t, "nested block", r.plain(block.Body.Blocks[i].Body), map[string]any{"c": want})
			}
			compare(t, "argument", plain(t, r.eval(block.Body.Attributes["a"].Expr)), evil)
		}
	}
	if want := []string{"terraform", "provider", "locals", "module", "module"}; !slices.Equal(kinds, want) {
		t.Errorf("blocks = %v, want %v", kinds, want)
	}
	w.Providers[0].Body[0].Name = "a = 1\nb"
	if _, err := generate(w, bin); err == nil {
		t.Error("generate() with an argument that is not an identifier = nil, want an error")
	}
}
