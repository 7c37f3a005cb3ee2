// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/backoff"
	"github.com/wanfed/wanfed/internal/hotrestart"
	"github.com/wanfed/wanfed/internal/logtail"
	"github.com/wanfed/wanfed/internal/monitor"
	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/tlsutil"
)

// Config configures Run.
type Config struct {
	// Settings of the gateway, accepted by Check.
	Settings Settings
	// Reload returns the settings at a reload, accepted by Check. Required.
	Reload func() (Settings, error)
	// Stdout receives one line with the addresses when the gateway listens.
	Stdout io.Writer
	// Stderr receives the log.
	Stderr io.Writer
	// Shared is true if the process has other parts than the gateway. They
	// prevent a hot restart: the gateway refuses SIGUSR2.
	Shared bool
	// Deregistered is called at a stop when the registration of the gateway has
	// ended or the attempt to end it has failed, but not if Run returns an error
	// before. Default (nil): no call.
	Deregistered func()
}

// Run runs a gateway until ctx ends. It also returns when a new process has
// taken over the sockets and the connections are drained.
func Run(ctx context.Context, cfg Config) (err error) {
	p, err := newProcess(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	start := p.startDatacenter
	if cfg.Settings.standalone() {
		start = p.startStandalone
	}
	ready, err := start()
	if err != nil {
		return err
	}
	settings.PrintReady(cfg.Stdout, cfg.Settings.LogFormat, ready)
	return p.run(ctx)
}

// process is a gateway process of either kind. Except stopping, its fields
// belong to the goroutine of Run.
type process struct {
	settings Settings // in force
	reload   func() (Settings, error)
	// shared and deregistered are those of Config.
	shared       bool
	deregistered func()
	// sighup and sigusr2 have size 1: a pending signal is not lost. newProcess
	// subscribes them, because the signals end a process without subscription.
	sighup, sigusr2 chan os.Signal
	level           *slog.LevelVar
	log             *slog.Logger
	logTail         *logtail.Tail // has the lines of log for operators
	sockets         sockets
	accessLog       *accessLog
	listeners       []*gateway.Listener
	proxy           *gateway.Proxy
	adminSocket     net.Listener                // nil: no admin address
	monitor         *monitor.Server             // nil: no monitor address
	identity        *tlsutil.Identity           // nil: standalone, or a gateway of Consul
	client          *proxycfg.Client            // nil: standalone
	watchIdentity   func(context.Context) error // nil: standalone
	stopping        atomic.Pointer[string]      // reason; nil: serving
}

// newProcess returns a process with its logs and inherited sockets. The caller
// closes it.
func newProcess(cfg Config) (*process, error) {
	s := cfg.Settings
	p := &process{
		settings: s, reload: cfg.Reload, shared: cfg.Shared, deregistered: cfg.Deregistered,
		sighup: make(chan os.Signal, 1), sigusr2: make(chan os.Signal, 1),
		level: new(slog.LevelVar), logTail: logtail.New(), accessLog: &accessLog{stdout: cfg.Stdout, stderr: cfg.Stderr},
	}
	level, err := settings.ParseLevel(s.LogLevel)
	if err != nil {
		return nil, err
	}
	p.level.Set(level)
	if p.log, err = settings.NewLogger(cfg.Stderr, p.level, s.LogFormat); err != nil {
		return nil, err
	}
	p.log = slog.New(p.logTail.Handler(p.log.Handler()))
	if err := errors.Join(s.checkOpenFiles(), p.accessLog.open(s.AccessLog)); err != nil {
		return nil, err
	}
	if p.sockets.inherited, err = hotrestart.Inherit(); err != nil {
		return nil, errors.Join(err, p.accessLog.open(""))
	}
	signal.Notify(p.sighup, syscall.SIGHUP)
	hotrestart.Notify(p.sigusr2)
	return p, nil
}

// close releases the signals, the sockets and the access log.
func (p *process) close() error {
	signal.Stop(p.sighup)
	signal.Stop(p.sigusr2)
	return errors.Join(p.sockets.close(), p.accessLog.open(""))
}

// startDatacenter opens the gateway of a datacenter and returns its ready line.
func (p *process) startDatacenter() (fmt.Stringer, error) {
	s := p.settings
	p.log = p.log.With("dc", s.DC, "gateway", s.Node)
	cfg := proxycfg.Config{
		Servers: s.Servers, DataDir: s.DataDir, Logger: p.log,
		Upstream: proxycfg.UpstreamOptions{Protocols: s.Protocols},
	}
	if err := p.identify(&cfg); err != nil {
		return nil, err
	}
	lan, err := p.listen(listenerLAN, s.LAN)
	if err != nil {
		return nil, err
	}
	wan, err := p.listen(listenerWAN, cmp.Or(s.WANBind, s.WAN))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.listenAdmin(), p.listenMonitor()); err != nil {
		return nil, err
	}
	ready := subprocess.GatewayReady{
		DC: s.DC, Node: s.Node, LAN: withPort(s.LAN, lan.Addrs()[0]), WAN: withPort(s.WAN, wan.Addrs()[0]),
	}
	cfg.LAN, cfg.WAN, cfg.LANListener, cfg.WANListener = ready.LAN, ready.WAN, lan, wan
	if p.client, err = proxycfg.New(cfg); err != nil {
		return nil, err
	}
	return ready, p.open()
}

