// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/version"
)

func newVersion() *cobra.Command {
	var f format = formatTable
	c := &cobra.Command{
		Use:   "version",
		Short: "Say which wanfed this is",
		Example: `  wanfed version
  wanfed version --format json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := version.Get()
			return printer{cmd.OutOrStdout(), f}.print(info, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, "wanfed", info)
				return err
			})
		},
	}
	c.Flags().Var(&f, "format", "table or json")
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{formatTable, formatJSON}, cobra.ShellCompDirectiveNoFileComp))
	return c
}
