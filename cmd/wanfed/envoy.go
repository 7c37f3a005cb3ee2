// SPDX-License-Identifier: MPL-2.0

package main

import (
	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/gatewayd"
)

func newEnvoy() *cobra.Command {
	cmd := newGroup("envoy", "Use Envoy as a gateway", unixOnly(newEnvoyRun()), newEnvoyBootstrap())
	cmd.Long = `Use Envoy as a gateway of a datacenter, in place of "wanfed gateway".

Envoy receives its configuration from the servers of the datacenter by xDS, with
the certificate of a gateway. Settings come from --config-file, then the
environment, then flags, as for "wanfed gateway".`
	return cmd
}

func newEnvoyRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [-- ARG...]",
		Short: "Run Envoy as a gateway",
		Long: `Run Envoy as a gateway until SIGINT or SIGTERM. A second signal ends it at once.

The command registers the gateway, starts Envoy with the arguments after "--",
and sends heartbeats while Envoy runs. To stop, it deregisters the gateway,
accepts connections for --shutdown-delay, waits for open connections for
--drain-time, and ends Envoy. If Envoy ends, the command ends with an error.`,
		Example: `  wanfed envoy run --dc dc1 --node gw1 --data-dir /var/lib/wanfed/envoy \
    --server 10.0.0.5:8300 --lan 10.0.0.5:8444 --wan 198.51.100.1:8443 \
    --ca-file wanfed-agent-ca.pem --cert-file dc1-gateway-wanfed-0.pem \
    --key-file dc1-gateway-wanfed-0-key.pem -- --concurrency 2`,
		Args: cobra.ArbitraryArgs,
	}
	load := addSettings(cmd, gatewayd.DefaultEnvoySettings)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
			return usagef("unexpected argument %q: arguments of Envoy follow --", args[0])
		}
		s, err := load()
		if err != nil {
			return err
		}
		return gatewayd.RunEnvoy(cmd.Context(), gatewayd.EnvoyConfig{
			Settings: s, Args: args, Stdout: cmd.OutOrStdout(), Stderr: cmd.ErrOrStderr(),
		})
	}
	return cmd
}

func newEnvoyBootstrap() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Print the bootstrap of an Envoy that is a gateway",
		Long: `Print the bootstrap of an Envoy that is a gateway, as JSON.

The command writes files to the directory "secrets" of --data-dir that name the
certificate files. Envoy reads them, and reads the certificate files again when a
new one is renamed into place.

An Envoy that runs with this bootstrap receives its configuration when the
gateway is registered. "wanfed envoy run" registers it.`,
		Example: `  wanfed envoy bootstrap --config-file /etc/wanfed/envoy.hcl > envoy.json
  envoy --mode validate -c envoy.json`,
		Args: noArgs,
	}
	load := addSettings(cmd, gatewayd.DefaultEnvoySettings)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := load()
		if err != nil {
			return err
		}
		b, err := s.Bootstrap()
		if err == nil {
			_, err = cmd.OutOrStdout().Write(b)
		}
		return err
	}
	return cmd
}
