// SPDX-License-Identifier: MPL-2.0

package wanfed

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// muxBed is a mux of srv1 in dc1 with two protocols: one for servers and
// gateways, one for servers of dc1.
type muxFixture struct {
	m    *Mux
	addr string
	log  *logBuffer
	got  chan tlsutil.Peer
	stop func()
}

func newMuxFixture(t *testing.T, a *authority, change ...func(*MuxConfig)) *muxFixture {
	t.Helper()
	return newMuxFixtureOn(t, a, listen(t), func(c *MuxConfig) {
		for _, f := range change {
			f(c)
		}
	})
}

func newMuxFixtureOn(t *testing.T, a *authority, ln net.Listener, change func(*MuxConfig),
	tune ...func(*Mux)) *muxFixture {
	t.Helper()
	b := &muxFixture{log: &logBuffer{}, got: make(chan tlsutil.Peer, 16)}
	cfg := MuxConfig{Identity: a.server("srv1", "dc1"), Logger: b.log.logger()}
	change(&cfg)
	var err error
	if b.m, err = NewMux(cfg); err != nil {
		t.Fatal(err)
	}
	h := func(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
		defer c.Close()
		b.got <- p
		c.Write([]byte("hi"))
		io.Copy(io.Discard, c)
	}
	for _, f := range tune {
		f(b.m)
	}
	b.m.Handle("all/1", []tlsutil.Role{tlsutil.RoleServer, tlsutil.RoleGateway}, false, h)
	b.m.Handle("own/1", []tlsutil.Role{tlsutil.RoleServer}, true, h)
	b.addr = ln.Addr().String()
	b.stop = background(t, func(ctx context.Context) error { return b.m.Run(ctx, ln) })
	return b
}

// awaitRefusal waits until the Mux has counted one refusal, and checks its
// reason.
func (b *muxFixture) awaitRefusal(t *testing.T, why refusal) {
	t.Helper()
	testutil.Eventually(t, 5*time.Second, func() bool { return len(b.m.Stats().Refused) > 0 }, "%s",
		"refusal "+string(why))
	if got := b.m.Stats().Refused; got[string(why)] != 1 || len(got) != 1 {
		t.Errorf("refused: %v, want one %s", got, why)
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return strings.Contains(b.log.String(), "\n") || why == hungUp },
		"a log line")
	if log := b.log.String(); why != hungUp &&
		(strings.Count(log, "\n") != 1 || !strings.Contains(log, refusalText[why])) {
		t.Errorf("log:\n%s", log)
	} else {
		t.Log(strings.TrimSpace(log))
	}
}

func TestMux_Refusals(t *testing.T) {
	a, expired := expiredCert(t)
	foreign := newAuthority(t)
	sni := tlsutil.ServerName("", "dc1", tlsutil.DefaultDomain)
	shake := func(cfg *tls.Config) func(*testing.T, net.Conn) {
		return func(t *testing.T, c net.Conn) {
			tc := tls.Client(c, cfg)
			if tc.Handshake() == nil {
				tc.Read(make([]byte, 1))
			}
		}
	}
	with := func(cfg *tls.Config, change func(*tls.Config)) *tls.Config {
		change(cfg)
		return cfg
	}
	srv2 := a.server("srv2", "dc1")
	for _, tt := range []struct {
		why refusal
		run func(*testing.T, net.Conn)
	}{
		{plainText, func(t *testing.T, c net.Conn) { c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); io.Copy(io.Discard, c) }},
		{noALPN, shake(srv2.ClientConfig(sni))},
		{unknownALPN, shake(srv2.ClientConfig(sni, "smtp", "imap"))},
		{unknownSNI, shake(srv2.ClientConfig("srv9.server.dc1.wanfed", "all/1"))},
		{oldTLS, shake(with(srv2.ClientConfig(sni, "all/1"),
			func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }))},
		{certMissing, shake(with(srv2.ClientConfig(sni, "all/1"), func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &tls.Certificate{},
					nil
			}
		}))},
		{certForeign, shake(with(foreign.server("srv2", "dc1").ClientConfig(sni, "all/1"), func(c *tls.Config) {
			c.InsecureSkipVerify, c.VerifyConnection = true, nil // only the server verifies
		}))},
		{certInvalid, shake(with(srv2.ClientConfig(sni, "all/1"), present(expired)))},
		{peerRefusedUs, shake(foreign.server("srv2", "dc1").ClientConfig(sni, "all/1"))},
		{wrongRole, shake(a.identity(tlsutil.RoleClient, "joe", "dc1").ClientConfig(sni, "all/1"))},
		{wrongDC, shake(a.server("srv2", "dc2").ClientConfig(sni, "own/1"))},
		{tooSlow, func(t *testing.T, c net.Conn) { c.Write([]byte{22, 3, 1}); io.Copy(io.Discard, c) }},
		{hungUp, func(t *testing.T, c net.Conn) {}},
	} {
		t.Run(string(tt.why), func(t *testing.T) {
			b := newMuxFixture(t, a, func(c *MuxConfig) {
				if tt.why == tooSlow {
					c.handshakeTimeout = 50 * time.Millisecond
				}
			})
			c, err := net.Dial("tcp", b.addr)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(5 * time.Second))
			tt.run(t, c)
			c.Close()
			b.awaitRefusal(t, tt.why)
			if len(b.got) != 0 {
				t.Error("a handler ran")
			}
		})
	}
}

