// SPDX-License-Identifier: MPL-2.0

// Package logtail sends the log of a process to viewers, each at its own level.
//
//	tail := logtail.New()
//	logger := slog.New(tail.Handler(handler)) // handler writes the log of the process
//	...
//	v, err := tail.Open("debug", "text")
//	if err != nil {
//		return err // too many viewers, or an unknown level or format
//	}
//	defer v.Close()
//	for line, err := v.Next(ctx); err == nil; line, err = v.Next(ctx) {
//		...
//	}
//
// A viewer does not change the log of the process, and never delays it: a line
// is dropped if the queue of the viewer is full, and the next line has the
// number of dropped ones. Without a viewer, a record costs one atomic load.
//
// # Limits
//
// A process has at most [MaxViewers] viewers. The queue of each has at most 1024
// lines of at most 16 KiB. A longer line is cut.
//
// All methods may be called from any goroutine. The package starts none.
package logtail
