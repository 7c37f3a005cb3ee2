// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// serveEchoes runs a server on ln that reads frames. It sends echoes back while
// silent is false.
func serveEchoes(t *testing.T, a *authority, ln net.Listener, silent *atomic.Bool) {
	t.Helper()
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc2")})
	if err != nil {
		t.Fatal(err)
	}
	m.Handle(ProtoGossip, []tlsutil.Role{tlsutil.RoleServer}, false,
		func(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
			defer c.Close()
			for buf := make([]byte, 1024); ; {
				n, err := c.Read(buf)
				if err != nil {
					return
				}
				for frames := buf[:n]; len(frames) > 0 && !silent.Load(); {
					f, err := decodeFrame(frames)
					if err != nil {
						t.Error(err)
						return
					}
					if f.pool == poolEcho {
						c.Write(frames[:f.size])
					}
					frames = frames[f.size:]
				}
			}
		})
	background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
}

// TestLink_IdleEchoTimeout proves that the first packet of an idle link carries
// an echo request, and that the link detects a missing echo.
func TestLink_IdleEchoTimeout(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = nw.dial
		}).start(nw.listen("10.0.1.1:8300"))
		var silent atomic.Bool
		serveEchoes(t, a, nw.listen("10.0.2.1:8300"), &silent)
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1, lim := n1.tun.Transport(PoolWAN), n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(lim.quietAfter + 28500*time.Millisecond) // the last echo is more than echoInterval ago
		if got, dials := firstLink(t, n1), len(nw.dialed()); got.ConnectedSince.IsZero() || dials != 1 {
			t.Fatalf("idle link = %+v after %d dials, want connected after 1 dial", got, dials)
		}
		silent.Store(true)
		send(t, t1, "srv1.dc2", "y")
		time.Sleep(4 * MinProbeTimeout) // the replacement of the connection is silent too
		if got, dials := firstLink(t, n1), len(nw.dialed()); got.LastError != "" || dials != 2 {
			t.Errorf("link before echoTimeout = %+v after %d dials, want no error after 2 dials", got, dials)
		}
		time.Sleep(lim.echoTimeout)
		if got := firstLink(t, n1); !strings.Contains(got.LastError, "stopped answering") {
			t.Errorf("link after echoTimeout = %+v, want the error %q", got, "stopped answering")
		}
	})
}

// TestLink_IdleOnDeadPath proves that an idle link detects a dead path without
// a packet, by its next echo request.
func TestLink_IdleOnDeadPath(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		n1 := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) {
			c.DialTCP = nw.dial
		}).start(nw.listen("10.0.1.1:8300"))
		var silent atomic.Bool
		serveEchoes(t, a, nw.listen("10.0.2.1:8300"), &silent)
		n1.book.Store(bookOf("10.0.2.1:8300"))
		t1, lim := n1.tun.Transport(PoolWAN), n1.tun.limits
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(2*lim.quietAfter + lim.echoInterval)
		silent.Store(true)
		// The status reports a fault within ten seconds: four seconds after an
		// echo request without an echo.
		time.Sleep(6 * time.Second)
		if got := firstLink(t, n1); got.UnansweredSince.IsZero() {
			t.Errorf("link = %+v, want an echo request within 6 s", got)
		}
		time.Sleep(lim.idleEchoInterval + lim.echoTimeout)
		if got := firstLink(t, n1); !strings.Contains(got.LastError, "stopped answering") {
			t.Errorf("link = %+v, want the error %q", got, "stopped answering")
		}
	})
}

// writeTimes is a connection that records the times of its writes.
type writeTimes struct {
	net.Conn
	record func(time.Time)
}

func (c writeTimes) Write(b []byte) (int, error) {
	c.record(time.Now())
	return c.Conn.Write(b)
}

