// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newFederation() *cobra.Command { return &cobra.Command{Use: "federation", Short: "not built yet"} }
