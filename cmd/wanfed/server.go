// SPDX-License-Identifier: MPL-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/serverd"
)

func newServer() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server of a datacenter",
		Long: `Run a server of a datacenter until SIGINT or SIGTERM. A second signal ends it at
once.

SIGHUP reloads the settings and the certificate. The log names the settings that
changed, and those that need a restart.

Settings come from --config-file (HCL, names with underscores), then the
environment (WANFED_DATA_DIR for --data-dir), then flags. A later source
overrides an earlier one. The server notifies systemd of start and stop
(sd_notify).`,
		Example: `  wanfed server --dc dc1 --node srv1 --data-dir /var/lib/wanfed \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-server-wanfed-0.pem \
    --key-file dc1-server-wanfed-0-key.pem
  wanfed server --config-file /etc/wanfed/server.hcl`,
		Args: noArgs,
	}
	load := addSettings(cmd, serverd.DefaultSettings)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load()
		if err != nil {
			return err
		}
		return serverd.Run(cmd.Context(), serverd.Config{
			Settings: s, Reload: load, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		})
	}
	cmd.AddCommand(newServerRecover())
	return cmd
}
