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

SIGHUP reloads the settings and the certificates of both. Use "wanfed server" and
"wanfed gateway" for the other signals, which concern one of them.`,
		Example: `  wanfed up
  wanfed up --dir /srv/wanfed`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := newLayout(dir)
			if err != nil {
				return err
			}
			g, ctx := errgroup.WithContext(cmd.Context())
			found := false
			for _, run := range []func(context.Context, *cobra.Command, layout) (func() error, error){upServer, upGateway} {
				f, err := run(ctx, cmd, l)
				if err != nil {
					return err
				}
				if f != nil {
					found = true
					g.Go(f)
				}
			}
			if !found {
				return fmt.Errorf("%s has neither server.hcl nor gateway.hcl; create them with wanfed init or wanfed join, "+
					"or set --dir", l.conf)
			}
			return g.Wait()
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

// upServer returns a function that runs the server, or nil if there is none.
func upServer(ctx context.Context, cmd *cobra.Command, l layout) (func() error, error) {
	load, ok := loadFile(l.serverHCL(), serverd.DefaultSettings)
	if !ok {
		return nil, nil
	}
	s, err := load()
	if err != nil {
		return nil, err
	}
	return func() error {
		err := serverd.Run(ctx, serverd.Config{Settings: s, Reload: load, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()})
		return ended(ctx, "server", err)
	}, nil
}

// upGateway returns a function that runs the gateway, or nil if there is none.
func upGateway(ctx context.Context, cmd *cobra.Command, l layout) (func() error, error) {
	load, ok := loadFile(l.gatewayHCL(), gatewayd.DefaultSettings)
	if !ok {
		return nil, nil
	}
	s, err := load()
	if err != nil {
		return nil, err
	}
	return func() error {
		err := gatewayd.Run(ctx, gatewayd.Config{Settings: s, Reload: load, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr()})
		return ended(ctx, "gateway", err)
	}, nil
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
