// SPDX-License-Identifier: MPL-2.0

package gateway

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"
)

func testSetTableKeepsConnections(t *testing.T, e engineKind) {
	oldAddr, newAddr := tlsUpstream(t, named("old")), tlsUpstream(t, named("new"))
	p := start(t, Config{portable: e == portable}, Route{Match: "swap.example", To: []string{oldAddr}})
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 8 { // each client uses one connection while tables are replaced
		c, name := p.connect(t, "swap.example", 3)
		if name != "old" {
			t.Fatalf("upstream = %s, want old", name)
		}
		wg.Go(func() {
			b := make([]byte, 64)
			for i := 0; ; i++ {
				c.Write(b)
				if _, err := io.ReadFull(c, b); err != nil {
					t.Errorf("read of echo %d = %v, want nil", i, err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for i := range 50 {
		to, want := newAddr, "new"
		if i%2 == 1 {
			to, want = oldAddr, "old"
		}
		p.listener.SetTable(mustTable(t, Route{Match: "swap.example", To: []string{to}}))
		c, got := p.connect(t, "swap.example", 3)
		if c.Close(); got != want {
			t.Fatalf("upstream of table %d = %s, want %s", i, got, want)
		}
	}
	close(stop)
	wg.Wait()
}

func testLimit(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, MaxConns: 2}, Route{Match: "limit.example", To: []string{addr}})
	a, _ := p.connect(t, "limit.example", 4)
	b, _ := p.connect(t, "limit.example", 4)
	c := p.raw(t)
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("read of the connection above the limit = nil, want an error")
	}
	for _, c := range []*tls.Conn{a, b} {
		c.Write([]byte("x"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("read of an open connection = %v, want nil", err)
		}
	}
	p.refused(t, map[Reason]uint64{ReasonLimit: 1})
	a.CloseWrite()
	io.Copy(io.Discard, a) // until both directions have ended
	a.Close()
	p.stop()
}

func testStopDrains(t *testing.T, e engineKind) {
	addr := tlsUpstream(t, named("srv1"))
	p := start(t, Config{portable: e == portable, Drain: time.Minute},
		Route{Match: "drain.example", To: []string{addr}})
	c, _ := p.connect(t, "drain.example", 4)
	stopped := make(chan struct{})
	go func() { p.stop(); close(stopped) }()
	p.waitClosed()
	c.Write([]byte("late"))
	c.CloseWrite()
	if rest, err := io.ReadAll(c); err != nil || string(rest) != "latebye" {
		t.Errorf("ReadAll() while draining = %q, %v; want latebye", rest, err)
	}
	c.Close()
	<-stopped // long before the drain time is over
}

func TestRun_ListenersHaveOwnTables(t *testing.T) {
	srv := tlsUpstream(t, named("srv1"))
	p, err := New(Config{Logger: slog.New(slog.DiscardHandler), Drain: -1})
	if err != nil {
		t.Fatal(err)
	}
	lnLAN, lnWAN := listen(t), listen(t)
	lan, wan := NewListener("lan", lnLAN), NewListener("wan", lnWAN)
	lan.SetTable(mustTable(t, Route{Match: "far.example", To: []string{srv}}))
	ctx, cancel := context.WithCancel(t.Context())
	errc := make(chan error, 1)
	go func() { errc <- p.Run(ctx, lan, wan) }()
	(&running{addr: lnLAN.Addr().String()}).connect(t, "far.example", 4)
	if _, err := tls.Dial("tcp", lnWAN.Addr().String(), &tls.Config{ServerName: "far.example"}); err == nil {
		t.Error("Dial() of a LAN route at the WAN listener = nil, want an error")
	}
	cancel()
	if err := <-errc; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	if l, w := lan.Stats(), wan.Stats(); l.Accepted != 1 || w.Accepted != 1 || w.Refused[ReasonUnknownSNI] != 1 {
		t.Errorf("Stats() = %+v (LAN) and %+v (WAN), want 1 accepted each, 1 unknown_sni on WAN", l, w)
	}
}
