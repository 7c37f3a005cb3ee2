// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/unit"
)

// starter starts the processes of a machine.
type starter struct {
	noStart bool
	once    bool
	timeout time.Duration
	server  bool // set by check, like gateway
	gateway bool
}

func (s *starter) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.noStart, "no-start", false, "start nothing: start it later with wanfed up")
	cmd.Flags().BoolVar(&s.once, "once", false, "exit with status 0 and change nothing if this machine has its files already")
	cmd.Flags().DurationVar(&s.timeout, "timeout", time.Minute, "`duration` to wait until the started processes are ok")
}

// done reports whether --once was given and the files exist, and prints that.
func (s *starter) done(cmd *cobra.Command, l layout) bool {
	if !s.once || !l.complete() {
		return false
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s has the files of this machine; nothing was changed\n", l.conf)
	return true
}

// check returns an error if the files or the processes would meet others.
func (s *starter) check(cmd *cobra.Command, l layout, a addresses, withServer, withGateway bool) error {
	s.server, s.gateway = withServer, withGateway
	if err := checkDuration("timeout", s.timeout, time.Second, 0); err != nil {
		return err
	}
	if runtime.GOOS == "windows" && (withServer || withGateway) {
		return errWindows(cmd)
	}
	if err := l.checkFree(); err != nil {
		return err
	}
	if s.noStart {
		return nil
	}
	return a.checkPorts(withServer, withGateway)
}

// process is one of the processes of a machine.
type process struct{ name, file string }

// processes returns the processes to start.
func (s *starter) processes(l layout) (all []process) {
	if s.server {
		all = append(all, process{"server", l.serverHCL()})
	}
	if s.gateway {
		all = append(all, process{"gateway", l.gatewayHCL()})
	}
	return all
}

// run starts the processes and waits until they are ok.
func (s *starter) run(cmd *cobra.Command, l layout, a addresses, dc string) error {
	dirFlag := ""
	if l.own {
		dirFlag = " --dir " + l.conf
	}
	if s.noStart {
		fmt.Fprintf(cmd.OutOrStdout(), "start it with: wanfed up%s\n", dirFlag)
		return nil
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	started := startDetached
	if !l.own && systemdRuns() {
		started = startUnits
	}
	failed, err := started(cmd.Context(), program, l, s.processes(l))
	if err != nil {
		return err
	}
	wait := awaitServer
	if !s.server {
		wait = awaitGateway
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), s.timeout)
	defer cancel()
	err = await(ctx, failed, func(ctx context.Context) error { return wait(ctx, a, dc) })
	if gone := failed(); gone != nil {
		return gone
	}
	if err != nil {
		return fmt.Errorf("%s is not ok: %w; the processes continue: see %s", dc, err, logsOf(l))
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is ok; see: wanfed status%s\n", dc, dirFlag)
	return nil
}

// logsOf names the place of the logs.
func logsOf(l layout) string {
	if !l.own && systemdRuns() {
		return "journalctl -u 'wanfed-*'"
	}
	return filepath.Join(l.data, "*.log")
}

// await calls check until it returns nil, a process has failed, or ctx ends. It
// returns the last error of check.
func await(ctx context.Context, failed func() error, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil || failed() != nil || ctx.Err() != nil {
			return err
		}
		backoff.Sleep(ctx, 50*time.Millisecond, nil) // another process has no event to wait for
	}
}

// awaitServer returns an error unless the local datacenter and the primary are
// ok according to the local server.
func awaitServer(ctx context.Context, a addresses, dc string) error {
	c, err := api.NewClient(api.ClientConfig{Addr: a.http(), Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Status(ctx, api.QueryOptions{})
	if err != nil {
		return err
	}
	if s.Leader == "" {
		return fmt.Errorf("%s has no leader", dc)
	}
	found := map[string]bool{}
	for _, d := range s.Datacenters {
		found[d.Name] = true
		if d.Health() != api.HealthOK && (d.Name == dc || d.Name == s.PrimaryDatacenter) {
			cause := cmp.Or(d.Cause, d.Advice, d.LastError, s.Headline)
			return errors.New(output.Printable(fmt.Sprintf("%s is %s: %s", d.Name, d.Health(), cause)))
		}
	}
	if !found[s.PrimaryDatacenter] {
		return fmt.Errorf("the primary %s is not known yet", s.PrimaryDatacenter)
	}
	return nil
}

// awaitGateway returns an error unless the local gateway is ready.
func awaitGateway(ctx context.Context, _ addresses, _ string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+gatewayAdminAddr+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the gateway is not ready: %s", resp.Status)
	}
	return nil
}

// startDetached starts processes in the background. failed returns the error of
// the first one that has ended.
func startDetached(_ context.Context, program string, l layout, all []process) (failed func() error, err error) {
	if err := os.MkdirAll(l.data, 0o700); err != nil {
		return nil, err
	}
	var started []*subprocess.Detached
	for _, p := range all {
		d, err := subprocess.StartDetached(p.name, []string{program, p.name, "--config-file", p.file}, l.log(p.name))
		if err != nil {
			return nil, err
		}
		started = append(started, d)
		pid := filepath.Join(l.data, p.name+".pid")
		if err := os.WriteFile(pid, []byte(strconv.Itoa(d.Pid())+"\n"), 0o644); err != nil {
			return nil, err
		}
	}
	return func() error {
		for _, d := range started {
			if err := d.Err(); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// systemdRuns reports whether systemd is the service manager, as sd_booted(3)
// does.
func systemdRuns() bool {
	info, err := os.Stat("/run/systemd/system")
	return err == nil && info.IsDir()
}

// startUnits writes a unit for each process, unless a package has installed it,
// and starts the units.
func startUnits(ctx context.Context, program string, l layout, all []process) (failed func() error, err error) {
	names := []string{}
	for _, p := range all {
		u := unit.Unit{Command: p.name, Program: program, Settings: p.file, Data: l.data, User: unitUser()}
		name := u.Name()
		names = append(names, name)
		if exec.CommandContext(ctx, "systemctl", "cat", name).Run() == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join("/etc/systemd/system", name), []byte(u.String()), 0o644); err != nil {
			return nil, fmt.Errorf("write the unit %s: %w", name, err)
		}
	}
	for _, args := range [][]string{{"daemon-reload"}, append([]string{"enable", "--now", "--no-block"}, names...)} {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("systemctl %s: %w: %s", args[0], err, strings.TrimSpace(string(out)))
		}
	}
	return func() error {
		for _, name := range names {
			if exec.CommandContext(ctx, "systemctl", "is-failed", "--quiet", name).Run() == nil {
				return fmt.Errorf("unit %s has failed; see: journalctl -u %s", name, name)
			}
		}
		return nil
	}, nil
}
