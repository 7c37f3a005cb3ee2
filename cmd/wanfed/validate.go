// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newValidate() *cobra.Command { return &cobra.Command{Use: "validate", Short: "not built yet"} }
