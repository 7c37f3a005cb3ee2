// SPDX-License-Identifier: MPL-2.0

package gossip

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/gossip/gossiptest"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/wanfed"
)

// A leaving member is listed as left within a second, and is not listed as
// failed.
func TestLeave(t *testing.T) {
	for kind, limit := range map[wanfed.Pool]time.Duration{
		wanfed.PoolLAN: 1200 * time.Millisecond,
		wanfed.PoolWAN: time.Second,
	} {
		for _, size := range []int{1, 3, 12} {
			t.Run(fmt.Sprintf("%v pool of %d", kind, size), func(t *testing.T) {
				testutil.Bubble(t, func(t *testing.T) { testLeave(t, kind, size, limit) })
			})
		}
	}
}

func testLeave(t *testing.T, kind wanfed.Pool, size int, limit time.Duration) {
	var net gossiptest.Network
	var nodes []*node
	logs := make([]bytes.Buffer, size) // of each node
	for i := range size {
		n := newNode(t, &net, fmt.Sprintf("n%d", i), func(c *Config) {
			c.Kind, c.Logger = kind, slog.New(slog.NewTextHandler(&logs[i], nil))
		})
		nodes = append(nodes, n)
		if i > 0 {
			if err := n.Join(t.Context(), nodes[0].addr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The pool leaves between two ticks of memberlist. At a tick, the leave
	// message and its successor arrive together, in any order.
	time.Sleep(15*time.Second + 10*time.Millisecond) // in the time of synctest
	last := nodes[size-1]
	if size == 1 {
		limit = 0
	}
	start := time.Now()
	last.stop()
	if elapsed := time.Since(start); elapsed > limit {
		t.Errorf("Run() needed %v to leave, want at most %v", elapsed, limit)
	}
	time.Sleep(15 * time.Second)
	for i, n := range nodes[:size-1] {
		if err := has(last.cfg.Name, last.cfg.Advertise.String(), StatusLeft)(n.Members()); err != nil {
			t.Errorf("members of %s: %v", n.cfg.Name, err)
		}
		n.stop()
		if text := logs[i].String(); strings.Contains(text, "member failed") || strings.Contains(text, "level=WARN") {
			t.Errorf("log of %s = %s, want no failed member and no warning", n.cfg.Name, text)
		}
	}
	if text := logs[size-1].String(); strings.Contains(text, "level=WARN") {
		t.Errorf("log of %s = %s, want no warning", last.cfg.Name, text)
	}
}