// expiredCert returns a CA of two years ago and a server certificate that
// expired a year ago.
func expiredCert(t *testing.T) (*authority, tls.Certificate) {
	t.Helper()
	old := time.Now().AddDate(-2, 0, 0)
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{Now: old})
	if err != nil {
		t.Fatal(err)
	}
	p, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc1", CA: ca, Now: old})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, ca}, cert
}

// present makes a client use cert and accept any server certificate.
func present(cert tls.Certificate) func(*tls.Config) {
	return func(c *tls.Config) {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
		c.InsecureSkipVerify, c.VerifyConnection = true, nil
	}
}

func TestMux_ChoosesHandler(t *testing.T) {
	a := newAuthority(t)
	b := newMuxFixture(t, a)
	for _, tt := range []struct {
		id   *tlsutil.Identity
		alpn []string
		want string
	}{
		{a.server("srv2", "dc2"), []string{"all/1"}, "all/1"},
		{a.identity(tlsutil.RoleGateway, "gw1", "dc1"), []string{"all/1"}, "all/1"},
		{a.server("srv2", "dc1"), []string{"own/1"}, "own/1"},
		{a.server("srv2", "dc1"), []string{"own/1", "nope/1", "all/1"}, "all/1"}, // the order of the listener decides
	} {
		c, err := tls.Dial("tcp", b.addr, tt.id.ClientConfig("srv1.server.dc1.wanfed", tt.alpn...))
		if err != nil {
			t.Fatal(err)
		}
		if p := <-b.got; p != tt.id.Peer() {
			t.Errorf("peer %v, want %v", p, tt.id.Peer())
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != tt.want {
			t.Errorf("protocol %q, want %q", got, tt.want)
		}
		c.Close()
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return b.m.Stats().Protocols[0].Open == 0 }, "connections closed")
	s := b.m.Stats()
	if s.Accepted != 4 || s.Protocols[0].ALPN != "all/1" || s.Protocols[0].Total != 3 || s.Protocols[1].Total != 1 ||
		len(s.Refused) != 0 {
		t.Errorf("Stats() = %+v, want 4 accepted, 3 and 1 by protocol, none refused", s)
	}
}

func TestMux_StopClosesConnections(t *testing.T) {
	a := newAuthority(t)
	b := newMuxFixture(t, a)
	c, err := tls.Dial("tcp", b.addr, a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	slow, err := net.Dial("tcp", b.addr) // in the middle of a handshake
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	<-b.got
	testutil.Eventually(t, 5*time.Second, func() bool { return b.m.Stats().Accepted == 2 }, "both accepted")
	start := time.Now()
	b.stop()
	if took := time.Since(start); took >= b.m.cfg.handshakeTimeout {
		t.Errorf("Run returned after %v, want less than HandshakeTimeout", took)
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.Copy(io.Discard, c); isTimeout(err) {
		t.Error("the connection is still open")
	}
}

func TestRefusals_LogRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &logBuffer{}
		r := newRefusals(log.logger())
		for range 1000 {
			r.record(plainText, nameAddr("192.0.2.1:1"), nil)
		}
		r.record(noALPN, nameAddr("192.0.2.1:1"), nil)
		time.Sleep(ratelog.DefaultInterval)
		r.record(plainText, nameAddr("192.0.2.1:1"), nil)
		if got := log.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "suppressed=999") {
			t.Errorf("log:\n%s", got)
		}
		if got := r.counts(); got[string(plainText)] != 1001 || got[string(noALPN)] != 1 {
			t.Errorf("counts() = %v, want 1001 plain_text and 1 no_alpn", got)
		}
	})
}