// TestLink_EchoTimes proves that links that were opened at different times send
// their echo requests together, at multiples of idleEchoInterval of the wall
// clock. It also proves that a server with many links sends fewer requests, and
// that both ends of a pair of datacenters send them at the same time.
func TestLink_EchoTimes(t *testing.T) {
	for _, test := range []struct {
		name           string
		echoesPerRound int
		interval       time.Duration // of each link
	}{{"few links", 24, 5 * time.Second}, {"many links", 1, 15 * time.Second}} {
		t.Run(test.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				nw := newMemNet()
				a := newAuthority(t)
				var mu sync.Mutex
				sent := map[string][]time.Time{} // by source and dialed address
				dcs := []string{"dc1", "dc2", "dc3", "dc4"}
				addr := func(dc string) string { return "10.0." + dc[2:] + ".1:8300" }
				var nodes []*node
				for _, dc := range dcs {
					n := newNode(t, a, "srv1", dc, func(c *DialerConfig) {
						c.DialTCP = func(ctx context.Context, to string) (net.Conn, error) {
							conn, err := nw.dial(ctx, to)
							return writeTimes{conn, func(at time.Time) {
								mu.Lock()
								defer mu.Unlock()
								sent[dc+" "+to] = append(sent[dc+" "+to], at)
							}}, err
						}
					}).start(nw.listen(addr(dc)), func(l *limits) { l.echoesPerRound = test.echoesPerRound })
					book := &AddressBook{Paths: map[string][]Path{}}
					for _, other := range dcs {
						if other != dc {
							book.Paths[other] = []Path{{Addr: addr(other)}}
						}
					}
					n.book.Store(book)
					nodes = append(nodes, n)
				}
				for _, n := range nodes {
					tr := n.tun.Transport(PoolWAN)
					for _, other := range dcs {
						if other != n.dc {
							send(t, tr, "srv1."+other, "x")
							time.Sleep(700 * time.Millisecond)
						}
					}
				}
				time.Sleep(borrowMax) // many links dial their own connections by then
				mu.Lock()
				clear(sent)
				mu.Unlock()
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if len(sent) != 12 {
					t.Errorf("links with echo requests = %d, want 12", len(sent))
				}
				for _, from := range dcs {
					for _, to := range dcs {
						times := sent[from+" "+addr(to)]
						if from != to && len(times) != int(time.Minute/test.interval) {
							t.Errorf("echo requests of %s to %s in a minute = %d, want one per %v", from, to, len(times),
								test.interval)
						}
						for i, at := range times {
							if late := at.Sub(at.Truncate(5 * time.Second)); late > 10*time.Millisecond {
								t.Errorf("echo request of %s to %s at %v, want a multiple of 5 s", from, to, at)
							}
							back := sent[to+" "+addr(from)]
							if i < len(back) && at.Sub(back[i]).Abs() > 10*time.Millisecond {
								t.Errorf("echo request of %s to %s at %v, in the other direction at %v", from, to, at, back[i])
							}
						}
					}
				}
			})
		})
	}
}

// connectedLinks returns the status of the connected links of n, sorted by
// datacenter.
func connectedLinks(n *node) (links []LinkStatus) {
	for _, l := range n.tun.Stats().Links {
		if !l.ConnectedSince.IsZero() {
			links = append(links, l)
		}
	}
	return links
}

