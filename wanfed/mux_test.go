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
	"time"

	"github.com/wanfed/wanfed/internal/ratelog"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
)

// muxFixture is a running Mux of srv1 in dc1 with two protocols: all/1 for
// servers and gateways, and own/1 for servers of dc1. Its handlers write "hi".
type muxFixture struct {
	m     *Mux
	addr  string
	log   *logBuffer
	peers chan tlsutil.Peer // of each call of a handler
	stop  func()
}

func newMuxFixture(t *testing.T, a *authority, change ...func(*MuxConfig)) *muxFixture {
	t.Helper()
	return newMuxFixtureOn(t, a, listen(t), func(c *MuxConfig) {
		for _, f := range change {
			f(c)
		}
	})
}

// newMuxFixtureOn starts a muxFixture on ln. It calls change before NewMux, and
// tune before it registers the protocols of the fixture.
func newMuxFixtureOn(t *testing.T, a *authority, ln net.Listener, change func(*MuxConfig),
	tune ...func(*Mux)) *muxFixture {
	t.Helper()
	b := &muxFixture{log: &logBuffer{}, peers: make(chan tlsutil.Peer, 16)}
	cfg := MuxConfig{Identity: a.server("srv1", "dc1"), Logger: b.log.logger()}
	change(&cfg)
	var err error
	if b.m, err = NewMux(cfg); err != nil {
		t.Fatal(err)
	}
	h := func(ctx context.Context, c *tls.Conn, p tlsutil.Peer) {
		defer c.Close()
		b.peers <- p
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

// awaitRefusal waits until the Mux has counted one refusal. It checks the
// reason and the log. The log has no line about a connection that the peer
// closed.
func (b *muxFixture) awaitRefusal(t *testing.T, want *refusal) {
	t.Helper()
	testutil.Eventually(t, 5*time.Second, func() bool { return len(b.m.Stats().Refused) > 0 }, "refusal %s", want)
	if got := b.m.Stats().Refused; got[want.id] != 1 || len(got) != 1 {
		t.Errorf("Stats().Refused = %v, want one %s", got, want)
	}
	if want == refusedClosed {
		return
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return strings.Contains(b.log.String(), "\n") }, "a log line")
	if log := b.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, want.text) {
		t.Errorf("log = %s\nwant one line with %q", log, want.text)
	}
}

// shake returns a function that does a TLS handshake and reads one byte. With
// TLS 1.3 a client receives the refusal of its certificate with the first Read.
func shake(cfg *tls.Config) func(net.Conn) {
	return func(c net.Conn) {
		tc := tls.Client(c, cfg)
		if tc.Handshake() == nil {
			tc.Read(make([]byte, 1))
		}
	}
}

// Each way to fail before the handler runs has its own reason, and one log
// line.
func TestMux_Refusals(t *testing.T) {
	a, expired := expiredCert(t)
	otherCA := newAuthority(t)
	sni := tlsutil.ServerName("", "dc1", tlsutil.DefaultDomain)
	with := func(cfg *tls.Config, change func(*tls.Config)) *tls.Config {
		change(cfg)
		return cfg
	}
	srv2 := a.server("srv2", "dc1")
	for _, tt := range []struct {
		want   *refusal
		client func(net.Conn)
	}{
		{refusedPlainText, func(c net.Conn) { c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); io.Copy(io.Discard, c) }},
		{refusedNoALPN, shake(srv2.ClientConfig(sni))},
		{refusedUnknownALPN, shake(srv2.ClientConfig(sni, "smtp", "imap"))},
		{refusedUnknownSNI, shake(srv2.ClientConfig("srv9.server.dc1.wanfed", "all/1"))},
		{refusedOldTLS, shake(with(srv2.ClientConfig(sni, "all/1"),
			func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }))},
		{refusedCertMissing, shake(with(srv2.ClientConfig(sni, "all/1"), func(c *tls.Config) {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &tls.Certificate{}, nil
			}
		}))},
		{refusedCertOtherCA, shake(with(otherCA.server("srv2", "dc1").ClientConfig(sni, "all/1"), func(c *tls.Config) {
			c.InsecureSkipVerify, c.VerifyConnection = true, nil // only the server verifies
		}))},
		{refusedCertInvalid, shake(with(srv2.ClientConfig(sni, "all/1"), present(expired)))},
		{refusedByPeer, shake(otherCA.server("srv2", "dc1").ClientConfig(sni, "all/1"))},
		{refusedRole, shake(a.identity(tlsutil.RoleClient, "joe", "dc1").ClientConfig(sni, "all/1"))},
		{refusedDC, shake(a.server("srv2", "dc2").ClientConfig(sni, "own/1"))},
		{refusedTimeout, func(c net.Conn) { c.Write([]byte{22, 3, 1}); io.Copy(io.Discard, c) }},
		{refusedClosed, func(net.Conn) {}},
	} {
		t.Run(tt.want.id, func(t *testing.T) {
			b := newMuxFixture(t, a, func(c *MuxConfig) {
				if tt.want == refusedTimeout {
					c.handshakeTimeout = 50 * time.Millisecond
				}
			})
			c, err := net.Dial("tcp", b.addr)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(5 * time.Second))
			tt.client(c)
			c.Close()
			b.awaitRefusal(t, tt.want)
			if n := len(b.peers); n != 0 {
				t.Errorf("%d handlers ran, want 0", n)
			}
		})
	}
}

