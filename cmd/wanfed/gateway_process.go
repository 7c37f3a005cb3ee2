// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gateway"
	"github.com/wanfed/wanfed/gateway/proxycfg"
	"github.com/wanfed/wanfed/internal/hotrestart"
	"github.com/wanfed/wanfed/internal/sdnotify"
)

// gatewayProcess is what both kinds of gateway, of a datacenter and on a route file, have in common: how the process comes to
// life, changes and ends.
type gatewayProcess struct {
	settings  gatewaySettings                 // in force; for the goroutine of run
	load      func() (gatewaySettings, error) // reads them again
	hup, usr2 chan os.Signal                  // wake-ups, from before the process is ready: else such a signal would end it
	level     *slog.LevelVar
	log       *slog.Logger
	listeners listeners
	access    *logFile
	serving   []*gateway.Listener
	proxy     *gateway.Proxy
	adminLn   net.Listener // nil: there is no admin address
	admin     adminServer
	client    *proxycfg.Client              // nil: on a route file
	identity  func(context.Context) error   // follows the certificate's files; nil: there is none
	leaving   atomic.Pointer[leavingReason] // nil: it is not
}

type leavingReason string

// newGatewayProcess makes one with its access log and what it inherits. The caller closes it.
func newGatewayProcess(s gatewaySettings, load func() (gatewaySettings, error), out, stderr io.Writer) (*gatewayProcess, error) {
	p := &gatewayProcess{
		settings: s, load: load, hup: make(chan os.Signal, 1), usr2: make(chan os.Signal, 1),
		level: new(slog.LevelVar), access: &logFile{out: out, err: stderr},
	}
	level, err := parseLevel(s.LogLevel)
	if err != nil {
		return nil, usageError{err}
	}
	p.level.Set(level)
	if p.log, err = newLoggerAt(stderr, p.level, s.LogFormat); err != nil {
		return nil, usageError{err}
	}
	if err := errors.Join(s.checkOpenFiles(), p.access.reopen(s.AccessLog)); err != nil {
		return nil, err
	}
	if p.listeners.inherited, err = hotrestart.Inherit(); err != nil {
		return nil, errors.Join(err, p.access.close())
	}
	signal.Notify(p.hup, syscall.SIGHUP)
	signal.Notify(p.usr2, syscall.SIGUSR2)
	return p, nil
}

// close gives up what is left after run, or without it.
func (p *gatewayProcess) close() error {
	signal.Stop(p.hup)
	signal.Stop(p.usr2)
	return errors.Join(p.listeners.close(), p.access.close())
}

// addListener opens the sockets of a listener.
func (p *gatewayProcess) addListener(name, setting string, addrs ...string) (*gateway.Listener, error) {
	var sockets []net.Listener
	for _, addr := range addrs {
		socket, err := p.listeners.listen(setting, addr)
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, socket)
	}
	l := gateway.NewListener(name, sockets...)
	p.serving = append(p.serving, l)
	return l, nil
}

// open makes the data plane, and what answers at the admin address, for the listeners that were added.
func (p *gatewayProcess) open() (err error) {
	if err := p.listeners.inherited.CheckActivated(); err != nil {
		return err
	}
	s := p.settings
	p.proxy, err = gateway.New(gateway.Config{
		Logger: p.log, MaxConns: s.MaxConns, MaxPerUpstream: s.MaxPerUpstream, Drain: drainOf(s.DrainTime),
		AccessLog: p.access, AccessLogSample: s.sample(),
	})
	if err != nil {
		return err
	}
	p.setPolicies()
	p.admin = newAdmin(p.adminLn, adminHandler(p))
	return nil
}

func (p *gatewayProcess) setPolicies() {
	for _, l := range p.serving {
		l.SetPolicy(p.settings.policy(l.Name(), p.proxy.MaxConns()))
	}
}

// drainOf reads a setting; the data plane takes zero for its default.
func drainOf(s string) time.Duration {
	if d := duration(s); d > 0 {
		return d
	}
	return -1
}

// ready says whether clients should come: nil, or why not.
func (p *gatewayProcess) ready() error {
	if why := p.leaving.Load(); why != nil {
		return errors.New(string(*why))
	}
	if p.client != nil && !p.client.Status().HasSnapshot {
		return errors.New("no snapshot yet: no server has answered")
	}
	return nil
}

// run serves until ctx ends or another process has taken over, and lets connections come to their end. Then everything that it
// started has ended.
//
// Things end in this order: others learn that this gateway stops (its admin address, its servers); after a while no more
// connections are taken; after another, those that are left are closed; then the rest ends.
func (p *gatewayProcess) run(ctx context.Context) error {
	base, stopBase := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBase()
	parts, pctx := errgroup.WithContext(base)
	accepting, stopAccepting := context.WithCancel(pctx)
	defer stopAccepting()
	answering, stopAnswering := context.WithCancel(pctx)
	defer stopAnswering()
	registered, leave := context.WithCancel(pctx)
	defer leave()
	parts.Go(func() error { defer stopBase(); return p.proxy.Run(accepting, p.serving...) })
	parts.Go(func() error { return p.admin.run(answering) })
	if p.identity != nil {
		parts.Go(func() error { return p.identity(pctx) })
	}
	left := make(chan error, 1)
	go func() { left <- p.runClient(registered) }()

	w := watch{failed: pctx.Done(), left: left}
	took, err := p.watch(ctx, &w)
	if took {
		p.leaveTo(stopAnswering)
	} else {
		p.announce(ctx)
	}
	leave()
	if !w.gone {
		err = errors.Join(err, <-left)
	}
	if !took && err == nil {
		p.grace(pctx)
	}
	err = errors.Join(err, p.listeners.release())
	stopAccepting()
	if took { // this process may stand around for long: whoever wants it to end now, gets what a stop would take
		defer context.AfterFunc(ctx, func() { p.proxy.SetDrain(duration(p.settings.DrainTime)) })()
	}
	return errors.Join(err, parts.Wait())
}

// runClient is the client's Run, for a gateway that has one.
func (p *gatewayProcess) runClient(ctx context.Context) error {
	if p.client == nil {
		<-ctx.Done()
		return nil
	}
	return p.client.Run(ctx)
}

// announce says that this gateway stops.
func (p *gatewayProcess) announce(ctx context.Context) {
	why := leavingReason("stopping: connections end within " + p.settings.DrainTime)
	p.leaving.Store(&why)
	if ctx.Err() != nil {
		p.log.Info("stopping", "grace", p.settings.DrainGrace, "drain", p.settings.DrainTime, "connections", p.active())
	}
	sdnotify.Send(p.log, sdnotify.Stopping)
}

// leaveTo leaves everything but open connections to the new process.
func (p *gatewayProcess) leaveTo(stopAnswering func()) {
	why := leavingReason("another process has taken over")
	p.leaving.Store(&why)
	if p.client != nil {
		p.client.SkipDeregister()
	}
	p.proxy.SetDrain(duration(p.settings.HandoverDrainTime))
	stopAnswering()
}

// grace waits while connections are still taken, for those who have not heard yet that this gateway stops. Nobody hears it
// from a gateway that has neither servers nor an admin address.
func (p *gatewayProcess) grace(failed context.Context) {
	if p.client == nil && p.admin.srv == nil {
		return
	}
	t := time.NewTimer(duration(p.settings.DrainGrace))
	defer t.Stop()
	select {
	case <-t.C:
	case <-failed.Done():
	}
}

// active is how many connections are open.
func (p *gatewayProcess) active() (n uint64) {
	for _, l := range p.serving {
		n += l.Stats().Active
	}
	return n
}
