// SPDX-License-Identifier: MPL-2.0

package snapshot

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestProgress_ShortTransfer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(t.Context(), &out, "sent", 2000)
		time.Sleep(progressInterval - time.Millisecond)
		p.stop()
		if p.ctx.Err() == nil || out.Len() > 0 {
			t.Errorf("after stop: ctx.Err() = %v, output %q, want canceled and no output", p.ctx.Err(), &out)
		}
	})
}

func TestProgress_LongTransfer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(t.Context(), &out, "sent", 2000)
		p.add(500)
		time.Sleep(progressInterval + time.Millisecond)
		p.add(1500)
		time.Sleep(2 * progressInterval)
		time.Sleep(restoreTimeout / 2)
		if p.ctx.Err() != nil {
			t.Errorf("ctx while the servers restore = %v, want not canceled", context.Cause(p.ctx))
		}
		p.stop()
		want := "sent 500 B of 2.0 kB ...\nsent all of 2.0 kB; waiting for the servers to restore it ...\n"
		if out.String() != want {
			t.Errorf("output = %q, want %q", &out, want)
		}
	})
}

func TestProgress_NoData(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(t.Context(), &out, "saved", 0)
		time.Sleep(3*progressInterval + time.Millisecond)
		p.stop()
		if want := "waiting for the servers to respond ...\n"; out.String() != want {
			t.Errorf("output = %q, want %q", &out, want)
		}
	})
}

func TestProgress_StalledTransfer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(t.Context(), &out, "saved", 0)
		p.add(10)
		<-p.ctx.Done()
		p.stop()
		const want = "no data was transferred for 1m0s"
		if cause := context.Cause(p.ctx); cause == nil || !strings.Contains(cause.Error(), want) {
			t.Errorf("cause = %v, want %s", cause, want)
		}
		if !strings.HasPrefix(out.String(), "saved 10 B ...\n") {
			t.Errorf("output = %q, want the progress", &out)
		}
	})
}