// expiredCert returns a CA that was created two years ago, and a server
// certificate of that CA that has expired.
func expiredCert(t *testing.T) (*authority, tls.Certificate) {
	t.Helper()
	old := time.Now().AddDate(-2, 0, 0)
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{Now: old})
	if err != nil {
		t.Fatal(err)
	}
	p, err := tlsutil.CreateCert(tlsutil.CertRequest{
		Role: tlsutil.RoleServer, Node: "srv2", DC: "dc1", CA: ca, Now: old,
	})
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
		if p := <-b.peers; p != tt.id.Peer() {
			t.Errorf("handler called with peer %v, want %v", p, tt.id.Peer())
		}
		if got := c.ConnectionState().NegotiatedProtocol; got != tt.want {
			t.Errorf("NegotiatedProtocol = %q, want %q", got, tt.want)
		}
		c.Close()
	}
	testutil.Eventually(t, 5*time.Second, func() bool { return b.m.Stats().Protocols[0].Open == 0 },
		"connections closed")
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
	<-b.peers
	testutil.Eventually(t, 5*time.Second, func() bool { return b.m.Stats().Accepted == 2 }, "both accepted")
	start := time.Now()
	b.stop()
	if took := time.Since(start); took >= b.m.cfg.handshakeTimeout {
		t.Errorf("Run returned after %v, want less than %v", took, b.m.cfg.handshakeTimeout)
	}
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if !isClosedByPeer(c) {
		t.Error("the connection is open after Run, want closed")
	}
}

func TestRefusals_LogRate(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		log := &logBuffer{}
		r := newRefusals(log.logger())
		for range 1000 {
			r.record(refusedPlainText, nameAddr("192.0.2.1:1"), nil)
		}
		r.record(refusedNoALPN, nameAddr("192.0.2.1:1"), nil)
		time.Sleep(ratelog.Interval)
		r.record(refusedPlainText, nameAddr("192.0.2.1:1"), nil)
		if got := log.String(); strings.Count(got, "\n") != 3 || !strings.Contains(got, "suppressed=999") {
			t.Errorf("log = %s\nwant 3 lines, one with suppressed=999", got)
		}
		if got := r.counts(); got[refusedPlainText.id] != 1001 || got[refusedNoALPN.id] != 1 {
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
					t.Errorf("Handle() %s returns, want a panic", name)
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
		t.Errorf("Addr() before Run = %v, want %v", l.Addr(), ProtoRaft)
	}
	ln := listen(t)
	stop := background(t, func(ctx context.Context) error { return m.Run(ctx, ln) })
	dial := func(alpn string) *tls.Conn {
		c, err := tls.Dial("tcp", ln.Addr().String(),
			a.server("srv2", "dc1").ClientConfig("srv1.server.dc1.wanfed", alpn))
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
		t.Errorf("Addr() = %v, want %v", l.Addr(), ln.Addr())
	}
	closed.Close()
	if _, err := closed.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept() after Close = %v, want net.ErrClosed", err)
	}
	if _, err := dial(ProtoGRPC).Read(make([]byte, 1)); err == nil {
		t.Error("Read() of a protocol whose listener is closed succeeds, want an error")
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
	// The end of Run does not close a connection that Accept returned.
	go s.Write([]byte("x"))
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("ReadFull() of an accepted connection after Run = %v, want nil", err)
	}
	if got := m.Stats().Refused[refusedNotServed.id]; got != 1 {
		t.Errorf("not_served = %d, want 1", got)
	}
}

// shortListener fails twice, like in a process without free file descriptors.
// Further calls of Accept return the error last, or succeed if last is nil.
type shortListener struct {
	net.Listener // nil if last is set
	calls        atomic.Int32
	last         error
}

func (l *shortListener) Accept() (net.Conn, error) {
	switch {
	case l.calls.Add(1) <= 2:
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
	testutil.Bubble(t, func(t *testing.T) {
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
			t.Errorf("Run() returned after %v, want 5 ms and 10 ms, each with up to a quarter of jitter", took)
		}
		if got := m.Stats().Refused[acceptFailed.id]; got != 2 {
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
	<-b.peers
	if got := b.m.Stats().Refused[acceptFailed.id]; got != 2 {
		t.Errorf("accept_error = %d, want 2", got)
	}
}
