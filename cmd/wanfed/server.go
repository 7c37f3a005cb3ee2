// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newServer() *cobra.Command { return &cobra.Command{Use: "server", Short: "not built yet"} }
