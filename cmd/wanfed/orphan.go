// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/wanfed/wanfed/internal/subprocess"
)

// orphanGrace is how long a process whose parent is gone may take to stop cleanly.
const orphanGrace = 15 * time.Second

// addStopOnEOF gives root, and what is below it, the flag by which a parent makes sure that a process does not outlive it.
func addStopOnEOF(root *cobra.Command) {
	on := root.PersistentFlags().Bool(subprocess.StopOnEOF, false, "stop when stdin ends, that is, with the process that holds its other end")
	_ = root.PersistentFlags().MarkHidden(subprocess.StopOnEOF) // the one error is an unknown flag
	root.PersistentPreRun = func(cmd *cobra.Command, _ []string) {
		if !*on {
			return
		}
		ctx := subprocess.UntilEOF(cmd.Context(), cmd.InOrStdin())
		context.AfterFunc(ctx, func() {
			if errors.Is(context.Cause(ctx), subprocess.ErrParentGone) {
				// Nobody is left to kill a process that does not stop.
				time.AfterFunc(orphanGrace, func() { os.Exit(exitFailed) })
			}
		})
		cmd.SetContext(ctx)
	}
}
