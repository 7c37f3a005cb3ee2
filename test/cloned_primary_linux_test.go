// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/test/lab"
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

// TestClonedPrimary_Group starts a copy of a primary of three servers in another
// network, as a restored snapshot of its machines. The status of every server of
// the federation names the gateways of both, until the copy stops.
func TestClonedPrimary_Group(t *testing.T) {
	onlyChaos(t)
	lab.NeedNFT(t)
	l := lab.New(t)
	dc1, dc2 := l.Add(3, 1), l.Add(1, 1)
	whole := func(ctx context.Context) error { return allOK(ctx, dc1, dc2) }
	dc1.Start()
	dc2.Start()
	testutil.Await(t, waitLimit, "federation", whole)
	for _, n := range dc1.Nodes() {
		n.Stop() // a copy of files that change is damaged
	}
	second := l.Clone(dc1)
	dc1.Start()
	testutil.Await(t, waitLimit, "federation after the restart", whole)
	second.Start()
	started := time.Now()
	// reported returns nil if the status of a server has a report of clones, or has
	// none.
	reported := func(ctx context.Context, n *lab.Node, want bool) error {
		var st api.Status
		if err := n.Get(ctx, api.StatusPath, &st); err != nil {
			return err
		}
		i := slices.IndexFunc(st.Datacenters, func(d api.DatacenterStatus) bool { return d.Name == "dc1" })
		advice := st.Datacenters[max(i, 0)].Advice
		got := strings.Contains(advice, "runs in 2 processes") && strings.Contains(advice, dc1.Gateways[0].WANAddr()) &&
			strings.Contains(advice, second.Gateways[0].WANAddr())
		if got != want {
			return fmt.Errorf("report of clones by %s = %v, want %v; advice is %q", n.WANName(), got, want, advice)
		}
		if clones, err := n.Metric(ctx, "wanfed_primary_clones"); err != nil || clones > 0 != want {
			return fmt.Errorf("wanfed_primary_clones of %s = %v, %v", n.WANName(), clones, err)
		}
		return nil
	}
	servers := slices.Concat(dc1.Servers, dc2.Servers)
	for _, n := range slices.Concat(servers, second.Servers) {
		testutil.Await(t, 2*waitLimit, "a report of clones by "+n.WANName(), func(ctx context.Context) error {
			return reported(ctx, n, true)
		})
	}
	t.Logf("all servers report the clones after %v", time.Since(started).Round(time.Millisecond))
	second.Kill()
	for _, n := range servers {
		testutil.Await(t, 2*waitLimit, "no report of clones by "+n.WANName(), func(ctx context.Context) error {
			return reported(ctx, n, false)
		})
	}
}
