// SPDX-License-Identifier: MPL-2.0

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgress: what is short says nothing, what is long says how far it is, and what stalls is ended.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		ctx, _, stop := watchProgress(t.Context(), &out, "sent", 2000)
		time.Sleep(progressEvery - time.Millisecond)
		stop()
		if ctx.Err() == nil || out.Len() > 0 {
			t.Errorf("short: %v, %q", ctx.Err(), &out)
		}

		ctx, moved, stop := watchProgress(t.Context(), &out, "sent", 2000)
		moved(500)
		time.Sleep(progressEvery + time.Millisecond)
		moved(1500)
		time.Sleep(2 * progressEvery)
		time.Sleep(restoreWait / 2)
		if ctx.Err() != nil {
			t.Errorf("while the servers restore: %v", context.Cause(ctx))
		}
		stop()
		if want := "sent 500 B of 2.0 kB ...\nsent all of 2.0 kB; waiting for the servers to restore it ...\n"; out.String() != want {
			t.Errorf("long: %q, want %q", &out, want)
		}

		out.Reset()
		ctx, moved, stop = watchProgress(t.Context(), &out, "saved", 0)
		moved(10)
		<-ctx.Done()
		stop()
		if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "nothing has moved for 1m0s") || !strings.HasPrefix(out.String(), "saved 10 B ...\n") {
			t.Errorf("stalled: %v, %q", cause, &out)
		}
	})
}
