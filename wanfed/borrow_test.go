// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/wanfed/wanfed/internal/broadcast"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// mutable is a connection over which nothing is sent while mute is true, not even its
// end.
type mutable struct {
	net.Conn
	mute *atomic.Bool
}

func (c mutable) Write(b []byte) (int, error) {
	if c.mute.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c mutable) Close() error {
	if c.mute.Load() {
		return c.Conn.SetReadDeadline(time.Unix(1, 0)) // ends a Read
	}
	return c.Conn.Close()
}

// borrowers are two servers. Each also has a link to dc0. By their names, first dials first, and second waits.
type borrowers struct {
	t               *testing.T
	first, second   *node
	tr              map[*node]*Transport
	firstC, secondC string       // names
	dials           atomic.Int32 // by second, of first
	mute            atomic.Bool  // first sends nothing over its connections
	netAll          *memNet
}

func newBorrowers(t *testing.T, echoesPerRound int) *borrowers {
	t.Helper()
	nw, a := newMemNet(), newAuthority(t)
	b := &borrowers{t: t, netAll: nw, tr: map[*node]*Transport{}}
	first, second := "dc1", "dc2"
	if hashPair(first, second)%2 == 0 {
		first, second = second, first
	}
	addrs := map[string]string{"dc0": "10.0.0.1:8300", first: "10.0.1.1:8300", second: "10.0.2.1:8300"}
	start := func(dc string) *node {
		n := newNode(t, a, "srv1", dc, func(c *DialerConfig) {
			c.DialTCP = func(ctx context.Context, addr string) (net.Conn, error) {
				if dc == second && addr == addrs[first] {
					b.dials.Add(1)
				}
				c, err := nw.dial(ctx, addr)
				if dc == first && err == nil {
					c = mutable{c, &b.mute}
				}
				return c, err
			}
		}).start(nw.listen(addrs[dc]), func(l *limits) { l.echoesPerRound = echoesPerRound })
		book := &AddressBook{Paths: map[string][]Path{}}
		for other, addr := range addrs {
			if other != dc {
				book.Paths[other] = []Path{{Addr: addr}}
			}
		}
		n.book.Store(book)
		b.tr[n] = n.tun.Transport(PoolWAN)
		return n
	}
	other := start("dc0")
	b.first, b.second = start(first), start(second)
	b.firstC, b.secondC = "srv1."+first, "srv1."+second
	for _, n := range []*node{b.first, b.second} {
		send(t, b.tr[n], "srv1.dc0", "x")
		receive(t, b.tr[other])
	}
	return b
}

// checkArrives sends packets in both directions.
func (b *borrowers) checkArrives(when string) {
	b.t.Helper()
	send(b.t, b.tr[b.second], b.firstC, "to first, "+when)
	checkReceived(b.t, b.tr[b.first], "to first, "+when)
	send(b.t, b.tr[b.first], b.secondC, "to second, "+when)
	checkReceived(b.t, b.tr[b.second], "to second, "+when)
}

func (b *borrowers) checkDials(want int32, when string) {
	b.t.Helper()
	if got := b.dials.Load(); got != want {
		b.t.Errorf("dials of the borrower %s = %d, want %d", when, got, want)
	}
}

// A link of a large federation sends over a connection that the other datacenter has
// dialed. It dials its own within borrowMax, and no packet is lost. Both ends count as
// received from.
func TestLink_Borrow(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBorrowers(t, 1)
		send(t, b.tr[b.first], b.secondC, "x")
		receive(t, b.tr[b.second])
		b.checkArrives("at the start")
		b.checkDials(0, "at the start")
		for range int(borrowMax/time.Second) + 10 {
			b.checkArrives("later")
			time.Sleep(time.Second)
		}
		b.checkDials(1, "after borrowMax")
		for _, n := range []*node{b.first, b.second} {
			for _, dc := range []string{b.first.dc, b.second.dc} {
				if at := n.tun.LastReceived(dc); dc != n.dc && time.Since(at) > 3*time.Second {
					t.Errorf("LastReceived(%s) of %s = %v ago, want at most 3 s", dc, n.dc, time.Since(at))
				}
			}
			if got := n.log.String(); strings.Contains(got, "WARN") {
				t.Errorf("log of %s = %q, want no warning", n.dc, got)
			}
		}
	})
}

