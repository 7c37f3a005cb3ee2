// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/output"
	"github.com/wanfed/wanfed/server"
)

func newServerRecover() *cobra.Command {
	var confirm confirmation
	var dataDir string
	c := &cobra.Command{
		Use:   "recover",
		Short: "Make a stopped server the only voter of its datacenter",
		Long: `Make a stopped server the only voter of its datacenter, after a majority of the
voters was lost for good. While a majority can be started, start it instead.

The server keeps all entries of its log and the identity of its datacenter. It
loses the writes that only the lost servers have. The command shows the last
entry of the log, and requires a confirmation. If several servers are left, look
at each of them, and recover the one with the highest term, and of these the one
with the highest index.

Delete the data directories of all other servers of the datacenter before they
start again. They join the recovered server as new servers.`,
		Example: `  wanfed snapshot save dc1-stale.snap --stale --datacenter dc1 --server 10.0.0.7:8300
  systemctl stop wanfed
  wanfed server recover --data-dir /var/lib/wanfed
  systemctl start wanfed`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dataDir == "" {
				return usagef("--data-dir is required; see: %s --help", cmd.CommandPath())
			}
			if err := confirm.check(cmd); err != nil {
				return err
			}
			return recoverServer(cmd, confirm, dataDir)
		},
	}
	c.Flags().StringVar(&dataDir, "data-dir", "", "data `directory` of the stopped server")
	confirm.addFlag(c)
	return c
}

func recoverServer(cmd *cobra.Command, confirm confirmation, dataDir string) (err error) {
	logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	r, err := server.OpenRecovery(dataDir, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	others := slices.DeleteFunc(slices.Clone(r.Voters), func(node string) bool { return node == r.Node })
	if len(r.Voters) == 1 && len(others) == 0 {
		return fmt.Errorf("%s is already the only voter of %s; start it: wanfed server", r.Node, r.DC)
	}
	lost := strings.Join(others, ", ")
	err = confirm.require(cmd, fmt.Sprintf(`The log of %s in %s ends at index %d, term %d, written at %s.
The voters are %s.
%s becomes the only voter. This loses the writes that %s acknowledged
without %s, in particular all writes after index %d.
Delete the data directory of each other server before it starts again.`,
		r.Node, r.DC, r.LastIndex, r.LastTerm, output.Timestamp(r.LastTime), strings.Join(r.Voters, ", "),
		r.Node, lost, r.Node, r.LastIndex))
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	index, err := r.Run()
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is the only voter of %s, at index %d; start it: wanfed server\n", r.Node,
		r.DC, index)
	return nil
}
