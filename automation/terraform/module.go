// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/automation/task"
	"github.com/wanfed/wanfed/internal/settings"
)

// modulePath returns the absolute path of the directory of a local module, and
// whether source is one. "./" and "../" are relative to the working directory of
// the daemon.
func modulePath(source string) (path string, local bool, err error) {
	if !strings.HasPrefix(source, "./") && !strings.HasPrefix(source, "../") && !filepath.IsAbs(source) {
		return source, false, nil
	}
	path, err = filepath.Abs(source)
	return path, true, err
}

// modules caches the digests of local modules. It is safe for concurrent use.
type modules struct {
	mu    sync.Mutex
	known map[string]moduleDigest // by path
}

type moduleDigest struct {
	// stat is a digest of the names, sizes and times of the files. It is not the
	// same on another machine.
	stat   string
	digest string
}

// digest returns a digest of all files of a local module, or the source if the
// module is not local. Files and directories whose name begins with a dot do not
// count.
func (m *modules) digest(source string) (string, error) {
	path, local, err := modulePath(source)
	if err != nil || !local {
		return source, err
	}
	stat, err := digestFiles(path, func(h io.Writer, _ string, info fs.FileInfo) error {
		_, err := fmt.Fprintln(h, info.Size(), info.ModTime().UnixNano())
		return err
	})
	if err != nil {
		return "", fmt.Errorf("module %s: %w", source, err)
	}
	m.mu.Lock()
	known := m.known[path]
	m.mu.Unlock()
	if known.stat == stat {
		return known.digest, nil
	}
	known.stat = stat
	known.digest, err = digestFiles(path, func(h io.Writer, file string, _ fs.FileInfo) error {
		b, err := os.ReadFile(file)
		fmt.Fprintf(h, "%d\n%s", len(b), b)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("module %s: %w", source, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil {
		m.known = make(map[string]moduleDigest)
	}
	m.known[path] = known
	return known.digest, nil
}

// digestFiles returns a digest of the names of all files below dir, and of what
// write writes for each. Links to files count as files.
func digestFiles(dir string, write func(h io.Writer, file string, info fs.FileInfo) error) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != dir && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		name, _ := filepath.Rel(dir, file) // file is below dir
		fmt.Fprintf(h, "%q ", name)
		return write(h, file, info)
	})
	return hex.EncodeToString(h.Sum(nil)), err
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

// CheckModule returns a *task.FieldError unless the directory of a local module
// exists and declares the variables that the task with that name gives it. It
// reads only local modules. A task of another driver has none.
func CheckModule(name string, t *pb.Task) error {
	path, local, err := modulePath(t.GetTerraform().GetModule())
	if err != nil || !local {
		return err
	}
	declared, err := declaredVariables(path)
	if err != nil {
		return &task.FieldError{Field: "terraform.module", Reason: err.Error()}
	}
	has := func(name string) bool { _, ok := declared[name]; return ok }
	missing := func(field, variable, remedy string) error {
		return &task.FieldError{Field: field,
			Reason: fmt.Sprintf("module for task %q is missing the %q variable, %s", name, variable, remedy)}
	}
	for _, v := range variables(t) {
		switch {
		case has(v):
		case v == task.Variable(task.KindServices):
			return missing("terraform.module", v, "add to module")
		default:
			return missing("terraform.module", v, `add to module or set "use_as_module_input" to false`)
		}
	}
	for v := range t.Variables {
		if !has(v) {
			return missing("variables", v, "add to module or remove its value")
		}
	}
	return nil
}

// declaredVariables returns the variables that the files of a module declare, with
// their types. The type is nil if it is absent.
func declaredVariables(dir string) (map[string]hcl.Expression, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the module: %w", err)
	}
	declared, found := make(map[string]hcl.Expression), false
	for _, entry := range entries {
		if ext := filepath.Ext(strings.TrimSuffix(entry.Name(), ".json")); ext == ".tf" || ext == ".tofu" {
			found = true
			if err := addVariables(filepath.Join(dir, entry.Name()), declared); err != nil {
				return nil, err
			}
		}
	}
	if !found {
		return nil, fmt.Errorf("%s has no files *.tf: it is not a module", dir)
	}
	return declared, nil
}

// addVariables adds the variables of a file of a module.
func addVariables(path string, declared map[string]hcl.Expression) error {
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
		declared[b.Labels[0]] = nil
		attrs, _, _ := b.Body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "type"}}}) // Terraform reports errors
		if ty := attrs.Attributes["type"]; ty != nil {
			declared[b.Labels[0]] = ty.Expr
		}
	}
	return nil
}
