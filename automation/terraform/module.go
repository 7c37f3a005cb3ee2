// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
)

// ModulePath returns the absolute path of the directory of a local module, and
// whether source is one. "./" and "../" are relative to the working directory of
// the daemon.
func ModulePath(source string) (path string, local bool, err error) {
	if !strings.HasPrefix(source, "./") && !strings.HasPrefix(source, "../") && !filepath.IsAbs(source) {
		return source, false, nil
	}
	path, err = filepath.Abs(source)
	return path, true, err
}

// ModuleDigest returns a digest of all files of a local module, or of the source
// if the module is not local. Files and directories whose name begins with a dot
// do not count.
func ModuleDigest(source string) (string, error) {
	path, local, err := ModulePath(source)
	if err != nil || !local {
		return source, err
	}
	h := sha256.New()
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != path && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if info, err := os.Stat(file); err != nil || !info.Mode().IsRegular() { // follows links
			return err
		}
		b, err := os.ReadFile(file)
		name, _ := filepath.Rel(path, file) // file is below path
		fmt.Fprintf(h, "%q %d\n", name, len(b))
		h.Write(b)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("module %s: %w", source, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// variables returns the variables that the root module passes to the module:
// services always, and those of the other conditions and inputs.
func variables(t *pb.Task) []string {
	vars := []string{task.Variable(task.KindServices)}
	for _, kind := range []string{
		task.KindCatalogServices, task.KindKV, task.KindNodes, task.KindDocument, task.KindResource,
		task.KindFederation, task.KindGateway, task.KindMember, task.KindDatacenter,
	} {
		if slices.ContainsFunc(slices.Concat(t.Conditions, t.Inputs), func(q *pb.TaskQuery) bool {
			return q.Kind == kind && !q.TriggerOnly
		}) {
			vars = append(vars, task.Variable(kind))
		}
	}
	return vars
}

// checkModule checks that the directory of a local module exists and declares
// the variables that it receives.
func checkModule(name string, t *pb.Task) error {
	path, local, err := ModulePath(t.GetTerraform().GetModule())
	if err != nil || !local {
		return err
	}
	declared, err := declaredVariables(path)
	if err != nil {
		return fmt.Errorf("module %s: %w", t.GetTerraform().GetModule(), err)
	}
	for _, v := range variables(t) {
		switch {
		case declared[v]:
		case v == task.Variable(task.KindServices):
			return fmt.Errorf("module for task %q is missing the %q variable", name, v)
		default:
			return fmt.Errorf(`module for task %q is missing the %q variable, add to module or set "use_as_module_input" to false`, name, v)
		}
	}
	for v := range t.Variables {
		if !declared[v] {
			return fmt.Errorf("module for task %q is missing the %q variable, which variable_files or variables set", name, v)
		}
	}
	return nil
}

// declaredVariables returns the names of the variables that the files of a
// module declare.
func declaredVariables(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names, files := make(map[string]bool), 0
	parser := hclparse.NewParser()
	for _, entry := range entries {
		var file *hcl.File
		var diags hcl.Diagnostics
		path := filepath.Join(dir, entry.Name())
		switch base := strings.TrimSuffix(entry.Name(), ".json"); {
		case filepath.Ext(base) != ".tf" && filepath.Ext(base) != ".tofu":
			continue
		case base != entry.Name():
			file, diags = parser.ParseJSONFile(path)
		default:
			file, diags = parser.ParseHCLFile(path)
		}
		if diags.HasErrors() {
			return nil, diags
		}
		content, _, diags := file.Body.PartialContent(&hcl.BodySchema{
			Blocks: []hcl.BlockHeaderSchema{{Type: "variable", LabelNames: []string{"name"}}},
		})
		if diags.HasErrors() {
			return nil, diags
		}
		files++
		for _, b := range content.Blocks {
			names[b.Labels[0]] = true
		}
	}
	if files == 0 {
		return nil, fmt.Errorf("the directory %s has no configuration files", cmp.Or(dir, "."))
	}
	return names, nil
}
