// SPDX-License-Identifier: MPL-2.0

package main

import (
	"cmp"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/api/lock"
	"github.com/wanfed/wanfed/session"
)

func newLock() *cobra.Command {
	var l lock.Command
	c := &cobra.Command{
		Use:   "lock KEY -- COMMAND [ARG...]",
		Short: "Run a command while holding a lock",
		Long: `Run a command while holding a lock, on one of several machines.

The command waits for the lock of KEY, runs COMMAND, and releases the lock when
COMMAND has ended. Its exit status is that of COMMAND. If the lock is lost,
COMMAND gets SIGTERM, and SIGKILL after --terminate-timeout, and the exit status
is not 0. SIGTERM and SIGINT for wanfed also end COMMAND in this way.

The lock is held by a session, which is renewed while COMMAND runs. When this
machine fails, another one gets the lock after one and a half times --ttl, and
the delay of --lock-delay.

COMMAND has the environment variables CONSUL_LOCK_HELD=true and
WANFED_LOCK_TOKEN. The token is a number that grows with each holder of any lock.
A system that receives requests of COMMAND can reject those with a token below
the highest one that it has received. A lock alone cannot prevent that COMMAND
continues for a short time after its machine was suspended.

The key is KEY/.lock. "consul lock" uses the same key.`,
		Example: `  wanfed lock backup -- /usr/local/bin/backup --all
  wanfed lock --timeout 10s deploy -- sh -c 'echo token $WANFED_LOCK_TOKEN'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at != 1 || len(args) < 2 || args[0] == "" {
				return usagef("KEY -- COMMAND is required; see: %s --help", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			l.Key, l.Args = args[0], args[1:]
			if err := cmp.Or(checkDuration("ttl", l.TTL, 10*time.Second, 24*time.Hour),
				checkDuration("lock-delay", l.Delay, 0, session.MaxLockDelay), checkDuration("timeout", l.Timeout, 0, 0),
				checkDuration("terminate-timeout", l.Terminate, 0, 0)); err != nil {
				return err
			}
			if err := requireHTTPS(cmd); err != nil {
				return err
			}
			cl, err := newClient(cmd, 0)
			if err != nil {
				return err
			}
			defer cl.Close()
			l.Client, l.Options = cl.Client, cl.opts
			l.Stdin, l.Stdout, l.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return explainHTTP(l.Run(cmd.Context()))
		},
	}
	addClientFlags(c)
	c.ValidArgsFunction = completeArgs(completeKeys)
	c.Flags().DurationVar(&l.TTL, "ttl", 15*time.Second, "`time` to live of the session, 10s to 24h")
	c.Flags().DurationVar(&l.Delay, "lock-delay", 15*time.Second,
		"`time` after a lost lock during which it cannot be locked, at most 1m")
	c.Flags().DurationVar(&l.Timeout, "timeout", 0, "`time` to wait for the lock (0: no limit)")
	c.Flags().DurationVar(&l.Terminate, "terminate-timeout", 5*time.Second, "`time` from SIGTERM to SIGKILL")
	c.Flags().StringVar(&l.Name, "name", "", "`name` of the session (default: \"wanfed lock\" with the key)")
	return c
}
