// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/gatewayd"
	"github.com/wanfed/wanfed/internal/logtail"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// errSeen ends a call of WatchLog in a test.
var errSeen = errors.New("the line was seen")

// TestMonitor_Gateway checks who may watch the log of a gateway, at which level,
// and how many viewers there may be.
func TestMonitor_Gateway(t *testing.T) {
	ca := tlstest.NewCA(t)
	f := ca.Files(t, tlsutil.RoleGateway, "gw1", "dc1")
	gw := startCommand(t, "gateway", "--dc", "dc1", "--node", "gw1", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key, "--server", "127.0.0.1:1",
		"--lan", "127.0.0.1:0", "--wan", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0")
	admin := strings.TrimPrefix(gw.adminURL(t), "http://")
	if code, body := get(t, "http://"+admin+"/log?level=debug&format=text"); code != 403 || !strings.Contains(body, "needs https") {
		t.Errorf("log in plain text = %d %s, want 403", code, body)
	}
	watch := func(ctx context.Context, id *tlsutil.Identity, level, format, want string) error {
		return gatewayd.WatchLog(ctx, admin, id, level, format, func(line string, _ uint64) error {
			if strings.Contains(line, want) {
				return errSeen
			}
			return nil
		})
	}
	joe := ca.Identity(t, tlsutil.RoleOperator, "joe", "dc1")
	for _, c := range [][2]string{
		{"text", `level=INFO msg="log watched" dc=dc1 gateway=gw1`}, {"json", `"level":"INFO","msg":"log watched"`},
	} {
		if err := watch(t.Context(), joe, "info", c[0], c[1]); !errors.Is(err, errSeen) {
			t.Errorf("WatchLog(%s) = %v, want %v", c[0], err, errSeen)
		}
	}
	for _, c := range []struct {
		id            *tlsutil.Identity
		level, format string
		want          string
	}{
		{ca.Identity(t, tlsutil.RoleClient, "web1", "dc1"), "info", "text", "only operators of dc1 may"},
		{joe, "loud", "text", `log_level "loud" is not one of`},
		{joe, "info", "xml", `log_format "xml" is not one of`},
	} {
		if err := watch(t.Context(), c.id, c.level, c.format, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("WatchLog(%v, %s, %s) = %v, want %q", c.id.Peer(), c.level, c.format, err, c.want)
		}
	}
	var open []context.CancelFunc
	done := make(chan error, logtail.MaxViewers)
	for range logtail.MaxViewers {
		ctx, cancel := context.WithCancel(t.Context())
		open = append(open, cancel)
		opened := make(chan struct{})
		go func() {
			first := true
			done <- gatewayd.WatchLog(ctx, admin, joe, "info", "text", func(string, uint64) error {
				if first {
					first = false
					close(opened)
				}
				return nil
			})
		}()
		<-opened // its own line "log watched"
	}
	if err := watch(t.Context(), joe, "info", "text", ""); err == nil || !strings.Contains(err.Error(), "has 8 viewers") {
		t.Errorf("WatchLog() of viewer 9 = %v, want a refusal", err)
	}
	for _, cancel := range open {
		cancel()
		if err := <-done; err == nil {
			t.Error("WatchLog() after the end of its context = nil, want an error")
		}
	}
	gw.stop()
}