// While a link borrows a connection and sends nothing, the other end counts the
// echoes as a sign of life. Otherwise echoes of an own connection do not count.
func TestLink_BorrowIdle(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBorrowers(t, 1)
		send(t, b.tr[b.first], b.secondC, "x")
		receive(t, b.tr[b.second])
		time.Sleep(time.Minute)
		if at := b.first.tun.LastReceived(b.second.dc); !at.IsZero() {
			t.Errorf("LastReceived() before any packet = %v, want zero", at)
		}
		send(t, b.tr[b.second], b.firstC, "x")
		receive(t, b.tr[b.first])
		time.Sleep(time.Minute)
		if at := b.first.tun.LastReceived(b.second.dc); time.Since(at) > 2*b.first.tun.EchoInterval() {
			t.Errorf("LastReceived() a minute after a packet = %v ago, want at most two intervals of echoes", time.Since(at))
		}
	})
}

// One of two ends waits for the other to dial, for at most borrowWait.
func TestLink_BorrowWait(t *testing.T) {
	t.Run("the other end dials", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			b := newBorrowers(t, 1)
			send(t, b.tr[b.second], b.firstC, "early")
			time.Sleep(borrowWait / 2)
			b.checkDials(0, "while it waits")
			start := time.Now()
			send(t, b.tr[b.first], b.secondC, "x")
			checkReceived(t, b.tr[b.first], "early")
			if took := time.Since(start); took > time.Second {
				t.Errorf("the packet arrived %v after the other end sent, want at most 1 s", took)
			}
			b.checkDials(0, "after the wait")
		})
	})
	t.Run("the other end does not dial", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			b := newBorrowers(t, 1)
			start := time.Now()
			send(t, b.tr[b.second], b.firstC, "early")
			time.Sleep(borrowWait / 2)
			checkReceived(t, b.tr[b.first], "early")
			if took := time.Since(start); took < borrowWait || took > borrowWait+time.Second {
				t.Errorf("the packet arrived after %v, want %v", took, borrowWait)
			}
			b.checkDials(1, "after the wait")
		})
	})
}

// A link whose dials fail borrows when the other end has dialed.
func TestLink_BorrowAfterFailure(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBorrowers(t, 1)
		heal := b.netAll.cut(b.first.addr)
		send(t, b.tr[b.second], b.firstC, "early")
		time.Sleep(borrowWait + 10*time.Second) // the pause between two dials is 5 s by then
		if b.dials.Load() == 0 {
			t.Error("dials of the borrower after the wait = 0, want some")
		}
		start := time.Now()
		send(t, b.tr[b.first], b.secondC, "x")
		receive(t, b.tr[b.second])
		checkReceived(t, b.tr[b.first], "early")
		if took := time.Since(start); took > time.Second {
			t.Errorf("the packet arrived %v after the other end sent, want at most 1 s", took)
		}
		heal()
		before := b.dials.Load()
		time.Sleep(borrowMax)
		b.checkArrives("at the end")
		b.checkDials(before+1, "at the end")
	})
}

// A borrower whose connection ends, or is silent, dials. Without many links it
// does not borrow.
func TestLink_BorrowEnds(t *testing.T) {
	for name, end := range map[string]func(*borrowers){
		"the connection ends": func(b *borrowers) { b.netAll.cut(b.second.addr)() },
		"the connection is silent": func(b *borrowers) {
			b.mute.Store(true)
			time.Sleep(b.second.tun.EchoInterval() + b.second.tun.limits.echoTimeout + 5*time.Second)
			b.mute.Store(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				b := newBorrowers(t, 1)
				send(t, b.tr[b.first], b.secondC, "x")
				receive(t, b.tr[b.second])
				b.checkArrives("at the start")
				b.checkDials(0, "at the start")
				end(b)
				time.Sleep(time.Second)
				b.checkArrives("at the end")
				b.checkDials(1, "at the end")
			})
		})
	}
	t.Run("few links", func(t *testing.T) {
		testutil.Bubble(t, func(t *testing.T) {
			b := newBorrowers(t, 2) // second has links to dc0 and to first
			send(t, b.tr[b.first], b.secondC, "x")
			receive(t, b.tr[b.second])
			b.checkArrives("at the start")
			b.checkDials(1, "at the start")
		})
	})
}

