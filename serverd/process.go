// SPDX-License-Identifier: MPL-2.0

package serverd

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/wanfed/wanfed/internal/logtail"
	"github.com/wanfed/wanfed/internal/sdnotify"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/internal/subprocess"
	"github.com/wanfed/wanfed/internal/tracing"
	"github.com/wanfed/wanfed/internal/version"
	"github.com/wanfed/wanfed/server"
)

// gcPercent is the default of GOGC for a server. The default of Go is 100. See
// docs/decisions/0052.
const gcPercent = 90

// Config configures Run.
type Config struct {
	// Settings of the server, accepted by Check.
	Settings Settings
	// Reload returns the settings at a reload, accepted by Check. Required.
	Reload func() (Settings, error)
	// Stdout receives one line with the addresses when the server listens.
	Stdout io.Writer
	// Stderr receives the log.
	Stderr io.Writer
}

// Run runs a server until ctx ends.
func Run(ctx context.Context, cfg Config) error {
	sighup := make(chan os.Signal, 1) // size 1: a pending signal is not lost
	signal.Notify(sighup, syscall.SIGHUP)
	defer signal.Stop(sighup)
	s := cfg.Settings
	level := new(slog.LevelVar)
	if err := setLevel(level, s.LogLevel); err != nil {
		return err
	}
	logger, err := settings.NewLogger(cfg.Stderr, level, s.LogFormat)
	if err != nil {
		return err
	}
	conf := s.config()
	tail := logtail.New()
	logger = slog.New(tail.Handler(logger.Handler()))
	conf.Logger, conf.LogTail = logger, tail
	var shown atomic.Pointer[[]settings.Shown]
	show := func(s Settings) { shown.Store(new(settings.Show(&s))) }
	show(s)
	conf.Settings = func() []settings.Shown { return *shown.Load() }
	// The line has the actual ports, because the system may choose them.
	conf.Started = func(a server.Addrs) {
		settings.PrintReady(cfg.Stdout, s.LogFormat,
			subprocess.ServerReady{DC: s.DC, Node: s.Node, Addr: a.Server, HTTP: a.HTTP})
		sdnotify.Send(logger, sdnotify.Ready)
	}
	if err := collectMetrics(); err != nil {
		return err
	}
	if conf.Tracer, err = tracing.New(ctx, tracing.Config{
		Service: "wanfed-server", DC: s.DC, Node: s.Node, Version: version.Version, Env: os.Getenv, Logger: logger,
	}); err != nil {
		return settings.Join(err)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	defer context.AfterFunc(ctx, func() { sdnotify.Send(logger, sdnotify.Stopping) })()

	updates := make(chan server.LiveSettings)
	conf.Updates = updates
	running, stop := context.WithCancel(ctx)
	var reloads sync.WaitGroup
	reloads.Go(func() { reload(running, sighup, s, cfg.Reload, level, logger, updates, show) })
	err = server.Run(ctx, conf)
	stop()
	reloads.Wait()
	if closeErr := conf.Tracer.Close(); closeErr != nil {
		logger.Warn("cannot send the last traces", "err", closeErr)
	}
	return settings.Join(err)
}

// reload loads the settings at each signal, until ctx ends. It sends the
// settings that can change at run time to the server, gives those in force to
// show, and logs the names of changed settings that need a restart. If load fails, no setting changes.
func reload(
	ctx context.Context, sighup <-chan os.Signal, s Settings, load func() (Settings, error),
	level *slog.LevelVar, logger *slog.Logger, updates chan<- server.LiveSettings, show func(Settings),
) {
	for {
		select {
		case <-sighup:
		case <-ctx.Done():
			return
		}
		sdnotify.Send(logger, sdnotify.Reloading())
		if next, err := load(); err != nil {
			logger.Error("cannot reload the settings", "err", err)
		} else {
			changed, fixed := settings.Merge(&s, &next)
			show(s)
			if err := setLevel(level, s.LogLevel); err != nil {
				logger.Error("cannot reload the settings", "err", err)
			}
			select {
			case updates <- s.config().Live():
			case <-ctx.Done():
				return
			}
			logger.Info("settings reloaded", "changed", strings.Join(changed, ", "))
			if len(fixed) > 0 {
				logger.Warn("settings need a restart", "settings", strings.Join(fixed, ", "))
			}
		}
		sdnotify.Send(logger, sdnotify.Ready)
	}
}

func setLevel(to *slog.LevelVar, name string) error {
	level, err := settings.ParseLevel(name)
	if err == nil {
		to.Set(level)
	}
	return err
}
