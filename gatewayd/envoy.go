// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/atomicfile"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// EnvoySettings are the settings of an Envoy that is the gateway of a
// datacenter.
type EnvoySettings struct {
	DC            string   `hcl:"dc,optional" help:"name of this datacenter (required)"`
	Node          string   `hcl:"node,optional" help:"name of this gateway in its datacenter (required)"`
	DataDir       string   `hcl:"data_dir,optional" help:"directory of Envoy's bootstrap and the addresses of servers (required)"`
	CAFile        string   `hcl:"ca_file,optional" help:"PEM file with the CA certificates (required)"`
	CertFile      string   `hcl:"cert_file,optional" help:"PEM file with the certificate of this gateway (required)"`
	KeyFile       string   `hcl:"key_file,optional" help:"PEM file with the private key of the certificate (required)"`
	Servers       []string `hcl:"servers,optional" flag:"server" help:"host:port of a server of this datacenter (required); repeatable"`
	LAN           string   `hcl:"lan,optional" help:"ip:port of the listener for servers of this datacenter (required)"`
	WAN           string   `hcl:"wan,optional" help:"host:port that other datacenters dial; also the listen address, unless --wan-bind is given (required)"`
	WANBind       string   `hcl:"wan_bind,optional" help:"ip:port of the listener for other datacenters, for a gateway behind NAT (default: --wan)"`
	AdminAddr     string   `hcl:"admin_addr,optional" help:"loopback host:port of Envoy's admin interface"`
	MaxConns      int      `hcl:"max_conns,optional" help:"maximum number of client connections"`
	AccessLog     int      `hcl:"access_log_percent,optional" help:"percentage of connections with a line in the access log, on stdout"`
	ShutdownDelay string   `hcl:"shutdown_delay,optional" help:"time in which a stopping gateway still accepts connections"`
	DrainTime     string   `hcl:"drain_time,optional" help:"time that open connections have after --shutdown-delay"`
	Envoy         string   `hcl:"envoy,optional" help:"path or name of Envoy's binary, version 1.40"`
	Domain        string   `hcl:"domain,optional" help:"domain of names in certificates; the same in the whole federation"`
	LogLevel      string   `hcl:"log_level,optional" help:"debug, info, warn or error"`
	LogFormat     string   `hcl:"log_format,optional" help:"text or json"`
}

// DefaultEnvoySettings returns the defaults.
func DefaultEnvoySettings() EnvoySettings {
	d := DefaultSettings()
	return EnvoySettings{
		AdminAddr: "127.0.0.1:9901", MaxConns: 65536, ShutdownDelay: d.ShutdownDelay, DrainTime: d.DrainTime,
		Envoy: "envoy", Domain: tlsutil.DefaultDomain, LogLevel: d.LogLevel, LogFormat: d.LogFormat,
	}
}

// gateway returns the equivalent settings of a native gateway.
func (s EnvoySettings) gateway() Settings {
	g := DefaultSettings()
	g.DC, g.Node, g.DataDir, g.Domain = s.DC, s.Node, s.DataDir, s.Domain
	g.CAFile, g.CertFile, g.KeyFile, g.Servers = s.CAFile, s.CertFile, s.KeyFile, s.Servers
	g.LAN, g.WAN, g.WANBind, g.AdminAddr = s.LAN, s.WAN, s.WANBind, s.AdminAddr
	g.ShutdownDelay, g.DrainTime, g.LogLevel, g.LogFormat = s.ShutdownDelay, s.DrainTime, s.LogLevel, s.LogFormat
	return g
}

// Check returns all errors of the settings. It opens no file.
func (s EnvoySettings) Check() error {
	errs := errorList{s.gateway().Check()}
	if s.AdminAddr == "" {
		errs.addf("admin_addr is required, for example --admin-addr 127.0.0.1:9901")
	}
	if s.MaxConns <= 0 {
		errs.addf("max_conns %d is not positive", s.MaxConns)
	}
	if s.AccessLog < 0 || s.AccessLog > 100 {
		errs.addf("access_log_percent %d is not between 0 and 100", s.AccessLog)
	}
	return settings.Join(errs...)
}

// EnvoyConfig configures RunEnvoy.
type EnvoyConfig struct {
	Settings EnvoySettings // accepted by Check
	Args     []string      // additional arguments of Envoy
	// Stdout receives one line with the addresses when Envoy listens, and
	// Envoy's access log. Stderr receives the logs of both. Both are written
	// concurrently.
	Stdout, Stderr io.Writer
}

// RunEnvoy runs Envoy as a gateway until ctx ends: it registers the gateway,
// starts Envoy, and at the end deregisters, drains and stops Envoy. It returns
// an error if Envoy ends by itself.
func RunEnvoy(ctx context.Context, cfg EnvoyConfig) error {
	s := cfg.Settings
	level, err := settings.ParseLevel(s.LogLevel)
	if err != nil {
		return err
	}
	log, err := settings.NewLogger(cfg.Stderr, level, s.LogFormat)
	if err != nil {
		return err
	}
	e := &envoy{EnvoyConfig: cfg, log: log.With("dc", s.DC, "gateway", s.Node), ended: make(chan struct{})}
	id, err := s.gateway().identity(e.log)
	if err != nil {
		return err
	}
	client, err := proxycfg.New(proxycfg.Config{
		Identity: id, Servers: s.Servers, LAN: s.LAN, WAN: s.WAN, DataDir: s.DataDir, Logger: e.log,
		Call: renewCertificate(id, e.log),
	})
	if err != nil {
		return err
	}
	if err := e.start(); err != nil {
		return err
	}
	base, stopAll := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAll()
	group, gctx := errgroup.WithContext(base)
	changed := id.Changed()
	group.Go(func() error { return id.Run(gctx) })
	group.Go(func() error { e.renew(gctx, id, changed); return nil })
	registered, deregister := context.WithCancel(gctx)
	defer deregister()
	deregistered := make(chan struct{})
	group.Go(func() error { defer close(deregistered); return client.Run(registered) })
	e.awaitListening(ctx, gctx)
	select {
	case <-ctx.Done():
	case <-gctx.Done():
	case <-e.ended:
	}
	sdnotify.Send(e.log, sdnotify.Stopping)
	deregister()
	<-deregistered
	err = e.stop()
	stopAll()
	return errors.Join(group.Wait(), err)
}

