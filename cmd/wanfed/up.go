// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/settings"
	"github.com/wanfed/wanfed/serverd"
)

func newUp() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run the server and the gateway of this machine in one process",
		Long: `Run the server and the gateway of this machine in the foreground, in one process,
until SIGINT or SIGTERM. Their settings are server.hcl and gateway.hcl in --dir,
as "wanfed init" or "wanfed join" has written them. If there is only one of the
files, only that one runs. If one ends, the other one ends too.

SIGHUP reloads the settings and the certificates of both. A hot restart (SIGUSR2)
is refused if there is a server: it needs "wanfed gateway". At a stop, the server
ends when the gateway has deregistered.`,
		Example: `  wanfed up
  wanfed up --dir /srv/wanfed`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := newLayout(dir)
			if err != nil {
				return err
			}
			return up(cmd, l)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", dirUsage)
	return cmd
}

// loadFile returns a function that reads and checks the settings in a file. ok is
// false if the file does not exist.
func loadFile[S interface{ Check() error }](path string, defaults func() S) (load func() (S, error), ok bool) {
	_, err := os.Stat(path)
	return func() (S, error) {
		s := defaults()
		err := settings.Read(path, &s)
		if err == nil {
			err = s.Check()
		}
		if err != nil {
			err = usageError{err}
		}
		return s, err
	}, !errors.Is(err, fs.ErrNotExist)
}

// up runs the server and the gateway whose files exist.
func up(cmd *cobra.Command, l layout) error {
	loadServer, hasServer := loadFile(l.serverHCL(), serverd.DefaultSettings)
	loadGateway, hasGateway := loadFile(l.gatewayHCL(), gatewayd.DefaultSettings)
	if !hasServer && !hasGateway {
		return fmt.Errorf("%s has neither server.hcl nor gateway.hcl; create them with wanfed init or wanfed join, "+
			"or set --dir", l.conf)
	}
	// Both files are valid before one of the parts starts.
	server, gateway := serverd.Config{Reload: loadServer}, gatewayd.Config{Reload: loadGateway}
	var errs []error
	if hasServer {
		s, err := loadServer()
		server.Settings, errs = s, append(errs, err)
	}
	if hasGateway {
		s, err := loadGateway()
		gateway.Settings, errs = s, append(errs, err)
	}
	if err := settings.Join(errs...); err != nil {
		return usageError{err}
	}
	server.Stdout, server.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
	gateway.Stdout, gateway.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()

	g, ctx := errgroup.WithContext(cmd.Context())
	serverCtx := ctx
	if hasGateway {
		// Only a server can end the registration of the gateway, so the server
		// ends after it.
		var stopServer context.CancelFunc
		serverCtx, stopServer = context.WithCancel(context.WithoutCancel(ctx))
		gateway.Shared, gateway.Deregistered = hasServer, stopServer
		g.Go(func() error {
			defer stopServer()
			return ended(ctx, "gateway", gatewayd.Run(ctx, gateway))
		})
	}
	if hasServer {
		g.Go(func() error { return ended(serverCtx, "server", serverd.Run(serverCtx, server)) })
	}
	return g.Wait()
}

// ended returns the error of a part that has ended. Its end is an error unless
// ctx has ended.
func ended(ctx context.Context, name string, err error) error {
	if err == nil && ctx.Err() == nil {
		err = errors.New("it has ended")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
