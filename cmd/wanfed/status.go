// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newStatus() *cobra.Command { return &cobra.Command{Use: "status", Short: "not built yet"} }