// envoy is an Envoy process.
type envoy struct {
	EnvoyConfig
	log   *slog.Logger
	cmd   *exec.Cmd
	ended chan struct{} // closed after err is set
	err   error
}

// start writes the bootstrap and starts Envoy.
func (e *envoy) start() error {
	if err := e.Settings.writeSecrets(true); err != nil {
		return err
	}
	b, err := e.Settings.bootstrap()
	if err != nil {
		return err
	}
	path := filepath.Join(e.Settings.DataDir, "envoy.json")
	if err := atomicfile.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write the bootstrap of Envoy: %w", err)
	}
	args := append([]string{"-c", path, "--disable-hot-restart", "--log-level", e.logLevel()}, e.Args...)
	e.cmd = exec.Command(e.Settings.Envoy, args...)
	e.cmd.Stdout, e.cmd.Stderr = e.Stdout, e.Stderr
	e.cmd.SysProcAttr = envoyAttr()
	started := make(chan error, 1)
	go func() {
		// On Linux, Envoy is killed when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := e.cmd.Start()
		started <- err
		if err == nil {
			e.err = e.cmd.Wait()
			close(e.ended)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start Envoy: %w; install Envoy 1.40, or name its binary with --envoy", err)
	}
	e.log.Info("envoy started", "pid", e.cmd.Process.Pid, "admin", "http://"+e.Settings.AdminAddr)
	return nil
}

// renew makes Envoy read its certificate files after each change of id, until
// ctx ends. changed is closed at the first change.
func (e *envoy) renew(ctx context.Context, id *tlsutil.Identity, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		changed = id.Changed()
		if err := e.Settings.writeSecrets(true); err != nil {
			e.log.Error("cannot renew the certificate of envoy", "err", err)
		}
	}
}

func (e *envoy) logLevel() string { return strings.Replace(e.Settings.LogLevel, "info", "warn", 1) }

const (
	adminTimeout  = time.Second
	adminInterval = 20 * time.Millisecond // between two requests while waiting for a state
	killTimeout   = 5 * time.Second       // from SIGTERM
)

// awaitListening waits until Envoy has received its listeners, and prints the
// ready line. Envoy's admin interface has no event for that.
func (e *envoy) awaitListening(stop, failed context.Context) {
	for stop.Err() == nil && failed.Err() == nil {
		select {
		case <-e.ended:
			return
		default:
		}
		if n, err := e.sum("listener_manager.total_listeners_active"); err == nil && n >= 2 {
			s := e.Settings
			settings.PrintReady(e.Stdout, s.LogFormat, subprocess.GatewayReady{
				DC: s.DC, Node: s.Node, LAN: s.LAN, WAN: s.WAN,
			})
			sdnotify.Send(e.log, sdnotify.Ready)
			return
		}
		backoff.Sleep(stop, adminInterval, nil)
	}
}

var adminClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// admin calls Envoy's admin interface.
func (e *envoy) admin(method, path string) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+e.Settings.AdminAddr+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := adminClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	resp.Body = io.NopCloser(strings.NewReader(string(b)))
	return resp, err
}

// sum returns the sum of the counters and gauges of Envoy whose names match a
// regular expression.
func (e *envoy) sum(names string) (total int, err error) {
	resp, err := e.admin(http.MethodGet, "/stats?filter="+url.QueryEscape(names))
	if err != nil {
		return 0, err
	}
	found := false
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		_, text, _ := strings.Cut(lines.Text(), ": ")
		if n, err := strconv.Atoi(text); err == nil {
			total += n
			found = true
		}
	}
	if !found {
		return 0, fmt.Errorf("envoy has no statistics %s: %s", names, resp.Status)
	}
	return total, nil
}

// stop drains Envoy and ends it, if it runs. It returns an error if Envoy ended
// before.
func (e *envoy) stop() error {
	select {
	case <-e.ended:
		return fmt.Errorf("envoy ended: %w; its log has the reason", cmp.Or(e.err, errors.New("exit status 0")))
	default:
	}
	backoff.Sleep(context.Background(), duration(e.Settings.ShutdownDelay), e.ended)
	if _, err := e.admin(http.MethodPost, "/drain_listeners"); err != nil {
		e.log.Warn("cannot drain envoy", "err", err)
	}
	for end := time.Now().Add(duration(e.Settings.DrainTime)); time.Now().Before(end); {
		if n, err := e.sum(`^listener\.(lan|wan)\.downstream_cx_active$`); err != nil || n == 0 {
			break
		}
		if backoff.Sleep(context.Background(), adminInterval, e.ended) {
			break
		}
	}
	if err := e.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		e.log.Warn("cannot stop envoy", "err", err)
	}
	if !backoff.Sleep(context.Background(), killTimeout, e.ended) {
		e.log.Warn("envoy killed: it did not stop in time", "duration", killTimeout)
		_ = e.cmd.Process.Kill() // fails only if the process has ended
		<-e.ended
	}
	return nil
}
