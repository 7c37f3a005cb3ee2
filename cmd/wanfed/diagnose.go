// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/diagnose"
	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/tlsutil"
)

// diagnosis are the flags of diagnose and debug.
type diagnosis struct {
	files              []string
	bundle             string // empty: none
	duration, interval time.Duration
	// debug writes a bundle in any case, and does not fail when a check fails.
	debug bool
}

func newDiagnose() *cobra.Command {
	var d diagnosis
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
bundle has no keys, tokens or gossip keys. With --duration, it also has what
"wanfed debug" captures during that time.

The exit status is 0 if no check failed, and 1 if one failed.`,
		Example: `  wanfed diagnose
  wanfed diagnose dc3 --config-file /etc/wanfed/server.hcl
  wanfed diagnose --output json | jq '.findings[] | select(.result != "ok")'
  wanfed diagnose --bundle bundle.tar.gz`,
		Args: datacenterArgs,
	}
	c.Flags().StringVar(&d.bundle, "bundle", "", "new `file` (tar.gz) to write for support")
	return d.addFlags(c)
}

func newDebug() *cobra.Command {
	d := diagnosis{debug: true, duration: 30 * time.Second}
	c := &cobra.Command{
		Use:   "debug [DC...]",
		Short: "Capture logs, metrics and profiles over a time",
		Long: `Write the bundle of "wanfed diagnose --bundle" with captures over a time: at each
--interval the metrics, the status and the stacks of the server and the gateway of
this machine, and for the whole time their log at the level debug and their
processor time (at most one minute). The level of their own logs does not change.
SIGINT ends the captures early.

The command first checks this machine and its federation like "wanfed diagnose",
with the same flags. What could not be captured is listed in errors.txt. Logs and
profiles need the certificate of an operator, or for profiles that of the server.
The bundle has no keys, tokens or gossip keys.`,
		Example: `  wanfed debug
  wanfed debug --duration 2m --interval 10s --bundle incident.tar.gz
  wanfed debug --dir /srv/wanfed && tar tzf wanfed-debug-*.tar.gz`,
		Args: datacenterArgs,
	}
	c.Flags().StringVar(&d.bundle, "bundle", "", "new `file` to write (default: wanfed-debug-TIME.tar.gz)")
	return d.addFlags(c)
}

// datacenterArgs permits any number of names of datacenters.
func datacenterArgs(_ *cobra.Command, args []string) error {
	for _, dc := range args {
		if err := tlsutil.CheckLabel(dc); err != nil {
			return usagef("datacenter: %w", err)
		}
	}
	return nil
}

// addFlags adds the flags that diagnose and debug have in common, and the
// function that runs both.
func (d *diagnosis) addFlags(c *cobra.Command) *cobra.Command {
	addClientFlags(c)
	c.PreRunE = nil // the check of the files reports errors of --dir
	flags := c.Flags()
	flags.StringArrayVar(&d.files, settings.ConfigFileFlag, nil,
		"`file` with the settings of the server or the gateway; repeatable")
	flags.DurationVar(&d.duration, "duration", d.duration, "`time` of the captures for the bundle, up to 10m; 0: one capture")
	flags.DurationVar(&d.interval, "interval", 5*time.Second, "`time` between two captures, from 1s")
	_ = c.MarkFlagFilename("bundle", "tar.gz")
	c.ValidArgsFunction = completeDatacenters
	printer := output.AddFlag(c)
	c.RunE = func(cmd *cobra.Command, dcs []string) error { return d.run(cmd, dcs, printer()) }
	return c
}

// check checks the flags, and sets the default of bundle.
func (d *diagnosis) check() error {
	switch {
	case d.duration != 0 && (d.duration < time.Second || d.duration > diagnose.MaxDuration):
		return usagef("--duration %v: must be 1s to %v", d.duration, diagnose.MaxDuration)
	case d.interval < diagnose.MinInterval:
		return usagef("--interval %v: must be %v or more", d.interval, diagnose.MinInterval)
	case d.debug && d.bundle == "":
		d.bundle = "wanfed-debug-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
	case d.bundle == "" && d.duration != 0:
		return usagef("--duration is for a bundle: set --bundle")
	}
	return nil
}

func (d *diagnosis) run(cmd *cobra.Command, dcs []string, out output.Printer) error {
	if err := d.check(); err != nil {
		return err
	}
	files := d.files
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
	check := func() (diagnose.Report, error) {
		report := diagnose.Run(cmd.Context(), cfg)
		if cmd.Context().Err() != nil { // failed checks have no meaning
			return report, errors.New("interrupted before the checks were complete")
		}
		return report, out.Print(report, func() error { return printReport(out, report) })
	}
	var report diagnose.Report
	if d.bundle == "" {
		report, err = check()
	} else {
		err = createBundle(d.bundle, func(w io.Writer) error {
			if report, err = check(); err != nil {
				return err
			}
			return d.writeBundle(cmd, w, diagnose.BundleConfig{
				Config: cfg, Report: report, Logs: []string{l.log("server"), l.log("gateway")},
			})
		})
	}
	if err == nil && report.Failed() && !d.debug {
		err = errors.New("a check failed")
	}
	return err
}

// writeBundle writes the bundle.
func (d *diagnosis) writeBundle(cmd *cobra.Command, w io.Writer, cfg diagnose.BundleConfig) error {
	if cfg.Duration, cfg.Interval = d.duration, d.interval; d.duration > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "capturing for %v; SIGINT ends it early\n", d.duration)
		cfg.Watches = []diagnose.LogWatch{{Name: "server-debug.log", Watch: func(ctx context.Context, f lineFunc) error {
			return watchServer(ctx, cmd, f)
		}}}
		if g := cfg.Machine.Gateway; g != nil && g.AdminAddr != "" {
			cfg.Watches = append(cfg.Watches, diagnose.LogWatch{
				Name: "gateway-debug.log", Watch: func(ctx context.Context, f lineFunc) error {
					if cfg.Identity == nil {
						return errors.New("the log needs the certificate of an operator: set --cert-file, --key-file and --ca-file")
					}
					return gatewayd.WatchLog(ctx, g.AdminAddr, cfg.Identity, "debug", "text", f)
				}})
		}
	}
	if err := diagnose.WriteBundle(cmd.Context(), w, cfg); err != nil {
		return fmt.Errorf("write the bundle %s: %w", d.bundle, err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s has no keys and no tokens; read it before you send it\n", d.bundle)
	return nil
}

// lineFunc receives a line of a log and the number of lines that were dropped
// before it.
type lineFunc = func(line string, dropped uint64) error

// watchServer calls f with the lines of the log of the server at the level
// debug.
func watchServer(ctx context.Context, cmd *cobra.Command, f lineFunc) error {
	var o operator
	cc, closeAll, err := o.connect(cmd)
	if err != nil {
		return err
	}
	defer closeAll()
	req := &pb.WatchLogRequest{Level: "debug", Format: "text"}
	return watchLog(ctx, cc, req, func(l *pb.LogLine) error { return f(l.Text, l.Dropped) })
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

// createBundle creates a file before the checks, which take some seconds, and
// removes it if write fails.
func createBundle(path string, write func(w io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create the bundle: %w; name a new file in a directory that this user may write", err)
	}
	if err = errors.Join(write(f), f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}
