// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// The first dial of a link is no outage: what has waited for it is sent, however long it took. After an outage it is dropped.
func TestFirstDialIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		const slow = 4 * time.Second
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
				time.Sleep(slow)
				return nw.dial(ctx, addr)
			}
		}).start(nw.listen("10.0.1.1:8300"))
		n2 := newNode(t, a, "srv1", "dc2", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.2.1:8300"))
		n1.book.Store(hops("10.0.2.1:8300"))
		t1, t2 := n1.tun.Transport(PoolWAN), n2.tun.Transport(PoolWAN)
		send(t, t1, "srv1.dc2", "first")
		time.Sleep(slow + time.Second)
		if got := n1.traffic(PoolWAN, "dc2"); got.Sent != 1 || len(got.Dropped) != 0 || slow <= n1.tun.limits.maxQueueAge {
			t.Fatalf("the first dial took %v: %+v", slow, got)
		}
		if got := receive(t, t2); got != "first" {
			t.Errorf("received %q", got)
		}

		nw.cut("10.0.2.1:8300")()
		send(t, t1, "srv1.dc2", "after a break") // which nobody knows of before this write
		time.Sleep(time.Second)
		send(t, t1, "srv1.dc2", "late")
		time.Sleep(2 * slow)
		if got := n1.traffic(PoolWAN, "dc2"); got.Dropped["expired"] == 0 || got.Received != 0 {
			t.Errorf("a dial after a break took %v: %+v", slow, got)
		}
		if got := n2.traffic(PoolWAN, "dc1").Received; got != 1 {
			t.Errorf("%d packets came, want the first alone", got)
		}
	})
}
