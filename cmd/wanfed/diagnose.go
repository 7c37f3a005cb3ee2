// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/diagnose"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

func newDiagnose() *cobra.Command {
	var files []string
	var bundle string
	c := &cobra.Command{
		Use:   "diagnose [DC...]",
		Short: "Find out why a datacenter does not work",
		Long: `Check this machine and its federation, before and after it joins, in less than 10
seconds: the files of settings, certificates, disk, ports, clocks and versions, and
each path to each datacenter: TCP, TLS, the name, an echo and the path MTU. The
other direction is the status of the other datacenters, which the local server
requests. Without a server, the checks of files and paths remain.

Each line is one check: ok, warn or fail, and the cause and the remedy. The first
line is the most likely cause of the others. With names of datacenters, only these
are checked. "wanfed status" shows what the local server knows without a check.

The settings are those of --config-file, or of server.hcl and gateway.hcl in the
directory of --dir or in /etc/wanfed. The address and the certificate for the HTTP
API are those of the server, unless flags set them.

--bundle writes the result and what the processes of this machine report to a new
tar.gz file for support: status, members, metrics, profiles, logs and settings. The
bundle has no keys, tokens or gossip keys.

The exit status is 0 if no check failed, and 1 if one failed.`,
		Example: `  wanfed diagnose
  wanfed diagnose dc3 --config-file /etc/wanfed/server.hcl
  wanfed diagnose --output json | jq '.findings[] | select(.result != "ok")'
  wanfed diagnose --bundle bundle.tar.gz`,
		Args: func(_ *cobra.Command, args []string) error {
			for _, dc := range args {
				if err := tlsutil.CheckLabel(dc); err != nil {
					return usagef("datacenter: %w", err)
				}
			}
			return nil
		},
	}
	addClientFlags(c)
	c.PreRunE = nil // the check of the files reports errors of --dir
	c.Flags().StringArrayVar(&files, settings.ConfigFileFlag, nil,
		"`file` with the settings of the server or the gateway; repeatable")
	c.Flags().StringVar(&bundle, "bundle", "", "new `file` (tar.gz) to write for support")
	c.ValidArgsFunction = completeDatacenters
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, dcs []string) error {
		return runDiagnose(cmd, dcs, files, bundle, printer())
	}
	return c
}

func runDiagnose(cmd *cobra.Command, dcs, files []string, bundle string, out output.Printer) error {
	l, err := newLayout(settings.FlagOrEnv(cmd.Flags(), "dir"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		for _, f := range []string{l.serverHCL(), l.gatewayHCL()} {
			if _, err := os.Stat(f); err == nil {
				files = append(files, f)
			}
		}
	}
	m := diagnose.ReadMachine(files)
	if err := useTarget(cmd); err != nil && len(files) == 0 {
		return err
	}
	if err := useServer(cmd, m); err != nil {
		return err
	}
	cfg := diagnose.Config{Machine: m, Datacenters: dcs}
	cl, err := newClient(cmd, 0)
	if err != nil && len(files) == 0 {
		return err
	}
	if err == nil {
		defer cl.Close()
		cfg.Client = cl.Client
	} else if cfg.Client, err = api.NewClient(api.ClientConfig{
		Addr: settings.FlagOrEnv(cmd.Flags(), "http-addr"), AddrSource: sourceOf(cmd, "http-addr"),
	}); err != nil {
		return usageError{err}
	}
	if settings.FlagOrEnv(cmd.Flags(), "cert-file") != "" {
		cfg.Identity, _ = loadIdentity(cmd, cmd.CommandPath()) // the check of the files reports an error
	}
	report := diagnose.Run(cmd.Context(), cfg)
	if err := out.Print(report, func() error { return printReport(out, report) }); err != nil {
		return err
	}
	if bundle != "" {
		if err := writeBundle(cmd.Context(), bundle, diagnose.BundleConfig{
			Config: cfg, Report: report, Logs: []string{l.log("server"), l.log("gateway")},
		}); err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s has no keys and no tokens; read it before you send it\n", bundle)
	}
	if report.Failed() {
		return errors.New("a check failed")
	}
	return nil
}

// useServer sets the flags of the client that are not given to the settings of
// the server of this machine.
func useServer(cmd *cobra.Command, m diagnose.Machine) error {
	s := m.Server
	if s == nil {
		return nil
	}
	for _, f := range []struct{ flag, value string }{
		// A wildcard is an address to listen on. Certificates have the loopback addresses.
		{"http-addr", strings.NewReplacer("0.0.0.0", "127.0.0.1", "[::]", "[::1]").Replace(s.HTTPAddr)},
		{"domain", s.Domain}, {"ca-file", s.CAFile}, {"cert-file", s.CertFile}, {"key-file", s.KeyFile},
	} {
		if given := cmd.Flags().Changed(f.flag) || os.Getenv(settings.EnvName(f.flag)) != ""; !given {
			if err := setFrom(cmd, f.flag, f.value, "settings of the server"); err != nil {
				return err
			}
		}
	}
	return nil
}

func printReport(out output.Printer, r diagnose.Report) error {
	rows := [][]string{{"Result", "Check", "Cause and Remedy"}}
	for _, f := range r.Findings {
		detail := f.Cause
		if f.Remedy != "" {
			detail += "; " + f.Remedy
		}
		rows = append(rows, []string{string(f.Result), f.Check, detail})
	}
	return out.Table(rows)
}

// writeBundle writes a bundle to a new file.
func writeBundle(ctx context.Context, path string, cfg diagnose.BundleConfig) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create the bundle: %w; name a new file", err)
	}
	err = errors.Join(diagnose.WriteBundle(ctx, f, cfg), f.Close())
	if err != nil {
		err = errors.Join(fmt.Errorf("write the bundle %s: %w", path, err), os.Remove(path))
	}
	return err
}
