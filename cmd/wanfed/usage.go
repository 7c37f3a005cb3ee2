// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

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

// strictHelp makes help about a command that there is not a usage error: cobra shows the help of root.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	help, _, err := root.Find([]string{"help"})
	if err != nil {
		panic(err) // it was just made
	}
	help.Run, help.RunE = nil, func(cmd *cobra.Command, args []string) error {
		about, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return usagef("unknown command %q; see: %s --help", args[len(args)-max(len(rest), 1)], about.CommandPath())
		}
		about.InitDefaultHelpFlag()
		return about.Help()
	}
}

// clearFlagError says in words what is no number, or neither true nor false, where the flag's library quotes strconv.
func clearFlagError(err error) error {
	bad, ok := errors.AsType[*strconv.NumError](err)
	if !ok {
		return err
	}
	must := "it must be a whole number"
	switch {
	case bad.Func == "ParseBool":
		must = "it must be true or false"
	case errors.Is(bad, strconv.ErrRange):
		must = "it is too large a number"
	}
	return errors.New(strings.TrimSuffix(err.Error(), bad.Error()) + must)
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
