// SPDX-License-Identifier: MPL-2.0

package ratelog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestLog_SuppressesWithinInterval(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		var out bytes.Buffer
		l := New[string](slog.New(slog.NewTextHandler(&out, nil)))
		for range 5 {
			l.Log("a", slog.LevelWarn, "refused", "peer", "a")
		}
		l.Log("b", slog.LevelWarn, "refused", "peer", "b")
		time.Sleep(Interval)
		l.Log("a", slog.LevelWarn, "refused", "peer", "a")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 {
			t.Fatalf("Log() wrote %d lines, want 3:\n%s", len(lines), out.String())
		}
		if want := "suppressed=4"; !strings.Contains(lines[2], want) {
			t.Errorf("last line = %q, want a line with %q", lines[2], want)
		}
	})
}
