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
)

// TestFarewell: who leaves is soon gone, and nobody calls it failed, not even for a moment.
func TestFarewell(t *testing.T) {
	for kind, limit := range map[Kind]time.Duration{LAN: 1200 * time.Millisecond, WAN: time.Second} {
		for _, size := range []int{1, 3, 12} {
			t.Run(fmt.Sprintf("kind %d, %d members", kind, size), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { farewell(t, kind, size, limit) })
			})
		}
	}
}

func farewell(t *testing.T, kind Kind, size int, limit time.Duration) {
	var net network
	var nodes []*node
	logs := make([]bytes.Buffer, size) // a handler guards its own
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
	time.Sleep(15 * time.Second) // in the bubble: they come to know each other
	last := nodes[size-1]
	began := time.Now()
	last.stop()
	took := time.Since(began)
	if size == 1 && took > 0 || took > limit {
		t.Errorf("the stop took %v", took)
	}
	time.Sleep(15 * time.Second)
	for i, n := range nodes[:size-1] {
		if err := has(last.cfg.Name, last.cfg.Advertise.String(), StatusLeft)(n.Members()); err != nil {
			t.Errorf("%s: %v", n.cfg.Name, err)
		}
		n.stop()
		if said := logs[i].String(); strings.Contains(said, "member failed") || strings.Contains(said, "level=WARN") {
			t.Errorf("%s: %s", n.cfg.Name, said)
		}
	}
	if said := logs[size-1].String(); strings.Contains(said, "level=WARN") {
		t.Errorf("%s: %s", last.cfg.Name, said)
	}
}
