// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// pair is a server of dc1 and one of dc2 that calls it.
type pair struct {
	ca       *tlstest.CA
	srvFiles tlsutil.Files
	cliFiles tlsutil.Files
	srv, cli *tlsutil.Identity
}

const called = "srv1.server.dc1.wanfed"

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{ca: tlstest.NewCA(t)}
	p.srvFiles, p.cliFiles = p.ca.Files(t, tlsutil.RoleServer, "srv1", "dc1"), p.ca.Files(t, tlsutil.RoleServer, "srv1", "dc2")
	p.srv, p.cli = load(t, p.srvFiles), load(t, p.cliFiles)
	return p
}

func load(t *testing.T, f tlsutil.Files) *tlsutil.Identity {
	t.Helper()
	id, err := tlsutil.Load(f, "wanfed", nil)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// call connects and wants both ends to say whether the session was resumed.
func (p *pair) call(t *testing.T, what string, want bool) {
	t.Helper()
	resumes(t, what, want, p.srv.ServerConfig("a"), p.cli.ResumingClientConfig(called, "a"))
}

func resumes(t *testing.T, what string, want bool, server, client *tls.Config) {
	t.Helper()
	o := handshake(t, server, client)
	if o.client != nil || o.server != nil {
		t.Fatalf("%s: client %v, server %v", what, o.client, o.server)
	}
	if o.clientSaw.DidResume != want || o.serverSaw.DidResume != want {
		t.Fatalf("%s: resumed: client %v, server %v; want %v", what, o.clientSaw.DidResume, o.serverSaw.DidResume, want)
	}
}

func TestResume(t *testing.T) {
	p := newPair(t)
	server := p.srv.ServerConfig("a", "b")
	p.call(t, "first", false)
	for range 3 { // each brings the ticket of the next
		o := handshake(t, server, p.cli.ResumingClientConfig(called, "b"))
		if o.client != nil || o.server != nil || !o.clientSaw.DidResume || !o.serverSaw.DidResume {
			t.Fatalf("client %v, server %v, resumed %v", o.client, o.server, o.clientSaw.DidResume)
		}
		if o.serverSaw.NegotiatedProtocol != "b" || o.clientSaw.NegotiatedProtocol != "b" {
			t.Errorf("protocol %q: that of the first connection was \"a\", of this \"b\"", o.serverSaw.NegotiatedProtocol)
		}
		if o.serverSaw.ServerName != called || o.serverSaw.Version != tls.VersionTLS13 {
			t.Errorf("SNI %q, version %x", o.serverSaw.ServerName, o.serverSaw.Version)
		}
		for end, seen := range map[*tlsutil.Identity]tls.ConnectionState{p.cli: o.serverSaw, p.srv: o.clientSaw} {
			if who, err := tlsutil.PeerFromCert(seen.PeerCertificates[0], "wanfed"); err != nil || who != end.Peer() {
				t.Errorf("peer %v, %v; want %v", who, err, end.Peer())
			}
		}
	}
	resumes(t, "another name of the same server", false, server, p.cli.ResumingClientConfig("server.dc1.wanfed", "a"))
	resumes(t, "who does not ask for it", false, server, p.cli.ClientConfig(called, "a"))
	p.call(t, "again", true)
	if o := handshake(t, server, p.cli.ResumingClientConfig(called, "c")); o.client == nil || !strings.Contains(o.server.Error(), "unsupported application protocols") {
		t.Errorf("a protocol that is not served: client %v, server %v", o.client, o.server)
	}
}

// A ticket is good for one connection, whatever the client does.
func TestTicketIsUsedOnce(t *testing.T) {
	p := newPair(t)
	cache := tls.NewLRUClientSessionCache(0)
	first := p.cli.ResumingClientConfig(called, "a")
	first.ClientSessionCache = cache
	resumes(t, "first", false, p.srv.ServerConfig("a"), first)
	state, ok := cache.Get(called)
	if !ok {
		t.Fatal("no ticket")
	}
	for i, want := range []bool{true, false, false} {
		cfg := p.cli.ResumingClientConfig(called, "a")
		cfg.ClientSessionCache = always{state}
		resumes(t, "use "+string(rune('1'+i)), want, p.srv.ServerConfig("a"), cfg)
	}
}

// always is a cache with one session for every name.
type always struct{ state *tls.ClientSessionState }

func (a always) Get(string) (*tls.ClientSessionState, bool) { return a.state, true }
func (always) Put(string, *tls.ClientSessionState)          {}

func TestReloadEndsSessions(t *testing.T) {
	p := newPair(t)
	srv := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	cli := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc2"}
	pairs := map[*tlsutil.Identity]tlsutil.KeyPair{p.srv: p.ca.Issue(t, srv), p.cli: p.ca.Issue(t, cli)}
	other := tlstest.NewCA(t)
	both := append(append([]byte{}, p.ca.Pair.Cert...), other.Pair.Cert...)
	reload := func(id *tlsutil.Identity, f tlsutil.Files, ca []byte) {
		t.Helper()
		tlstest.Write(t, f, ca, pairs[id])
		if err := id.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		what   string
		change func()
	}{
		{"the server's certificate", func() { reload(p.srv, p.srvFiles, p.ca.Pair.Cert) }},
		{"the client's certificate", func() { reload(p.cli, p.cliFiles, p.ca.Pair.Cert) }},
		{"the server's CAs", func() { reload(p.srv, p.srvFiles, both) }},
		{"the client's CAs", func() { reload(p.cli, p.cliFiles, both) }},
	} {
		p.call(t, "before "+step.what, false)
		p.call(t, "before "+step.what, true)
		step.change()
	}
	p.call(t, "last", false)
	p.call(t, "last", true)
	if err := p.srv.Reload(); err != nil { // nothing changed
		t.Fatal(err)
	}
	p.call(t, "after a reload of the same files", true)
	// The server now trusts the other CA only: the session must not help its client in.
	pairs[p.srv] = other.Issue(t, srv)
	reload(p.srv, p.srvFiles, other.Pair.Cert)
	o := handshake(t, p.srv.ServerConfig("a"), p.cli.ResumingClientConfig(called, "a"))
	if !strings.Contains(tlsutil.DescribeError(o.server), "another CA") || o.client == nil {
		t.Errorf("client %v, server %v", o.client, o.server)
	}
}

// Processes share no sessions: not with the next one of the same files, not with another server of the same name.
func TestSessionOfAnotherProcess(t *testing.T) {
	p := newPair(t)
	const anyServer = "server.dc1.wanfed"
	srv2 := p.ca.Identity(t, tlsutil.RoleServer, "srv2", "dc1")
	dial := func(what string, want bool, srv *tlsutil.Identity) {
		t.Helper()
		resumes(t, what, want, srv.ServerConfig("a"), p.cli.ResumingClientConfig(anyServer, "a"))
	}
	dial("first", false, p.srv)
	dial("same", true, p.srv)
	dial("another server", false, srv2)
	dial("the other server again", true, srv2)
	dial("back", false, p.srv)
	again := load(t, p.srvFiles)
	dial("restarted", false, again)
	dial("restarted, again", true, again)
}

// Who answers instead of the server that gave the ticket must have its certificate, and who has seen the ticket on the
// wire must have the session's secret.
func TestTicketIsNoCertificate(t *testing.T) {
	p := newPair(t)
	prepare := func() {
		t.Helper()
		p.cli = load(t, p.cliFiles)
		p.call(t, "first", false)
	}
	prepare()
	foreign := tlstest.NewCA(t).Identity(t, tlsutil.RoleServer, "srv1", "dc1")
	o := handshake(t, foreign.ServerConfig("a"), p.cli.ResumingClientConfig(called, "a"))
	if !strings.Contains(tlsutil.DescribeError(o.client), "another CA") {
		t.Errorf("server of another CA: %v", o.client)
	}
	prepare()
	dc3 := stranger(t, p.ca, "", p.ca.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc3"}))
	o = handshake(t, dc3, p.cli.ResumingClientConfig(called, "a"))
	if !strings.Contains(tlsutil.DescribeError(o.client), "is not valid for "+called) {
		t.Errorf("server of another datacenter: %v", o.client)
	}
	prepare()
	seen := p.cli.ResumingClientConfig(called, "a").ClientSessionCache
	state, ok := seen.Get(called)
	if !ok {
		t.Fatal("no ticket")
	}
	ticket, _, err := state.ResumptionState()
	if err != nil {
		t.Fatal(err)
	}
	thief := p.ca.Identity(t, tlsutil.RoleServer, "srv1", "dc3")
	own := tls.NewLRUClientSessionCache(0)
	cfg := thief.ResumingClientConfig(called, "a")
	cfg.ClientSessionCache = own
	resumes(t, "thief's own", false, p.srv.ServerConfig("a"), cfg)
	state, _ = own.Get(called)
	_, secret, err := state.ResumptionState()
	if err != nil {
		t.Fatal(err)
	}
	forged, err := tls.NewResumptionState(ticket, secret)
	if err != nil {
		t.Fatal(err)
	}
	cfg = thief.ResumingClientConfig(called, "a")
	cfg.ClientSessionCache = always{forged}
	if o := handshake(t, p.srv.ServerConfig("a"), cfg); o.server == nil || o.client == nil {
		t.Errorf("another's ticket with the own secret: client %v, server %v", o.client, o.server)
	}
}

// pipeCall is handshake over a pipe, for fake time: only the server sends.
func pipeCall(t *testing.T, server, client *tls.Config) (o outcome) {
	t.Helper()
	c, s := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.Close()
		conn := tls.Server(s, server)
		if o.server = conn.HandshakeContext(t.Context()); o.server == nil {
			o.serverSaw = conn.ConnectionState()
			_, o.server = conn.Write([]byte("x"))
		}
	}()
	conn := tls.Client(c, client)
	_, o.client = conn.Read(make([]byte, 1))
	o.clientSaw = conn.ConnectionState()
	c.Close()
	<-done
	return o
}