// identify sets how the gateway identifies itself: by a certificate, or as a
// service of a Consul agent.
func (p *process) identify(cfg *proxycfg.Config) error {
	s := p.settings
	if s.Consul != "" {
		agent, err := s.consulAgent()
		if err := settings.Join(settings.CheckDir("data_dir", s.DataDir), err); err != nil {
			return err
		}
		cfg.Consul = &proxycfg.Consul{Agent: agent, DC: s.DC, Node: s.Node, Domain: s.domain()}
		return nil
	}
	id, err := s.identity(p.log)
	if err != nil {
		return err
	}
	p.identity, cfg.Identity, p.watchIdentity, cfg.Call = id, id, id.Run, renewCertificate(id, p.log)
	return nil
}

// startStandalone opens a standalone gateway and returns its ready line.
func (p *process) startStandalone() (fmt.Stringer, error) {
	table, err := ReadRoutes(p.settings.Routes)
	if err != nil {
		return nil, err
	}
	l, err := p.listen(listenerStandalone, p.settings.Listen...)
	if err != nil {
		return nil, err
	}
	l.SetTable(table)
	if err := errors.Join(p.listenAdmin(), p.listenMonitor()); err != nil {
		return nil, err
	}
	var addrs []string
	for i, addr := range p.settings.Listen {
		addrs = append(addrs, withPort(addr, l.Addrs()[i]))
	}
	return standaloneReady{addrs, table.Len()}, p.open()
}

// standaloneReady is the line that a standalone gateway prints when it listens.
type standaloneReady struct {
	addrs  []string
	routes int
}

func (r standaloneReady) String() string {
	return fmt.Sprintf("wanfed gateway: listening on %s, %d routes", strings.Join(r.addrs, ", "), r.routes)
}

// withPort replaces port 0 of an address by the port that the system chose.
func withPort(addr string, bound net.Addr) string {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" {
		return addr
	}
	_, port, _ = net.SplitHostPort(bound.String())
	return net.JoinHostPort(host, port)
}

// listen opens a listener of the data plane. Its name is that of its setting.
func (p *process) listen(name string, addrs ...string) (*gateway.Listener, error) {
	var all []net.Listener
	for _, addr := range addrs {
		ln, err := p.sockets.listen(name, addr)
		if err != nil {
			return nil, err
		}
		all = append(all, ln)
	}
	l := gateway.NewListener(name, all...)
	p.listeners = append(p.listeners, l)
	return l, nil
}

// listenAdmin opens the socket of the admin address, if it is set.
func (p *process) listenAdmin() (err error) {
	if p.settings.AdminAddr == "" {
		return nil
	}
	if p.adminSocket, err = p.sockets.listen("admin_addr", p.settings.AdminAddr); err != nil {
		return err
	}
	p.log.Info("admin address", "addr", "http://"+p.adminSocket.Addr().String())
	return nil
}

// listenMonitor opens the socket of the monitor address, if it is set.
func (p *process) listenMonitor() (err error) {
	if p.settings.MonitorAddr == "" {
		return nil
	}
	p.monitor, err = monitor.Listen(p.monitorConfig(), func(addr string) (net.Listener, error) {
		return p.sockets.listen("monitor_addr", addr)
	})
	if err == nil {
		p.log.Info("monitor address", "addr", p.monitor.URL())
	}
	return err
}

func (p *process) monitorConfig() monitor.Config {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collector{p}, monitor.Build(p.identity))
	return monitor.Config{
		Addr: p.settings.MonitorAddr, TokenFile: p.settings.MonitorTokenFile, Identity: p.identity,
		Ready: p.ready, Metrics: metrics, Logger: p.log,
	}
}

