// SPDX-License-Identifier: MPL-2.0

package subprocess

import (
	"context"
	"errors"
	"io"
)

// StopOnEOF is the flag that makes a wanfed process stop when its stdin ends.
const StopOnEOF = "stop-on-eof"

// ErrParentGone is the cause of the end of a context of UntilEOF.
var ErrParentGone = errors.New("stdin has ended: the process that started this one is gone")

// UntilEOF returns a context that ends with ctx or at the end of r. It is for the
// main function of a process and os.Stdin: its goroutine ends with r, not with
// ctx.
func UntilEOF(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r)
		cancel(ErrParentGone)
	}()
	return ctx
}