// TestLink_MaxIdleLinks sets maxIdleLinks to 2 and checks which of five links
// stay open.
func TestLink_MaxIdleLinks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		use := func(c *DialerConfig) { c.DialTCP = nw.dial }
		n1 := newNode(t, a, "srv1", "dc1", use).start(nw.listen("10.0.1.1:8300"), func(l *limits) {
			l.maxIdleLinks = 2
		})
		all, book := []string{"dc2", "dc3", "dc4", "dc5", "dc6"}, &AddressBook{Paths: map[string][]Path{}}
		for i, dc := range all {
			n := newNode(t, a, "srv1", dc, use).start(nw.listen(fmt.Sprintf("10.0.%d.1:8300", 2+i)))
			book.Paths[dc] = []Path{{Addr: n.addr}}
		}
		n1.book.Store(book)
		t1, lim := n1.tun.Transport(PoolWAN), n1.tun.limits
		sendEach := func(pause time.Duration, dcs ...string) {
			for _, dc := range dcs {
				send(t, t1, "srv1."+dc, "x")
				time.Sleep(pause)
			}
		}
		checkConnected := func(when string, want ...string) {
			t.Helper()
			var got []string
			for _, l := range connectedLinks(n1) {
				got = append(got, l.DC)
			}
			if !slices.Equal(got, want) {
				t.Errorf("connected links %s = %v, want %v", when, got, want)
			}
		}
		sendEach(time.Second, "dc2", "dc3", "dc4", "dc5")
		checkConnected("after packets to four datacenters", "dc2", "dc3", "dc4", "dc5")
		sendEach(0, "dc2")
		time.Sleep(lim.idleAfter + 2*lim.echoInterval)
		checkConnected("after idleAfter, without the least recently used", "dc2", "dc5")
		for range 2 {
			sendEach(0, all...)
			time.Sleep(time.Second)
		}
		time.Sleep(lim.recentUse + lim.echoInterval)
		checkConnected("after packets to all at the same moment", all...)
		sendEach(time.Second, "dc6", "dc2", "dc3", "dc4", "dc5")
		time.Sleep(lim.recentUse)
		checkConnected("after recentUse, at most twice maxIdleLinks", "dc2", "dc3", "dc4", "dc5")
		if log := n1.log.String(); strings.Contains(log, "WARN") {
			t.Errorf("log = %q, want no warning", log)
		}
	})
}

// TestLink_LateEchoAlertsOtherLinks stalls a gateway. The link with traffic
// detects the fault, and an idle link over the same gateway then sends an echo
// request at once.
func TestLink_LateEchoAlertsOtherLinks(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		nw := newMemNet()
		a := newAuthority(t)
		use := func(c *DialerConfig) { c.DialTCP = nw.dial }
		n1 := newNode(t, a, "srv1", "dc1", use).start(nw.listen("10.0.1.1:8300"))
		servers := map[string]string{}
		for i, dc := range []string{"dc2", "dc3", "dc4"} {
			servers[dc] = newNode(t, a, "srv1", dc, use).start(nw.listen(fmt.Sprintf("10.0.%d.1:8300", 2+i))).addr
		}
		var gws []*fakeGateway
		for _, addr := range []string{"10.0.1.101:8443", "10.0.1.102:8443"} {
			g := newFakeGateway(t, nw.listen(addr), "dc1", nil)
			g.remoteServers, g.dial = servers, func(addr string) (net.Conn, error) { return nw.dial(t.Context(), addr) }
			gws = append(gws, g)
		}
		first := Path{Addr: gws[0].addr, Via: "local gateway", Local: true}
		second := Path{Addr: gws[1].addr, Via: "local gateway", Local: true}
		n1.book.Store(&AddressBook{Paths: map[string][]Path{
			"dc2": {first, second}, "dc3": {first, second}, "dc4": {second},
		}})
		t1, lim := n1.tun.Transport(PoolWAN), n1.tun.limits
		checkPaths := func(when string, want ...Path) {
			t.Helper()
			var got []Path
			for _, l := range connectedLinks(n1) {
				got = append(got, l.Path)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("paths of the connected links %s = %v, want %v", when, got, want)
			}
		}
		send(t, t1, "srv1.dc3", "x")
		send(t, t1, "srv1.dc4", "x")
		// At the end of this sleep, the next echo request of the idle links is
		// due after half of idleEchoInterval.
		time.Sleep(lim.quietAfter + 2*lim.idleEchoInterval + lim.idleEchoInterval/2)
		send(t, t1, "srv1.dc2", "x")
		time.Sleep(lim.echoInterval + time.Second)
		checkPaths("at first", first, first, second)
		gws[0].freeze(true)
		defer gws[0].freeze(false)
		time.Sleep(2 * lim.echoInterval) // long enough for an echo request of the link to dc2
		checkPaths("after the first gateway stalled", second, second, second)
		if got := gws[1].count(); got != 3 {
			t.Errorf("connections over the second gateway = %d, want 3", got)
		}
	})
}
