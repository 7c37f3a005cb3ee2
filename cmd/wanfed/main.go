// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in how the command was called: exit code 2.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // from then on a second signal ends the process at once
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(os.Stderr, "wanfed:", err)
	var u usageError
	if errors.As(err, &u) {
		return exitUsage
	}
	return exitFailed
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "wanfed",
		Short: "Join datacenters that can reach each other only through gateways",
		Example: `  wanfed demo                                          # a federation on this machine, to look at
  wanfed server  --config-file /etc/wanfed/server.hcl
  wanfed gateway --config-file /etc/wanfed/gateway.hcl
  wanfed status                                        # how well it goes, and what to do`,
		SilenceUsage:  true,
		SilenceErrors: true,
		// A group that is called without, or with an unknown, subcommand is a usage error, not a help page with exit 0.
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return usagef("say what to do: one of the commands above")
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see: %s --help", clearFlagError(err), cmd.CommandPath())
	})
	addStopOnEOF(root)
	root.AddCommand(
		newServer(), newGateway(), newValidate(), newTLS(),
		newMembers(), newFederation(), newResource(), newKeyring(), newOperator(), newSnapshot(), newStatus(),
		newDemo(), newVersion(), newCompletion(),
	)
	strictHelp(root)
	return root
}