func TestMux_Misuse(t *testing.T) {
	if _, err := NewMux(MuxConfig{}); err == nil || !strings.Contains(err.Error(), "Identity") {
		t.Errorf("NewMux() without Identity = %v, want an error that names it", err)
	}
	m, err := NewMux(MuxConfig{Identity: newAuthority(t).server("srv1", "dc1")})
	if err != nil {
		t.Fatal(err)
	}
	h := func(context.Context, *tls.Conn, tlsutil.Peer) {}
	m.Handle("a/1", tlsutil.Roles, false, h)
	for name, f := range map[string]func(){
		"twice":    func() { m.Handle("a/1", tlsutil.Roles, false, h) },
		"no id":    func() { m.Handle("", tlsutil.Roles, false, h) },
		"no roles": func() { m.Handle("b/1", nil, false, h) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestMux_Listener(t *testing.T) {
	a := newAuthority(t)
	m, err := NewMux(MuxConfig{Identity: a.server("srv1", "dc1")})
	if err != nil {
		t.Fatal(err)
	}
	servers := []tlsutil.Role{tlsutil.RoleServer}
	l, closed := m.Listener(ProtoRaft, servers, true), m.Listener(ProtoGRPC, servers, false)
	if l.Addr().String() != ProtoRaft {
		t.Errorf("Addr() before Run = %v, want the protocol id", l.Addr())
	}
	ln := listen(t)
	stop := background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	dial := func(alpn string) *tls.Conn {
		c, err := tls.Dial("tcp", ln.Addr().String(), a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", alpn))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(5 * time.Second))
		return c
	}
	c := dial(ProtoRaft)
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if cs := s.(*tls.Conn).ConnectionState(); !cs.HandshakeComplete || cs.NegotiatedProtocol != ProtoRaft {
		t.Errorf("accepted in state %+v, want a complete handshake with ProtoRaft", cs)
	}
	if l.Addr().String() != ln.Addr().String() {
		t.Errorf("Addr() = %v, want the address of the port", l.Addr())
	}
	closed.Close()
	if _, err := closed.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want net.ErrClosed", err)
	}
	if _, err := dial(ProtoGRPC).Read(make([]byte, 1)); err == nil {
		t.Error("the protocol of a closed listener is still served")
	}
	waiting := dial(ProtoRaft) // no Accept takes it
	testutil.Eventually(t, 5*time.Second, func() bool { return m.Stats().Protocols[0].Open == 1 }, "handshake")
	stop()
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Run = %v, want net.ErrClosed", err)
	}
	if _, err := waiting.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("Read() of a connection that was not accepted = %v, want closed", err)
	}
	// An accepted connection belongs to its owner: the end of Run does not
	// close it.
	go s.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if got := m.Stats().Refused[string(notServed)]; got != 1 {
		t.Errorf("not_served = %d, want 1", got)
	}
}

// shortListener fails twice like a process without file descriptors. Then it
// fails with last, or works.
type shortListener struct {
	net.Listener
	n    atomic.Int32
	last error
}

func (l *shortListener) Accept() (net.Conn, error) {
	switch {
	case l.n.Add(1) <= 2:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	case l.last != nil:
		return nil, l.last
	}
	return l.Listener.Accept()
}

func (l *shortListener) Close() error {
	if l.Listener == nil {
		return nil
	}
	return l.Listener.Close()
}

func (l *shortListener) Addr() net.Addr {
	if l.Listener == nil {
		return nameAddr("test")
	}
	return l.Listener.Addr()
}

func TestMux_AcceptBackoff(t *testing.T) {
	a := newAuthority(t)
	id := a.server("srv1", "dc1")
	synctest.Test(t, func(t *testing.T) {
		m, err := NewMux(MuxConfig{Identity: id})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		broken := errors.New("broken")
		if err := m.Run(t.Context(), &shortListener{last: broken}); !errors.Is(err, broken) {
			t.Errorf("Run() = %v, want the listener's error", err)
		}
		if took := time.Since(start); took < 15*time.Millisecond || took > 15*time.Millisecond*5/4 {
			t.Errorf("backed off for %v, want 5 ms and 10 ms, each with up to a quarter of jitter", took)
		}
		if got := m.Stats().Refused[string(acceptError)]; got != 2 {
			t.Errorf("accept_error = %d, want 2", got)
		}
	})
}

func TestMux_FileDescriptorShortage(t *testing.T) {
	a := newAuthority(t)
	b := newMuxFixtureOn(t, a, &shortListener{Listener: listen(t)}, func(*MuxConfig) {})
	c, err := tls.Dial("tcp", b.addr, a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", "all/1"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-b.got
	if got := b.m.Stats().Refused[string(acceptError)]; got != 2 {
		t.Errorf("accept_error = %d, want 2", got)
	}
}
