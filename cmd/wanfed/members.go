// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newMembers() *cobra.Command { return &cobra.Command{Use: "members", Short: "not built yet"} }
