// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/wanfed/wanfed/internal/hotrestart"
	"github.com/wanfed/wanfed/internal/sdnotify"
)

// watch is what a gateway that serves waits for.
type watch struct {
	failed <-chan struct{} // a part of the process
	left   <-chan error    // the client has ended
	gone   bool            // left was read
}

// reloadPause returns how long after a reload the next one may begin, however
// many SIGHUPs arrive in between. A reload then uses at most one percent of a
// processor, except for very large route files.
func reloadPause(took time.Duration) time.Duration {
	return min(max(50*time.Millisecond, 100*took), time.Second)
}

// watch obeys signals until the process has to end, because of ctx or of a failure, or because a new process took over.
func (p *gatewayProcess) watch(ctx context.Context, w *watch) (took bool, err error) {
	routed := p.routed()
	hup, rested := p.hup, (<-chan time.Time)(nil)
	if !p.listeners.inherited.HasParent() {
		sdnotify.Send(p.log, sdnotify.Ready) // a gateway whose servers are down has started too
	}
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-w.failed:
			return false, nil // the group has the error
		case err := <-w.left:
			w.gone = true
			return false, err
		case <-routed:
			routed = nil
			p.takeOver()
		case <-hup:
			sdnotify.Send(p.log, sdnotify.Reloading())
			began := time.Now()
			p.reload()
			sdnotify.Send(p.log, sdnotify.Ready)
			hup, rested = nil, time.After(reloadPause(time.Since(began)))
		case <-rested:
			hup, rested = p.hup, nil // it keeps a signal that came meanwhile
		case <-p.usr2:
			if p.handOver(ctx) {
				return true, nil
			}
		}
	}
}

// routed is closed when there are routes.
func (p *gatewayProcess) routed() <-chan struct{} {
	if p.client != nil {
		return p.client.Ready()
	}
	now := make(chan struct{})
	close(now)
	return now
}

// takeOver tells the old process, if there is one, that this one serves.
func (p *gatewayProcess) takeOver() {
	if !p.listeners.inherited.HasParent() {
		return
	}
	if err := p.listeners.inherited.Ready(); err != nil {
		// It has ended, and nothing is lost; or it waits no more, and will end this one.
		p.log.Warn("the old process does not hear that this one serves", "err", err)
	}
	p.log.Info("took over from the old process", "pid", os.Getpid())
	sdnotify.Send(p.log, sdnotify.Ready)
}

// handOver starts a new process on this one's sockets. It returns false if that failed: then this one goes on.
func (p *gatewayProcess) handOver(ctx context.Context) bool {
	program, err := hotrestart.Program()
	if err == nil {
		p.log.Info("starting a new process to take over", "program", program)
		var pid int
		if pid, err = hotrestart.Start(ctx, hotrestart.Config{Program: program, Args: os.Args[1:], Sockets: p.listeners.sockets}); err == nil {
			sdnotify.Send(p.log, sdnotify.MainPID(pid))
			p.log.Info("a new process has taken over; this one ends with its connections",
				"pid", pid, "connections", p.active(), "drain", p.settings.HandoverDrainTime)
			return true
		}
	}
	p.log.Error("no new process took over; this one goes on", "err", err)
	return false
}

// reload reads the settings again and uses those that may change while it runs: they have the tag live. A fault changes nothing.
func (p *gatewayProcess) reload() {
	next, err := p.load()
	if err == nil {
		err = next.checkOpenFiles()
	}
	if err != nil {
		p.log.Error("settings not changed", "err", err)
		return
	}
	if p.client == nil {
		if err := p.reloadRoutes(next.Routes); err != nil {
			p.log.Error("routes not changed", "err", err)
			return
		}
	}
	if err := p.access.reopen(next.AccessLog); err != nil {
		p.log.Error("settings not changed", "err", err)
		return
	}
	now, changed, fixed := mixSettings(p.settings, next)
	p.settings = now
	if level, err := parseLevel(now.LogLevel); err == nil {
		p.level.Set(level)
	}
	p.proxy.SetMaxConns(now.MaxConns)
	p.proxy.SetMaxPerUpstream(now.MaxPerUpstream)
	p.proxy.SetAccessLogSample(now.sample())
	p.proxy.SetDrain(duration(now.DrainTime))
	p.setPolicies()
	if len(changed) > 0 {
		p.log.Info("settings changed", "settings", strings.Join(changed, ", "))
	}
	if len(fixed) > 0 {
		p.log.Warn("settings that only a new process can change: restart this one, or have one take over (SIGUSR2)",
			"settings", strings.Join(fixed, ", "))
	}
}

func (p *gatewayProcess) reloadRoutes(path string) error {
	table, err := readRoutes(path)
	if err != nil {
		return err
	}
	for _, l := range p.serving {
		l.SetTable(table)
	}
	p.log.Info("routes changed", "file", path, "routes", table.Len())
	return nil
}

// mixSettings takes from next what may change while a gateway runs, and names what differs: what is taken, and what is not.
func mixSettings(now, next gatewaySettings) (mixed gatewaySettings, changed, fixed []string) {
	to, from := reflect.ValueOf(&now).Elem(), reflect.ValueOf(next)
	for i := range to.NumField() {
		if reflect.DeepEqual(to.Field(i).Interface(), from.Field(i).Interface()) {
			continue
		}
		tag := to.Type().Field(i).Tag
		name, _, _ := strings.Cut(tag.Get("hcl"), ",")
		if tag.Get("live") == "" {
			fixed = append(fixed, name)
			continue
		}
		to.Field(i).Set(from.Field(i))
		changed = append(changed, name)
	}
	return now, changed, fixed
}
