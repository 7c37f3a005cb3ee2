// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newDemo() *cobra.Command { return &cobra.Command{Use: "demo", Short: "not built yet"} }
