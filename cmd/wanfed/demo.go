// SPDX-License-Identifier: MPL-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/demo"
	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/internal/settings"
)

func newDemo() *cobra.Command {
	cfg := demo.Config{Datacenters: 3, Servers: 1, Timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a whole federation on this machine",
		Long: `Run datacenters with servers and gateways as processes on the loopback addresses
of this machine until SIGINT or SIGTERM. The demo verifies that each datacenter
reaches each other one, and prints addresses and commands to try. It needs
neither root nor settings, and leaves no files.

Without --once and --output json, the demo also has a sync daemon in dc1 (on Linux),
which runs a task each time a gateway changes.`,
		Example: `  wanfed demo
  wanfed demo --once                        # verify, print the times and exit
  wanfed demo --datacenters 5 --servers 3
  wanfed demo --output json --keep /tmp/fed # for scripts: one line when federated`,
		Args: noArgs,
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Datacenters, "datacenters", cfg.Datacenters, "number of datacenters, 2 to 9; dc1 is the primary")
	f.IntVar(&cfg.Servers, "servers", cfg.Servers, "number of servers per datacenter: 1, 3 or 5")
	f.BoolVar(&cfg.Once, "once", false, "exit when the federation is verified")
	f.StringVar(&cfg.Keep, "keep", "", "`directory`, absent or empty, that keeps certificates, data and logs")
	f.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "maximum time until all datacenters are federated")
	printer := output.AddFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg.JSON = printer().Format == output.JSON
		if err := cfg.Validate(); err != nil {
			return usageError{settings.Join(err)}
		}
		cfg.Out, cfg.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
		return demo.Run(cmd.Context(), cfg)
	}
	return cmd
}
