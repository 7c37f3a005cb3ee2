// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
)

// One peer has so many connections and no more, whoever has them meanwhile; others come in.
func TestMuxMaxPerPeer(t *testing.T) {
	a := newAuthority(t)
	var handed net.Listener
	ln := listen(t)
	b := newMuxBedOn(t, a, ln, func(c *MuxConfig) { c.MaxPerPeer = 2 }, func(m *Mux) {
		handed = m.Listener("handed/1", tlsutil.Roles, false)
	})
	open := func(id *tlsutil.Identity, alpn string) (c *tls.Conn, in bool) {
		c, err := tls.Dial("tcp", b.addr, id.ClientConfig("", alpn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if alpn == "handed/1" {
			s, err := handed.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			s.Write([]byte("hi"))
			go func() {
				io.Copy(io.Discard, s)
				s.Close()
			}()
		}
		c.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = io.ReadFull(c, make([]byte, 2))
		return c, err == nil
	}
	gw, other := a.identity(tlsutil.RoleGateway, "gw1", "dc2"), a.identity(tlsutil.RoleGateway, "gw2", "dc2")
	one, _ := open(gw, "all/1")
	two, in := open(gw, "handed/1")
	if !in {
		t.Fatal("the second does not come in")
	}
	if _, in := open(gw, "all/1"); in {
		t.Error("a third comes in")
	}
	b.refusedFor(t, tooMany)
	if _, in := open(other, "all/1"); !in {
		t.Error("another peer does not come in")
	}
	for _, c := range []*tls.Conn{one, two} {
		c.Close()
		eventually(t, "room for another", 5*time.Second, func() bool {
			again, in := open(gw, "all/1")
			if in {
				again.Close()
			}
			return in
		})
	}
	b.stop()
	if n := len(b.m.peers.open); n > 0 {
		t.Errorf("%d peers are counted in the end", n)
	}
}

// A stranger cannot make long lines.
func TestRefusalsAreShort(t *testing.T) {
	a := newAuthority(t)
	b := newMuxBed(t, a)
	for _, cfg := range []*tls.Config{
		{ServerName: strings.Repeat("x", 15<<10), NextProtos: []string{"all/1"}},
		{NextProtos: strings.Split(strings.Repeat(strings.Repeat("x", 250)+" ", 60)+"y", " ")},
	} {
		cfg.InsecureSkipVerify = true
		if c, err := tls.Dial("tcp", b.addr, cfg); err == nil {
			c.Close()
			t.Error("let in")
		}
	}
	eventually(t, "two lines", 5*time.Second, func() bool { return strings.Count(b.log.String(), "\n") == 2 })
	if log := b.log.String(); len(log) > 4<<10 || !strings.Contains(log, string(unknownSNI)) || !strings.Contains(log, string(unknownALPN)) {
		t.Errorf("%d bytes: %.1000s", len(log), log)
	}
}
