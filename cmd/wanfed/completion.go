// SPDX-License-Identifier: MPL-2.0

package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// newCompletion stands in for cobra's own command of that name, for which an unknown shell is no error.
func newCompletion() *cobra.Command {
	shells := []struct {
		name, load string
		write      func(root *cobra.Command, w io.Writer) error
	}{
		{"bash", "source <(wanfed completion bash)",
			func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) }},
		{"zsh", `wanfed completion zsh > "${fpath[1]}/_wanfed"`,
			func(root *cobra.Command, w io.Writer) error { return root.GenZshCompletion(w) }},
		{"fish", "wanfed completion fish | source",
			func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) }},
		{"powershell", "wanfed completion powershell | Out-String | Invoke-Expression",
			func(root *cobra.Command, w io.Writer) error { return root.GenPowerShellCompletionWithDesc(w) }},
	}
	c := newGroup("completion", "Print the script that completes wanfed's commands in a shell")
	c.Long = c.Short + `.

Names of datacenters and types of resources are completed too, where a server's HTTP API answers (WANFED_HTTP_ADDR).`
	for _, s := range shells {
		c.AddCommand(&cobra.Command{
			Use:               s.name,
			Short:             fmt.Sprintf("Print the script for %s", s.name),
			Example:           "  " + s.load,
			Args:              noArgs,
			ValidArgsFunction: cobra.NoFileCompletions,
			RunE:              func(cmd *cobra.Command, _ []string) error { return s.write(cmd.Root(), cmd.OutOrStdout()) },
		})
		c.Example += "  " + s.load + "\n"
	}
	c.Example = c.Example[:len(c.Example)-1]
	return c
}
