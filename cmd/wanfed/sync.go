// SPDX-License-Identifier: MPL-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/syncd"
)

func newSync() *cobra.Command {
	var cfg syncd.Config
	var once, inspect bool
	c := &cobra.Command{
		Use:   "sync",
		Short: "Run a sync daemon, which runs tasks when resources change",
		Long: `Run a sync daemon until SIGINT or SIGTERM: it watches services, keys, and the state
of the federation, and runs a task when its condition is met. A task runs Terraform
with a module, or a command.

The configuration files are those of Consul-Terraform-Sync, in HCL or JSON, with
additional options. --config-file is repeatable and may be a directory. The block
wanfed has the certificate of the daemon. Its role is "sync":

    wanfed {
      ca   = "wanfed-agent-ca.pem"
      cert = "dc1-sync-wanfed-0.pem"
      key  = "dc1-sync-wanfed-0-key.pem"
    }
    task {
      name   = "hosts"
      driver = "exec"
      condition "services" { names = ["web"] }
      exec { command = ["/usr/local/bin/update-hosts"] }
    }

SIGHUP reads the files again: log level, tasks and providers change. SIGTERM lets
runs end for 10 s and then interrupts them. Terraform continues if the daemon is
killed, and the next start stores its result.

Nothing runs again after a restart unless it has changed. Several daemons with one
id each and one group share the tasks. When one dies, the others take over its
tasks after the lease duration. See "wanfed task" for the tasks.`,
		Example: `  wanfed sync --config-file sync.hcl
  wanfed sync --config-file /etc/wanfed/sync.d --once
  wanfed sync --config-file sync.hcl --inspect`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case len(cfg.Paths) == 0:
				return usagef("--config-file is required; see: %s --help", cmd.CommandPath())
			case once && inspect:
				return usagef("--once and --inspect exclude each other")
			case once:
				cfg.Mode = syncd.Once
			case inspect:
				cfg.Mode = syncd.Inspect
			}
			cfg.Stdout, cfg.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return syncd.Run(cmd.Context(), cfg)
		},
	}
	c.Flags().StringArrayVar(&cfg.Paths, "config-file", nil, "HCL or JSON (.json) `file`, or a directory of such files; repeatable")
	c.Flags().BoolVar(&once, "once", false, "run each task once, then stop; exit status 1 if a task fails")
	c.Flags().BoolVar(&inspect, "inspect", false, "print the plan of each task of the files, and change nothing")
	c.Flags().StringVar(&cfg.LogFormat, "log-format", "text", "`format` of the log on stderr: text or json")
	return c
}
