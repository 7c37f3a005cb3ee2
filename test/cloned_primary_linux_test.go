// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// clonesVisible bounds the time from the start of a clone to its report. A
// server of the primary sends a claim every 5 s, and faster when a second process
// has claimed to be the same server.
const clonesVisible = 15 * time.Second

// TestClonedPrimary starts a copy of the data directory of the primary while the
// primary runs. Both processes and the secondary name the addresses of both, until
// one of them stops. A restart of the primary is not reported.
func TestClonedPrimary(t *testing.T) {
	t.Parallel()
	testutil.Cluster(t)
	l := newLoopback(t)
	first := l.start("dc1", "dc1")
	dc2 := l.start("dc2", "dc1", first.gateway.WAN)
	l.federated(first, dc2)

	log := logOf(dc2.server.Process)
	first.server.Kill()
	first.gateway.Kill()
	first = l.startIn("dc1", "dc1", "dc1") // at other addresses
	restarted := time.Now()
	for time.Since(restarted) < clonesVisible {
		for _, s := range []*site{first, dc2} {
			if n := metric(t, s.server.HTTP, "wanfed_primary_clones"); n != 0 {
				t.Fatalf("wanfed_primary_clones of %s after a restart of the primary = %v, want 0", s.dc, n)
			}
		}
		<-time.After(500 * time.Millisecond)
	}

	copyDir(t, filepath.Join(l.dir, "dc1-srv1", "data"), filepath.Join(l.dir, "copy-srv1", "data"))
	second := l.startIn("copy", "dc1", "dc1")
	started := time.Now()
	sites := []*site{first, second, dc2}
	// clones returns nil if s reports both processes with these parts of their
	// places, or if s reports none and there are no parts.
	clones := func(ctx context.Context, s *site, places ...string) error {
		st, err := s.status(ctx)
		if err != nil {
			return err
		}
		advice, err := s.advice(ctx, "dc1")
		if err != nil {
			return err
		}
		texts := []string{advice}
		if s != dc2 {
			texts = append(texts, component(st, "identity").Detail)
		}
		for _, text := range texts {
			for _, place := range places {
				if !strings.Contains(text, place) {
					return fmt.Errorf("%s at %s: text is %q, want %s in it", s.dc, s.server.Addr, text, place)
				}
			}
			// In the same network a server also reports others with its name, for longer.
			if len(places) == 0 && strings.Contains(text, "runs in 2 processes") {
				return fmt.Errorf("%s at %s: text is %q, want no clone", s.dc, s.server.Addr, text)
			}
		}
		if n := metric(t, s.server.HTTP, "wanfed_primary_clones"); (n > 0) != (len(places) > 0) {
			return fmt.Errorf("wanfed_primary_clones of %s at %s = %v", s.dc, s.server.Addr, n)
		}
		return nil
	}
	for _, s := range sites {
		testutil.Await(t, waitLimit, "the clone is reported by "+s.dc, func(ctx context.Context) error {
			return clones(ctx, s, first.server.Addr, second.server.Addr)
		})
		took := time.Since(started)
		t.Logf("%s at %s reports the clone after %v", s.dc, s.server.Addr, took.Round(time.Millisecond))
		if took > clonesVisible {
			t.Errorf("the report of %s took %v, want at most %v", s.dc, took, clonesVisible)
		}
	}
	for _, s := range sites { // the new gateway registers after the former one has timed out
		testutil.Await(t, waitLimit, "the gateways are named by "+s.dc, func(ctx context.Context) error {
			return clones(ctx, s, first.gateway.WAN, second.gateway.WAN)
		})
	}
	t.Logf("gateways are named after %v", time.Since(started).Round(time.Millisecond))
	log.await(t, `level=ERROR msg="a server of the primary runs twice".*`+second.server.Addr)
	logOf(first.server.Process).await(t, `level=ERROR msg="this server of the primary runs twice".*`+second.server.Addr)

	second.gateway.Kill()
	second.server.Kill()
	for _, s := range []*site{first, dc2} {
		testutil.Await(t, waitLimit, "the report ends in "+s.dc, func(ctx context.Context) error {
			return clones(ctx, s)
		})
	}
	l.federated(first, dc2)
}
