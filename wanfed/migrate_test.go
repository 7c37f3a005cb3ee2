// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// A secondary that started over its primary's gateway migrates to its local one
// when the address book lists it: links and sessions, and without losing a
// packet or breaking a stream.
func TestMigrate_ToPreferredPath(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.sessionIdleTimeout = time.Second })
	n1, n2 := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
	own := newFakeGateway(t, listen(t), "dc2", map[string]string{"srv1": n2.addr})
	book := func(paths ...Path) {
		r := *n1.book.Load()
		r.Paths = map[string][]Path{"dc2": paths}
		n1.book.Store(&r)
	}
	remote, better := Path{Addr: w.gws["dc2"].addr, Via: "remote gateway"}, Path{Addr: own.addr, Via: "local gateway",
		Local: true}

	send(t, t1, "srv1.dc2", "over the remote gateway")
	receive(t, t2)
	c, err := t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	s := <-t2.StreamCh()

	over := func(h Path) func() bool {
		return func() bool {
			st := n1.tun.Stats()
			return len(st.Links) == 1 && st.Links[0].Path == h && !st.Links[0].ConnectedSince.IsZero() &&
				len(st.Sessions) == 1 && st.Sessions[0].Path == h
		}
	}
	testutil.Eventually(t, 5*time.Second, over(remote), "link and session over the remote gateway")
	t.Run("a preferred path that fails changes nothing", func(t *testing.T) {
		book(Path{Addr: closedPort(t), Via: "local gateway", Local: true}, remote)
		testutil.Eventually(t, 5*time.Second, func() bool {
			for _, p := range n1.d.Paths() {
				if p.Failures > 0 {
					return true
				}
			}
			return false
		}, "a dial of the dead gateway")
		send(t, t1, "srv1.dc2", "still there")
		receive(t, t2)
		if !over(remote)() {
			t.Errorf("Stats() = %+v, want link and session over the remote gateway", n1.tun.Stats())
		}
	})

	t.Run("links and sessions migrate", func(t *testing.T) {
		book(better, remote)
		for i := 0; !over(better)(); i++ {
			send(t, t1, "srv1.dc2", "during the migration")
			receive(t, t2)
			if i > 100000 {
				t.Fatalf("no migration: %+v", n1.tun.Stats())
			}
		}
		checkHalfClose(t, c, s) // the stream of the old session continues
		checkHalfClose(t, s, c)
		c.Close()
		s.Close()
	})
	t.Run("new traffic uses the preferred path", func(t *testing.T) {
		w.gws["dc2"].stop() // anything that still uses it would break now
		send(t, t1, "srv1.dc2", "over the local gateway")
		if got := receive(t, t2); got != "over the local gateway" {
			t.Errorf("received %q, want %q", got, "over the local gateway")
		}
		if c, err = t1.DialAddressTimeout(to("srv1.dc2"), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		checkEcho(t, c, <-t2.StreamCh())
	})
	book() // the gateway left the address book, but a working connection stays
	send(t, t1, "srv1.dc2", "still")
	receive(t, t2)
	if got := n1.traffic(PoolWAN, "dc2"); len(got.Dropped) != 0 {
		t.Errorf("traffic = %+v, want no packet dropped", got)
	}
}
