// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/wanfed"
)

// A leaving member is soon listed as left, and at no time as failed.
func TestLeave(t *testing.T) {
	for kind, limit := range map[wanfed.Pool]time.Duration{
		wanfed.PoolLAN: 1200 * time.Millisecond,
		wanfed.PoolWAN: time.Second,
	} {
		for _, size := range []int{1, 3, 12} {
			t.Run(fmt.Sprintf("%v pool of %d", kind, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testLeave(t, kind, size, limit) })
			})
		}
	}
}

func testLeave(t *testing.T, kind wanfed.Pool, size int, limit time.Duration) {
	var net network
	var nodes []*node
	logs := make([]bytes.Buffer, size) // each slog handler locks its own
	for i := range size {
		n := newNode(t, &net, fmt.Sprintf("n%d", i), nil, func(c *Config) {
			c.Kind, c.Logger = kind, slog.New(slog.NewTextHandler(&logs[i], nil))
		})
		nodes = append(nodes, n)
		if i > 0 {
			if err := n.Join(t.Context(), nodes[0].addr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	time.Sleep(15 * time.Second) // gossip spreads, in the time of synctest
	last := nodes[size-1]
	start := time.Now()
	last.stop()
	took := time.Since(start)
	if size == 1 && took > 0 || took > limit {
		t.Errorf("Run() took %v to leave, want at most %v, and no time for a single member", took, limit)
	}
	time.Sleep(15 * time.Second)
	for i, n := range nodes[:size-1] {
		if err := has(last.cfg.Name, last.cfg.Advertise.String(), StatusLeft)(n.Members()); err != nil {
			t.Errorf("members of %s: %v", n.cfg.Name, err)
		}
		n.stop()
		if text := logs[i].String(); strings.Contains(text, "member failed") || strings.Contains(text, "level=WARN") {
			t.Errorf("log of %s has a failed member or a warning: %s", n.cfg.Name, text)
		}
	}
	if text := logs[size-1].String(); strings.Contains(text, "level=WARN") {
		t.Errorf("log of %s has a warning: %s", last.cfg.Name, text)
	}
}
