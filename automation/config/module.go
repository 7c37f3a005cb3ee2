// SPDX-License-Identifier: MPL-2.0

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/settings"
)

// readVariables reads the variable files of t. Later files replace the values of
// earlier ones. Paths are relative to the directory in which the daemon was
// started.
func (t *taskBlock) readVariables() {
	p := t.at("variable_files")
	for _, path := range t.variableFiles {
		attrs, err := readAttributes(path)
		if err != nil {
			t.fail(p, "variable_files", "%v", err)
			continue
		}
		for name, attr := range attrs {
			v, diags := attr.Expr.Value(nil)
			if diags.HasErrors() {
				t.fail(p, "variable_files", "%v: the values must be literals", settings.DiagError(diags[:1]))
				continue
			}
			if t.task.Variables == nil {
				t.task.Variables = make(map[string]string)
			}
			t.task.Variables[name] = string(hclwrite.TokensForValue(v).Bytes())
		}
	}
}

func readAttributes(path string) (hcl.Attributes, error) {
	src, err := settings.ReadFile(path, settings.MaxFile)
	if err != nil {
		return nil, err
	}
	f, err := settings.Parse(path, src)
	if err != nil {
		return nil, err
	}
	attrs, diags := f.Body.JustAttributes()
	if diags.HasErrors() {
		return nil, settings.DiagError(diags[:1])
	}
	return attrs, nil
}

// CheckModule returns a *task.FieldError unless the module of the task with that
// name exists and has the variables that the task sets. It checks only modules in
// local directories, which it reads.
func CheckModule(name string, t *pb.Task) error {
	dir := t.GetTerraform().GetModule()
	if !strings.HasPrefix(dir, "./") && !strings.HasPrefix(dir, "../") && !filepath.IsAbs(dir) {
		return nil
	}
	variables, err := variablesOf(dir)
	if err != nil {
		return &task.FieldError{Field: "terraform.module", Reason: err.Error()}
	}
	if !variables["services"] { // each module receives it
		return missingVariable(name, "services", "")
	}
	for _, q := range append(t.Conditions[:len(t.Conditions):len(t.Conditions)], t.Inputs...) {
		if v := task.Variable(q.Kind); v != "" && !q.TriggerOnly && !variables[v] {
			return missingVariable(name, v, `, or set "use_as_module_input" to false`)
		}
	}
	return nil
}

func missingVariable(name, variable, alternative string) error {
	return &task.FieldError{Field: "terraform.module", Reason: fmt.Sprintf(
		"module for task %q is missing the %q variable: add it to the module%s", name, variable, alternative)}
}

// variablesOf returns the names of the variables of the module in dir.
func variablesOf(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the module: %w", err)
	}
	variables := make(map[string]bool)
	found := false
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".json")
		if !strings.HasSuffix(name, ".tf") && !strings.HasSuffix(name, ".tofu") {
			continue
		}
		found = true
		if err := addVariables(filepath.Join(dir, e.Name()), variables); err != nil {
			return nil, err
		}
	}
	if !found {
		return nil, fmt.Errorf("%s has no files *.tf: it is not a module", dir)
	}
	return variables, nil
}

// addVariables adds the variables of a file of a module.
func addVariables(path string, variables map[string]bool) error {
	src, err := settings.ReadFile(path, settings.MaxFile)
	if err != nil {
		return err
	}
	f, err := settings.Parse(path, src)
	if err != nil {
		return err
	}
	content, _, diags := f.Body.PartialContent(&hcl.BodySchema{
		Blocks: []hcl.BlockHeaderSchema{{Type: "variable", LabelNames: []string{"name"}}}})
	if diags.HasErrors() {
		return settings.DiagError(diags[:1])
	}
	for _, b := range content.Blocks {
		variables[b.Labels[0]] = true
	}
	return nil
}
