// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/version"
)

func newVersion() *cobra.Command {
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Example: `  wanfed version
  wanfed version --output json`,
		Args: noArgs,
	}
	format := addOutput(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		info := version.Get()
		out := printer{cmd.OutOrStdout(), *format}
		return out.print(info, func() error {
			_, err := fmt.Fprintln(out.w, "wanfed", info)
			return err
		})
	}
	return c
}
