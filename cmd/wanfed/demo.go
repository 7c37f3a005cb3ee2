// SPDX-License-Identifier: MPL-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/demo"
)

func newDemo() *cobra.Command {
	cfg := demo.Config{Datacenters: 3, Servers: 1, Timeout: time.Minute}
	format := "text"
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a whole federation on this machine",
		Long: `Run datacenters with servers and gateways as processes on this machine's loopback addresses, prove that each
datacenter reaches each other one, and show addresses and things to try, until SIGINT or SIGTERM. Needs no root and no
settings; leaves nothing behind.`,
		Example: `  wanfed demo
  wanfed demo --once                        # prove it, print the times, and end with exit status 0 or 1
  wanfed demo --datacenters 5 --servers 3
  wanfed demo --format json --keep /tmp/fed # for scripts: one line once federated`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch format {
			case "json":
				cfg.JSON = true
			case "text":
			default:
				return usagef("format %q is not one of text, json", format)
			}
			if err := cfg.Validate(); err != nil {
				return usageError{faults(err)}
			}
			cfg.Out, cfg.Err = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return demo.Run(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.IntVar(&cfg.Datacenters, "datacenters", cfg.Datacenters, "how many datacenters, 2 to 9; dc1 is the primary")
	f.IntVar(&cfg.Servers, "servers", cfg.Servers, "how many servers in each datacenter: 1, 3 or 5")
	f.BoolVar(&cfg.Once, "once", false, "end when the federation has been proved to work")
	f.StringVar(&format, "format", format, "text, or json: one line with names, addresses, process ids and times")
	f.StringVar(&cfg.Keep, "keep", "", "`folder`, absent or empty, for certificates, data and logs, which then stay")
	f.DurationVar(&cfg.Timeout, "timeout", cfg.Timeout, "how long it may take until all is federated")
	return cmd
}
