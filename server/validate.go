// SPDX-License-Identifier: MPL-2.0

package server

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/wanfed/wanfed/gossip"
	"github.com/wanfed/wanfed/server/operator"
	"github.com/wanfed/wanfed/server/rpc"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// Defaults.
const (
	DefaultPort     = 8300
	DefaultHTTPAddr = "127.0.0.1:8500"
	DefaultBind     = "0.0.0.0"

	DefaultDeadServerAfter = 10 * time.Minute
	// MinDeadServerAfter is how long a server that was removed and is back has no vote: with less, a short break would cost the
	// group more than it lasts. MaxDeadServerAfter is as good as never.
	MinDeadServerAfter = operator.StableTime
	MaxDeadServerAfter = 365 * 24 * time.Hour
)

// withDefaults fills what was left empty.
func (c Config) withDefaults() Config {
	if c.Domain == "" {
		c.Domain = tlsutil.DefaultDomain
	}
	if c.PrimaryDC == "" {
		c.PrimaryDC, c.primaryByDefault = c.DC, true
	}
	if c.Bind == "" {
		c.Bind = DefaultBind
	}
	switch c.Port {
	case 0:
		c.Port = DefaultPort
	case -1:
		c.Port = 0
	}
	if c.HTTPAddr == "" {
		c.HTTPAddr = DefaultHTTPAddr
	}
	if c.MeshGatewayMode == "" {
		c.MeshGatewayMode = string(wanfed.ModeLocal)
	}
	if c.BootstrapExpect == 0 {
		c.BootstrapExpect = 1
	}
	if c.DeadServerAfter == 0 {
		c.DeadServerAfter = DefaultDeadServerAfter
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// CheckSettings returns everything that is wrong with cfg itself, joined, or nil. It looks at no file.
func CheckSettings(cfg Config) error { return errors.Join(cfg.withDefaults().check()...) }

// CheckFiles returns everything that is wrong with the files and folders that cfg names, joined, or nil. What is missing in
// cfg is for CheckSettings to say. It changes nothing.
func CheckFiles(cfg Config) error {
	_, err := cfg.withDefaults().files()
	return err
}

// Validate is CheckSettings and CheckFiles.
func Validate(cfg Config) error {
	_, err := cfg.withDefaults().validate()
	return err
}

func (c Config) validate() (*tlsutil.Identity, error) {
	id, err := c.files()
	return id, errors.Join(errors.Join(c.check()...), err)
}

// files checks the files, and gives the certificate. Whose it is can be checked only where that is known.
func (c Config) files() (*tlsutil.Identity, error) {
	errs := []error{CheckFolder("data_dir", c.DataDir)}
	if c.EncryptFile != "" {
		_, err := gossip.ReadKeyFile(c.EncryptFile, nil)
		errs = append(errs, err)
	}
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" ||
		tlsutil.CheckDomain(c.Domain) != nil || tlsutil.CheckLabel(c.DC) != nil || tlsutil.CheckLabel(c.Node) != nil {
		return nil, errors.Join(errs...)
	}
	id, err := c.identity()
	return id, errors.Join(append(errs, err)...)
}

// CheckFolder returns an error, which names the setting, for a path at which there is something else than a folder. One that
// is not there yet, or no path at all, is no fault.
func CheckFolder(setting, path string) error {
	if path == "" {
		return nil
	}
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return fmt.Errorf("%s %s is a file, not a folder: name a folder, or move the file away", setting, filepath.Clean(path))
	}
	return nil
}

// identity loads the certificate and checks that it is this server's.
func (c Config) identity() (*tlsutil.Identity, error) {
	id, err := tlsutil.Load(tlsutil.Files{CA: c.CAFile, Cert: c.CertFile, Key: c.KeyFile}, c.Domain, c.Logger)
	if err != nil {
		return nil, err
	}
	return id, id.VerifySubject(tlsutil.RoleServer, c.Node, c.DC)
}

// check finds faults that need no file.
func (c Config) check() (errs []error) {
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct{ name, value, example string }{
		{"dc", c.DC, "--dc dc1"}, {"node", c.Node, "--node srv1"},
	} {
		if f.value == "" {
			fault("%s is required, for example %s", f.name, f.example)
		} else if err := tlsutil.CheckLabel(f.value); err != nil {
			fault("%s: %w", f.name, err)
		}
	}
	if err := tlsutil.CheckLabel(c.PrimaryDC); err != nil && c.PrimaryDC != c.DC { // by default they are the same: one fault
		fault("primary_datacenter: %w", err)
	}
	if err := tlsutil.CheckDomain(c.Domain); err != nil {
		fault("domain: %w", err)
	}
	for _, f := range []struct{ name, value, flag string }{
		{"data_dir", c.DataDir, "--data-dir"}, {"ca_file", c.CAFile, "--ca-file"},
		{"cert_file", c.CertFile, "--cert-file"}, {"key_file", c.KeyFile, "--key-file"},
	} {
		if f.value == "" {
			fault("%s is required: set %s", f.name, f.flag)
		}
	}
	errs = append(errs, c.checkFederation()...)
	errs = append(errs, c.checkAddresses()...)
	switch c.BootstrapExpect {
	case 1:
	case 3, 5:
		if len(c.RetryJoin) == 0 {
			fault("bootstrap_expect is %d but retry_join is empty: name the other servers, for example --retry-join 10.0.0.2:8300", c.BootstrapExpect)
		}
	default:
		fault("bootstrap_expect is %d: must be 1, 3 or 5", c.BootstrapExpect)
	}
	switch {
	case c.DeadServerAfter < MinDeadServerAfter:
		fault("dead_server_after is %v: must be %v or more, since a server that was removed and is back has no vote for %v: a shorter break would cost more than it lasts",
			c.DeadServerAfter, MinDeadServerAfter, operator.StableTime)
	case c.DeadServerAfter > MaxDeadServerAfter:
		fault("dead_server_after is %v: must be %v (a year) or less", c.DeadServerAfter, MaxDeadServerAfter)
	}
	return errs
}

func (c Config) checkFederation() (errs []error) {
	switch {
	case c.DC == "": // told already, and no more to tell without it
	case c.primaryByDefault && len(c.PrimaryGateways) > 0: // a secondary whose primary_datacenter was forgotten, mostly
		errs = append(errs, fmt.Errorf("primary_gateways is set, but %s is the primary itself: remove it, or name a primary_datacenter: another, or %s", c.DC, c.DC))
	case c.DC != c.PrimaryDC && len(c.PrimaryGateways) == 0:
		errs = append(errs, fmt.Errorf("primary_gateways is missing: %s is a secondary of %s and needs at least one WAN address of a gateway there, "+
			"for example --primary-gateway gw.%s.example.com:8443", c.DC, c.PrimaryDC, c.PrimaryDC))
	}
	if err := wanfed.Mode(c.MeshGatewayMode).Check(); err != nil {
		errs = append(errs, fmt.Errorf("mesh_gateway_mode %w", err))
	}
	for _, addr := range c.PrimaryGateways {
		if err := checkHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("primary_gateways: %w", err))
		}
	}
	for _, dc := range c.RemoteWritesFrom {
		if err := tlsutil.CheckLabel(dc); err != nil && dc != rpc.AnyDatacenter {
			errs = append(errs, fmt.Errorf("remote_writes_from: %w; name datacenters, or write %q for every one", err, rpc.AnyDatacenter))
		}
	}
	for _, addr := range c.RetryJoin {
		if err := checkHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("retry_join: %w", err))
		}
	}
	return errs
}
