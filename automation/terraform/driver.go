// SPDX-License-Identifier: MPL-2.0

package terraform

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/wanfed/wanfed/automation/driver"
)

// Config configures a Driver.
type Config struct {
	// Path is the executable of Terraform or OpenTofu, or the directory that
	// has it. Empty: PATH.
	Path string
}

// Driver runs Terraform or OpenTofu. It is safe for concurrent use.
type Driver struct {
	cfg      Config
	binaries binaries
	modules  modules
	// cache has one element while an init uses the plugin cache.
	cache chan struct{}
}

var _ driver.Driver = (*Driver)(nil)

// New returns a Driver. It does not look for the executable.
func New(cfg Config) *Driver { return &Driver{cfg: cfg, cache: make(chan struct{}, 1)} }

// Version implements driver.Driver.
func (d *Driver) Version(ctx context.Context) (string, error) {
	bin, err := d.binaries.find(ctx, d.cfg.Path)
	if err != nil {
		return "", err
	}
	return bin.name + " " + bin.version.String(), nil
}

// Check checks the executable, the directory of a local module with its
// variables, and the configuration of providers and backend.
func (d *Driver) Check(ctx context.Context, w *driver.Work) error {
	bin, err := d.binaries.find(ctx, d.cfg.Path)
	if err != nil {
		return err
	}
	if err := CheckModule(w.Name, w.Task); err != nil {
		return err
	}
	for _, want := range w.Task.GetTerraform().GetProviders() {
		name, alias, hasAlias := strings.Cut(want, ".") // without an alias, a provider needs no configuration
		if hasAlias && !slices.ContainsFunc(w.Providers, func(p driver.Provider) bool { return p.Name == name && p.Alias == alias }) {
			return fmt.Errorf("the provider %q is not configured: add a block terraform_provider %q", want, name)
		}
	}
	_, err = generate(w, bin)
	return err
}

// Digest implements driver.Driver. It is a digest of the files of a local module.
// An update of Terraform does not start a run.
func (d *Driver) Digest(_ context.Context, w *driver.Work) (string, error) {
	return d.modules.digest(w.Task.GetTerraform().GetModule())
}
