// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/wanfed/wanfed/automation/driver"
)

// digestFile has the digest of what the last successful init has installed.
const digestFile = "init.digest"

// write writes the generated files and the inputs into the directory, and
// removes outdated ones.
func (c *run) write() error {
	files := maps.Clone(c.root.files)
	for _, name := range variables(c.Task) {
		file := inputFile(name)
		value, ok := c.Inputs[name]
		if _, err := os.Stat(filepath.Join(c.Dir, file)); !ok && c.Mode == driver.Destroy && err == nil {
			continue // the last inputs
		}
		if !ok {
			value = []byte("{}")
		}
		if c.root.parted[name] {
			var err error
			if value, err = parts(value); err != nil {
				return fmt.Errorf("variable %q: %w", name, err)
			}
		}
		files[file] = value
	}
	for name, b := range files {
		path := filepath.Join(c.Dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			return fmt.Errorf("write the configuration: %w", err)
		}
	}
	for _, name := range append([]string{variablesFile, valuesFile, inputsFile}, outdated...) {
		if _, ok := files[name]; !ok {
			if err := remove(filepath.Join(c.Dir, name)); err != nil {
				return fmt.Errorf("remove an outdated file: %w", err)
			}
		}
	}
	return nil
}

// partSize is the number of elements of a part. Terraform compares the elements of
// each part in pairs, and the parts in pairs.
const partSize = 32

// parts divides a JSON object into a list of objects, in the order of the names.
func parts(object json.RawMessage) (json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(object, &all); err != nil {
		return nil, err
	}
	list := []map[string]json.RawMessage{{}} // the type of a map without parts is unknown
	for _, name := range slices.Sorted(maps.Keys(all)) {
		last := list[len(list)-1]
		if len(last) == partSize {
			last = make(map[string]json.RawMessage, partSize)
			list = append(list, last)
		}
		last[name] = all[name]
	}
	return json.Marshal(list)
}

// remove removes a file, if it exists.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// init runs "terraform init" and selects the workspace, if something has changed
// since the last time. Only one init at a time uses a plugin cache: Terraform
// does not lock it.
func (c *run) init(ctx context.Context, d *Driver) error {
	digest, err := c.initDigest(d)
	if err != nil {
		return err
	}
	path := filepath.Join(c.Dir, digestFile)
	_, statErr := os.Stat(filepath.Join(c.Dir, ".terraform"))
	if old, err := os.ReadFile(path); err == nil && statErr == nil && string(old) == digest {
		return nil
	}
	if os.Getenv("TF_PLUGIN_CACHE_DIR") != "" {
		select {
		case d.cache <- struct{}{}:
			defer func() { <-d.cache }()
		case <-ctx.Done():
			return driver.ErrInterrupted
		case <-time.After(time.Until(c.deadline)):
			return driver.ErrTimedOut
		}
	}
	// The option disregards the backend of an earlier configuration. Terraform
	// reads the file of it nevertheless, and fails if a full disk has cut it off.
	if err := remove(filepath.Join(c.Dir, ".terraform", "terraform.tfstate")); err != nil {
		return err
	}
	args := []string{"init", "-input=false", "-no-color", "-reconfigure"}
	if c.Backend.Type == "local" {
		args = append(args, "-force-copy") // states in the directory, without the removed .terraform
	}
	if err := c.step(ctx, "init", nil, c.log, args...); err != nil {
		return err
	}
	if c.Backend.Type != backendHTTP {
		if err := c.workspace(ctx); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(digest), 0o600)
}

// workspace selects the workspace of the task, and creates it if necessary.
func (c *run) workspace(ctx context.Context) error {
	err := c.step(ctx, "workspace select", nil, nil, "workspace", "select", c.Name)
	if err == nil || errors.Is(err, driver.ErrInterrupted) || errors.Is(err, driver.ErrTimedOut) {
		return err
	}
	return c.step(ctx, "workspace new", nil, c.log, "workspace", "new", "-no-color", c.Name)
}

// initDigest returns a digest of everything that init depends on.
func (c *run) initDigest(d *Driver) (string, error) {
	module, err := d.modules.digest(c.Task.GetTerraform().GetModule())
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %s\n%s\n%s\n", c.bin.name, c.bin.version, module, c.Name)
	for _, name := range slices.Sorted(maps.Keys(c.root.files)) {
		if strings.HasSuffix(name, ".tf") {
			fmt.Fprintf(h, "%s %d\n%s\n", name, len(c.root.files[name]), c.root.files[name])
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