// runMonitor serves the monitor address, if it is set, until ctx ends.
func (p *process) runMonitor(ctx context.Context) error {
	if p.monitor == nil {
		return nil
	}
	return p.monitor.Run(ctx)
}

// open creates the data plane.
func (p *process) open() (err error) {
	s := p.settings
	if err := p.sockets.inherited.CheckActivated(); err != nil {
		return err
	}
	cfg := gateway.Config{
		Logger: p.log, MaxConns: s.MaxConns, MaxPerUpstream: s.MaxPerUpstream,
		AccessLog: p.accessLog, AccessLogSample: s.accessLogSample(),
	}
	if p.client != nil {
		cfg.DialFailed = p.client.DialFailed
	}
	if p.proxy, err = gateway.New(cfg); err != nil {
		return err
	}
	p.proxy.SetDrain(duration(s.DrainTime))
	p.setPolicies()
	return nil
}

func (p *process) setPolicies() {
	for _, l := range p.listeners {
		l.SetPolicy(p.settings.policy(l.Name(), p.proxy.MaxConns()))
	}
}

// ready returns nil if clients should connect, and the reason otherwise. It is
// safe for concurrent use.
func (p *process) ready() error {
	if reason := p.stopping.Load(); reason != nil {
		return errors.New(*reason)
	}
	if p.client != nil && !p.client.Status().HasSnapshot {
		return errors.New("no snapshot yet: no server has answered")
	}
	return nil
}

// run serves until ctx ends or a new process took over. Then it stops in the
// order of the package documentation and joins every goroutine.
func (p *process) run(ctx context.Context) error {
	base, stopAll := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAll()
	group, gctx := errgroup.WithContext(base)
	accepting, stopAccepting := context.WithCancel(gctx)
	adminCtx, stopAdmin := context.WithCancel(gctx)
	defer stopAdmin()
	registered, deregister := context.WithCancel(gctx)
	group.Go(func() error { defer stopAll(); return p.proxy.Run(accepting, p.listeners...) })
	group.Go(func() error { return p.runAdmin(adminCtx) })
	group.Go(func() error { return p.runMonitor(adminCtx) })
	if p.watchIdentity != nil {
		group.Go(func() error { return p.watchIdentity(gctx) })
	}
	deregistered := make(chan struct{})
	group.Go(func() error { defer close(deregistered); return p.runClient(registered) })

	replaced := p.serve(ctx, gctx.Done())
	if replaced {
		p.leaveToNewProcess()
		stopAdmin()
	} else {
		p.announceStop(ctx)
	}
	deregister()
	<-deregistered
	if !replaced {
		if p.deregistered != nil {
			p.deregistered()
		}
		p.delayShutdown(gctx)
	}
	err := p.sockets.release()
	stopAccepting()
	if replaced {
		// The drain of this old process may be long. A stop shortens it.
		defer context.AfterFunc(ctx, func() { p.proxy.SetDrain(duration(p.settings.DrainTime)) })()
	}
	return errors.Join(err, group.Wait())
}

// runClient runs the client of the servers, which a standalone gateway does not
// have.
func (p *process) runClient(ctx context.Context) error {
	if p.client == nil {
		return nil
	}
	return p.client.Run(ctx)
}

// announceStop makes /readyz fail and notifies the service manager.
func (p *process) announceStop(ctx context.Context) {
	reason := "stopping: connections end within " + p.settings.DrainTime
	p.stopping.Store(&reason)
	if ctx.Err() != nil {
		p.log.Info("stopping", "delay", p.settings.ShutdownDelay, "drain", p.settings.DrainTime, "count", p.active())
	}
	sdnotify.Send(p.log, sdnotify.Stopping)
}

// leaveToNewProcess makes /readyz fail, keeps the registration for the new
// process and sets the drain time to hot_restart_drain_time.
func (p *process) leaveToNewProcess() {
	reason := "replaced by a new process"
	p.stopping.Store(&reason)
	if p.client != nil {
		p.client.SkipDeregister()
	}
	p.proxy.SetDrain(duration(p.settings.HotRestartDrainTime))
}

// delayShutdown waits for shutdown_delay, because clients connect until they
// detect that this gateway stops. A gateway without servers, admin address
// and monitor address cannot report its stop, so it does not wait.
func (p *process) delayShutdown(failed context.Context) {
	if p.client == nil && p.adminSocket == nil && p.monitor == nil {
		return
	}
	backoff.Sleep(failed, duration(p.settings.ShutdownDelay), nil)
}

// active returns the number of open connections.
func (p *process) active() (n uint64) {
	for _, l := range p.listeners {
		n += l.Stats().Active
	}
	return n
}
