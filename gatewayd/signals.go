// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/hotrestart"
	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/settings"
)

// reloadPause returns the pause after a reload that lasted took. All SIGHUPs in
// the pause cause one reload at its end. Reloads therefore use at most one
// percent of a processor, except with very large files of routes.
func reloadPause(took time.Duration) time.Duration {
	return min(max(50*time.Millisecond, 100*took), time.Second)
}

// serve handles signals until ctx ends, a goroutine of the process fails, or a
// new process takes over. It reports whether a new process took over.
func (p *process) serve(ctx context.Context, failed <-chan struct{}) (replaced bool) {
	sighup, reloadAgain := p.sighup, (<-chan time.Time)(nil)
	if !p.sockets.inherited.HasParent() {
		// The start is complete even if no server is reachable.
		sdnotify.Send(p.log, sdnotify.Ready)
	}
	var routed <-chan struct{} // a standalone gateway always has routes
	if p.client != nil {
		routed = p.client.Ready()
	} else {
		p.takeOver()
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-failed:
			return false
		case <-routed:
			routed = nil
			p.takeOver()
		case <-sighup:
			sdnotify.Send(p.log, sdnotify.Reloading())
			began := time.Now()
			p.reloadSettings()
			sdnotify.Send(p.log, sdnotify.Ready)
			sighup, reloadAgain = nil, time.After(reloadPause(time.Since(began)))
		case <-reloadAgain:
			sighup, reloadAgain = p.sighup, nil
		case <-p.sigusr2:
			if p.shared {
				p.log.Error("hot restart refused", "reason",
					"the process also runs a server; run both on their own: wanfed server, wanfed gateway")
			} else if p.hotRestart(ctx) {
				return true
			}
		}
	}
}

// takeOver notifies the old process of a hot restart that this process serves.
func (p *process) takeOver() {
	if !p.sockets.inherited.HasParent() {
		return
	}
	if err := p.sockets.inherited.Ready(); err != nil {
		// The old process has ended, or its timeout has expired and it ends
		// this process.
		p.log.Warn("cannot notify the old process", "err", err)
	}
	p.log.Info("took over from the old process", "pid", os.Getpid())
	sdnotify.Send(p.log, sdnotify.Ready)
}

// hotRestart starts a new process on the sockets of this process. It returns
// false if the start failed.
func (p *process) hotRestart(ctx context.Context) bool {
	program, err := hotrestart.Program()
	if err == nil {
		p.log.Info("hot restart", "program", program)
		var pid int
		pid, err = hotrestart.Start(ctx, hotrestart.Config{
			Program: program, Args: os.Args[1:], Sockets: p.sockets.duplicates,
		})
		if err == nil {
			sdnotify.Send(p.log, sdnotify.MainPID(pid))
			p.log.Info("new process took over, draining connections",
				"pid", pid, "count", p.active(), "drain", p.settings.HotRestartDrainTime)
			return true
		}
	}
	p.log.Error("hot restart failed, still serving", "err", err)
	return false
}

// reloadSettings reads the settings again and applies those with the tag live.
// An error changes nothing.
func (p *process) reloadSettings() {
	next, err := p.reload()
	if err == nil {
		err = next.checkOpenFiles()
	}
	if err != nil {
		p.log.Error("cannot reload the settings", "err", err)
		return
	}
	if p.client == nil {
		if err := p.reloadRoutes(next.Routes); err != nil {
			p.log.Error("cannot reload the routes", "err", err)
			return
		}
	}
	if err := p.accessLog.open(next.AccessLog); err != nil {
		p.log.Error("cannot reload the settings", "err", err)
		return
	}
	s := &p.settings
	changed, fixed := settings.Merge(s, &next)
	if level, err := settings.ParseLevel(s.LogLevel); err == nil {
		p.level.Set(level)
	}
	p.proxy.SetMaxConns(s.MaxConns)
	p.proxy.SetMaxPerUpstream(s.MaxPerUpstream)
	p.proxy.SetAccessLogSample(s.accessLogSample())
	p.proxy.SetDrain(duration(s.DrainTime))
	p.setPolicies()
	if len(changed) > 0 {
		p.log.Info("settings changed", "settings", strings.Join(changed, ", "))
	}
	if len(fixed) > 0 {
		p.log.Warn("settings need a new process: restart, or send SIGUSR2", "settings", strings.Join(fixed, ", "))
	}
}

func (p *process) reloadRoutes(path string) error {
	table, err := ReadRoutes(path)
	if err != nil {
		return err
	}
	for _, l := range p.listeners {
		l.SetTable(table)
	}
	p.log.Info("routes changed", "file", path, "count", table.Len())
	return nil
}
