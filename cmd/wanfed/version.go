// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newVersion() *cobra.Command { return &cobra.Command{Use: "version", Short: "not built yet"} }