// Disconnect ends a borrowed connection: it leads to the replaced datacenter.
func TestDisconnect_Borrowed(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		b := newBorrowers(t, 1)
		send(t, b.tr[b.first], b.secondC, "x")
		receive(t, b.tr[b.second])
		b.checkArrives("at the start")
		borrowed := b.second.tun.newestAccepted(b.first.tun.self.DC)
		b.second.tun.Disconnect(b.first.tun.self.DC)
		select {
		case <-borrowed.ended:
		case <-time.After(time.Second):
			t.Error("the borrowed connection did not end")
		}
		time.Sleep(time.Second)
		b.checkArrives("after Disconnect")
	})
}

// A server that was dialed may send packets over ProtoDuplex only, and no packets of
// the LAN pool.
func TestLink_PacketsFromServer(t *testing.T) {
	for name, tt := range map[string]struct {
		alpn  string
		frame []byte
		want  string // packet, or error of the link
	}{
		"duplex":  {ProtoDuplex, appendFrame(nil, PoolWAN, "srv1", []byte("x")), "x"},
		"LAN":     {ProtoDuplex, appendFrame(nil, PoolLAN, "srv1", []byte("x")), "LAN gossip from another datacenter"},
		"relayed": {ProtoDuplex, appendFrame(nil, poolRelayed, "srv1", relayedPacket("srv1.dc3", []byte("x"))), "unknown pool: 4"},
		"one way": {ProtoGossip, appendFrame(nil, PoolWAN, "srv1", []byte("x")), "not an echo: unknown pool: 1"},
		"echo":    {ProtoDuplex, appendEcho(nil, 1<<62), "echo that was not requested"},
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				nw, a := newMemNet(), newAuthority(t)
				n := newNode(t, a, "srv1", "dc1", func(c *DialerConfig) { c.DialTCP = nw.dial }).start(nw.listen("10.0.1.1:8300"))
				m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc2")})
				if err != nil {
					t.Fatal(err)
				}
				m.Handle(tt.alpn, []tlsutil.Role{tlsutil.RoleServer}, false, func(_ context.Context, c *tls.Conn, _ tlsutil.Peer) {
					defer c.Close()
					_, _ = c.Write(tt.frame)
					_, _ = c.Read(make([]byte, 1024))
					_, _ = c.Read(make([]byte, 1024))
				})
				ln := nw.listen("10.0.2.1:8300")
				background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
				n.book.Store(bookOf("10.0.2.1:8300"))
				tr := n.tun.Transport(PoolWAN)
				send(t, tr, "srv1.dc2", "y")
				if tt.want == "x" {
					checkReceived(t, tr, "x")
					return
				}
				time.Sleep(time.Second)
				if got := firstLink(t, n).LastError; !strings.Contains(got, tt.want) || len(tr.PacketCh()) > 0 {
					t.Errorf("error of the link = %q with %d packets, want %q without one", got, len(tr.PacketCh()), tt.want)
				}
			})
		})
	}
}

// Each needless dial doubles the pause before the next one. One that was needed ends
// the pause.
func TestNeedlessDials(t *testing.T) {
	now := time.Now()
	var n needlessDials
	check := func(least time.Duration) {
		t.Helper()
		if got := n.pause(now); got < least || got > least*5/4 {
			t.Errorf("pause() = %v, want %v to %v", got, least, least*5/4)
		}
	}
	if got := n.pause(now); got > 0 {
		t.Errorf("pause() at the start = %v, want none", got)
	}
	for least := minNeedlessPause; least < maxNeedlessPause; least *= 2 {
		n.record(true, now)
		check(least)
	}
	n.record(true, now)
	check(maxNeedlessPause)
	n.record(false, now)
	check(0)
	n.record(true, now)
	check(minNeedlessPause)
}

// TestLateEchoes checks that the links over a gateway are notified of a late echo at
// most once per interval.
func TestLateEchoes(t *testing.T) {
	const interval = 10 * time.Second
	var l lateEchoes
	now := time.Now()
	notified := func(addr string, after time.Duration) bool {
		links := l.links.Wait(addr)
		l.notify(addr, interval, now.Add(after))
		return broadcast.IsClosed(links)
	}
	for _, step := range []struct {
		addr  string
		after time.Duration
		want  bool
	}{
		{"192.0.2.1:1", 0, true}, {"192.0.2.1:1", interval - 1, false}, {"192.0.2.2:1", interval - 1, true},
		{"192.0.2.1:1", interval, true}, {"192.0.2.1:1", interval + 1, false},
	} {
		if got := notified(step.addr, step.after); got != step.want {
			t.Errorf("links over %s notified after %v: %v, want %v", step.addr, step.after, got, step.want)
		}
	}
}
