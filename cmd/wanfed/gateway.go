// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newGateway() *cobra.Command { return &cobra.Command{Use: "gateway", Short: "not built yet"} }
