// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"slices"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// A secondary that started over a gateway of its primary migrates to the local
// gateway when the address book lists it. Neither packets nor streams are lost.
func TestMigrate_ToPreferredPath(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.sessionIdleTimeout = time.Second })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	localGateway := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	remote := Path{Addr: w.gws["dc2"].addr, Via: "remote gateway"}
	local := Path{Addr: localGateway.addr, Via: "local gateway", Local: true}
	storePaths := func(paths ...Path) {
		book := *n1.book.Load()
		book.Paths = map[string][]Path{"dc2": paths}
		n1.book.Store(&book)
	}
	usesPath := func(p Path) func() bool {
		return func() bool {
			st := n1.tun.Stats()
			return len(st.Links) == 1 && st.Links[0].Path == p && !st.Links[0].ConnectedSince.IsZero() &&
				len(st.Sessions) == 1 && st.Sessions[0].Path == p
		}
	}

	send(t, t1, "srv1.dc2", "over the remote gateway")
	receive(t, t2)
	c, err := t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s := <-t2.StreamCh()
	testutil.Eventually(t, 5*time.Second, usesPath(remote), "link and session over the remote gateway")
	t.Run("a preferred path that fails changes nothing", func(t *testing.T) {
		storePaths(Path{Addr: closedPort(t), Via: "local gateway", Local: true}, remote)
		testutil.Eventually(t, 5*time.Second, func() bool {
			return slices.ContainsFunc(n1.d.Paths(), func(p PathStatus) bool { return p.Failures > 0 })
		}, "a failed dial of the preferred path")
		send(t, t1, "srv1.dc2", "still over the remote gateway")
		receive(t, t2)
		if !usesPath(remote)() {
			t.Errorf("Stats() = %+v, want link and session over the remote gateway", n1.tun.Stats())
		}
	})
	t.Run("links and sessions migrate", func(t *testing.T) {
		storePaths(local, remote)
		for i := 0; !usesPath(local)(); i++ {
			send(t, t1, "srv1.dc2", "during the migration")
			receive(t, t2)
			if i > 100000 {
				t.Fatalf("Stats() after %d packets = %+v, want link and session over the local gateway", i,
					n1.tun.Stats())
			}
		}
		checkHalfClose(t, c, s) // the stream of the old session continues
		checkHalfClose(t, s, c)
		c.Close()
		s.Close()
	})
	t.Run("new traffic uses the preferred path", func(t *testing.T) {
		w.gws["dc2"].stop() // breaks connections over the remote gateway
		send(t, t1, "srv1.dc2", "over the local gateway")
		if got := receive(t, t2); got != "over the local gateway" {
			t.Errorf("received %q, want %q", got, "over the local gateway")
		}
		if c, err = t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		checkEcho(t, c, <-t2.StreamCh())
	})
	t.Run("a connection survives the removal of its path", func(t *testing.T) {
		storePaths()
		send(t, t1, "srv1.dc2", "over the removed path")
		receive(t, t2)
		if got := n1.traffic(PoolWAN, "dc2"); len(got.Dropped) != 0 {
			t.Errorf("traffic = %+v, want no dropped packets", got)
		}
	})
}
