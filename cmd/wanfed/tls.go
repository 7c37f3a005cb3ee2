// SPDX-License-Identifier: MPL-2.0

package main

import "github.com/spf13/cobra"

func newTLS() *cobra.Command { return &cobra.Command{Use: "tls", Short: "not built yet"} }
