// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// A connection on a fallback way moves when a probe finds that the preferred one works again, without waiting for its own look.
func TestConnectionsMoveWhenAProbeFindsTheWay(t *testing.T) {
	w := newWorld(t, 1, []string{"dc1", "dc2"}, func(tm *limits) { tm.migrateInterval = time.Hour })
	n, far := w.nodes["srv1.dc1"], w.nodes["srv1.dc2"]
	own := newGatewayDouble(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	own.stop()
	ownHop := Path{Addr: own.addr, Via: "own", Local: true}
	n.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {ownHop, {Addr: w.gws["dc2"].addr, Via: "remote"}}}})
	n.d.paths.recordSuccess("dc2", ownHop, own.addr, time.Millisecond, nil) // earlier
	t1, t2 := n.tun.Transport(PoolWAN), far.tun.Transport(PoolWAN)
	send(t, t1, "srv1.dc2", "x")
	receive(t, t2)
	over := func(addr string) func() bool {
		return func() bool { l := n.tun.Stats().Links; return len(l) == 1 && l[0].Path.Addr == addr }
	}
	eventually(t, "the fallback is used", 5*time.Second, over(w.gws["dc2"].addr))
	probing(t, n)
	own.restart()
	eventually(t, "the own gateway is used", 5*time.Second, over(own.addr))
	eventually(t, "echoes are evidence", 5*time.Second, func() bool { return n.way(own.addr).SmoothedRTT > 0 })
}

// lateConn is a connection over a slow network: what it brings comes late.
type lateConn struct {
	net.Conn
	late time.Duration
}

func (c lateConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	<-time.After(c.late)
	return n, err
}

// In automatic mode a connection over the own gateway moves to the far one that measures much better, and stays there.
func TestAutoModeMovesToTheFasterWay(t *testing.T) {
	w := newWorld(t, 1, []string{"dc2"})
	far, remote := w.nodes["srv1.dc2"], w.gws["dc2"].addr
	own := newGatewayDouble(t, listen(t), "dc2", map[string]string{"srv1": far.addr})
	n := newNode(t, w.a, "srv1", "dc1", func(c *DialerConfig) {
		c.Mode, c.AttemptDelay = ModeAuto, 5*time.Second
		c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := dialTCP(ctx, addr)
			if err == nil && addr == own.addr {
				conn = lateConn{conn, 50 * time.Millisecond}
			}
			return conn, err
		}
	})
	n.book.Store(&AddressBook{Paths: map[string][]Path{"dc2": {{Addr: own.addr, Via: "own", Local: true}, {Addr: remote, Via: "remote"}}}})
	n.start(listen(t), func(tm *limits) { tm.migrateInterval = 50 * time.Millisecond })
	t1, t2 := n.tun.Transport(PoolWAN), far.tun.Transport(PoolWAN)
	over := func(addr string) func() bool {
		return func() bool { l := n.tun.Stats().Links; return len(l) == 1 && l[0].Path.Addr == addr }
	}
	send(t, t1, "srv1.dc2", "x")
	receive(t, t2)
	if !over(own.addr)() {
		t.Errorf("nothing is measured, so it is a tie, but: %+v", n.tun.Stats().Links)
	}
	probing(t, n)
	eventually(t, "the far gateway is used", 10*time.Second, over(remote))
	if ways := n.d.PathsTo("dc2"); ways[0].Addr != remote || ways[1].SmoothedRTT < 40*time.Millisecond {
		t.Errorf("ways: %+v", ways)
	}
	if s := n.log.String(); strings.Count(s, "migrates to a better path") != 1 {
		t.Errorf("log: %s", s)
	}
}
