// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

// newGroup is a command that only has subcommands. Called without one, or with an unknown one, it is a usage error.
func newGroup(use, short string, subs ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usagef("say what to do; see: %s --help", cmd.CommandPath())
		},
	}
	c.AddCommand(subs...)
	return c
}

// noArgs is cobra.NoArgs as a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		return usagef("unknown command %q; see: %s --help", args[0], cmd.CommandPath())
	}
	return usagef("unexpected argument %q; see: %s --help", args[0], cmd.CommandPath())
}
