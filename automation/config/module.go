// SPDX-License-Identifier: MPL-2.0

package config

import (
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"

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
