// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

// guarded is an open connection between two identities, both of which watch it.
type guarded struct {
	server, client *tls.Conn
	ended          chan error // of a Read at the server
}

// connect opens a connection on loopback. The handshake may fail.
func connect(t *testing.T, server, client *Identity) (*guarded, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	b, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return connectOver(t, server, client, a, b)
}

// connectOver opens a TLS connection over a and b, the ends of a connection.
func connectOver(t *testing.T, server, client *Identity, a, b net.Conn) (*guarded, error) {
	t.Helper()
	g := server.Accepted(a)
	c := &guarded{server: tls.Server(g, server.ServerConfig("a")), ended: make(chan error, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := c.server.HandshakeContext(ctx)
		if err == nil {
			err = g.Admit(c.server)
		}
		if err != nil {
			g.Close()
		}
		done <- err
	}()
	var err error
	c.client, err = client.Client(ctx, b, ServerName("", server.Peer().DC, server.domain), "a")
	if err := errors.Join(<-done, err); err != nil {
		return nil, err
	}
	t.Cleanup(func() { c.client.NetConn().Close(); c.server.NetConn().Close() })
	go func() {
		_, err := c.server.Read(make([]byte, 1))
		c.ended <- err
	}()
	go io.Copy(io.Discard, c.client) //nolint:errcheck // reads until the connection ends
	return c, nil
}

func mustConnect(t *testing.T, server, client *Identity) *guarded {
	t.Helper()
	c, err := connect(t, server, client)
	if err != nil {
		t.Fatalf("connect() = %v, want nil", err)
	}
	return c
}

// wantEnded fails unless the connection ends with an error that has text want.
func (c *guarded) wantEnded(t *testing.T, want string) {
	t.Helper()
	select {
	case err := <-c.ended:
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Read() at the server = %v, want an error with %q", err, want)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("connection is open, want it closed with %q", want)
	}
}

// wantOpen fails if the connection has ended.
func (c *guarded) wantOpen(t *testing.T) {
	t.Helper()
	if _, err := c.client.Write(nil); err != nil {
		t.Errorf("Write() = %v, want an open connection", err)
	}
	select {
	case err := <-c.ended:
		t.Errorf("Read() at the server = %v, want an open connection", err)
	default:
	}
}

// loadPair writes and loads a certificate. ca is the CA file.
func loadPair(t testing.TB, ca []byte, p KeyPair) (*Identity, Files) {
	t.Helper()
	f := filesIn(t.TempDir())
	put(t, f, ca, p)
	i, err := Load(f, DefaultDomain, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return i, f
}

func serialOfPair(t *testing.T, p KeyPair) *big.Int { return leafOf(t, p).SerialNumber }

// TestGuard_ReloadWithoutCA checks that a connection ends when the CA of its
// peer is removed, at the end that accepted it and at the end that dialed it,
// and that connections of other peers stay.
func TestGuard_ReloadWithoutCA(t *testing.T) {
	oldCA, newCA := newCA(t, CARequest{}), newCA(t, CARequest{})
	both := append(append([]byte{}, oldCA.Cert...), newCA.Cert...)
	issue := func(ca KeyPair, dc string) KeyPair {
		return issueFrom(t, ca, CertRequest{Role: RoleServer, DC: dc, Node: "srv1"})
	}
	p1, p2 := issue(newCA, "dc1"), issue(newCA, "dc2")
	dc1, files := loadPair(t, both, p1)
	dc2, _ := loadPair(t, both, p2)
	dc3, _ := loadPair(t, both, issue(oldCA, "dc3"))
	accepted, dialed := mustConnect(t, dc1, dc3), mustConnect(t, dc3, dc1)
	others := []*guarded{mustConnect(t, dc1, dc2), mustConnect(t, dc2, dc1), mustConnect(t, dc2, dc3)}

	put(t, files, newCA.Cert, p1)
	if err := dc1.Reload(); err != nil {
		t.Fatal(err)
	}
	accepted.wantEnded(t, "connection closed: certificate of srv1.server.dc3.wanfed is signed by another CA")
	dialed.wantEnded(t, "EOF") // the server dc3 sees its peer close
	for _, c := range others {
		c.wantOpen(t)
	}
	if n := dc1.EndedConnections(); n != 2 {
		t.Errorf("EndedConnections() = %d, want 2", n)
	}
	if _, err := connect(t, dc1, dc3); err == nil {
		t.Error("connect() with a certificate of the removed CA = nil, want an error")
	}
	// A closed connection leaves nothing behind.
	others[0].client.NetConn().Close()
	others[0].server.NetConn().Close()
	others[1].client.NetConn().Close()
	others[1].server.NetConn().Close()
	if n := len(dc1.conns.chains); n != 0 {
		t.Errorf("certificates of open connections = %d, want 0", n)
	}
}

// TestGuard_Expiry checks that a connection ends within a second of the expiry
// of the certificate of its peer.
func TestGuard_Expiry(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		ca := newCA(t, CARequest{Now: time.Now().AddDate(0, 0, -2)})
		dc1, _ := loadPair(t, ca.Cert, issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1"}))
		ends := time.Now().Add(5 * time.Minute).Truncate(time.Second)
		short := issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1", Days: 1,
			Now: ends.AddDate(0, 0, -1)})
		if got := leafOf(t, short).NotAfter; !got.Equal(ends) {
			t.Fatalf("NotAfter = %v, want %v", got, ends)
		}
		dc2, _ := loadPair(t, ca.Cert, short)
		dc3, _ := loadPair(t, ca.Cert, issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc3", Node: "srv1"}))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); (&watcher{i: dc1, watched: map[string]bool{}}).run(ctx) }()
		var conns []*guarded
		for _, client := range []*Identity{dc2, dc3} {
			a, b := net.Pipe()
			c, err := connectOver(t, dc1, client, a, b)
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		c, other := conns[0], conns[1]
		time.Sleep(time.Until(ends))
		synctest.Wait()
		c.wantOpen(t)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		select {
		case err := <-c.ended:
			if !strings.Contains(err.Error(), "expired at") {
				t.Errorf("Read() = %v, want the expiry", err)
			}
		default:
			t.Error("connection is open 2 s after the expiry of the certificate, want it closed")
		}
		other.wantOpen(t)
		stop()
		<-done
		other.client.NetConn().Close()
		other.server.NetConn().Close()
	})
}

// TestGuard_Revoked checks that a revocation list ends the connections of the
// certificates on it, and no others, and that new handshakes fail at both ends.
func TestGuard_Revoked(t *testing.T) {
	yesterday, old := time.Now().AddDate(0, 0, -1), time.Now().Add(-time.Hour)
	before := time.Now().Add(-30 * time.Minute)
	root := newCA(t, CARequest{Now: yesterday})
	dcCA := newCA(t, CARequest{DC: "dc2", Parent: root, Now: yesterday})
	stolen := issueFrom(t, dcCA, CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1", Now: old})
	renewed := issueFrom(t, dcCA, CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1"})
	sibling := issueFrom(t, dcCA, CertRequest{Role: RoleGateway, DC: "dc2", Node: "srv1", Now: old})
	for _, tt := range []struct {
		name                     string
		req                      RevokeRequest
		renewedEnds, siblingEnds bool
		want                     string
	}{
		{"serial, by the CA of the datacenter", RevokeRequest{CA: dcCA, Serials: []*big.Int{serialOfPair(t, stolen)}},
			false, false, "is revoked (serial "},
		{"name, by the CA of the datacenter", RevokeRequest{CA: dcCA, Names: []string{"SRV1.server.dc2.wanfed"}, Before: before},
			false, false, "is revoked (name srv1.server.dc2.wanfed, list 1 of CN=wanfed CA of dc2"},
		{"name, by the root", RevokeRequest{CA: root, Names: []string{"server.dc2.wanfed"}, Before: before}, false, false,
			"is revoked (name server.dc2.wanfed"},
		{"CA of the datacenter, by the root", RevokeRequest{CA: root, Serials: []*big.Int{serialOfPair(t, dcCA)}},
			true, true, "is revoked (serial "},
		{"serial of another CA", RevokeRequest{CA: root, Serials: []*big.Int{serialOfPair(t, stolen)}}, false, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dc1, _ := loadPair(t, root.Cert, issueFrom(t, root, CertRequest{Role: RoleServer, DC: "dc1", Node: "srv1"}))
			thief, _ := loadPair(t, root.Cert, stolen)
			legit, _ := loadPair(t, root.Cert, renewed)
			gateway, _ := loadPair(t, root.Cert, sibling)
			conns := []*guarded{mustConnect(t, dc1, thief), mustConnect(t, dc1, legit), mustConnect(t, dc1, gateway)}
			dialed := mustConnect(t, thief, dc1)
			l, err := Revoke(tt.req)
			if err != nil {
				t.Fatal(err)
			}
			if err := dc1.AddRevocations(l.PEM()); err != nil {
				t.Fatal(err)
			}
			for n, ends := range []bool{tt.want != "", tt.renewedEnds, tt.siblingEnds} {
				if ends {
					conns[n].wantEnded(t, tt.want)
				} else {
					conns[n].wantOpen(t)
				}
			}
			if tt.want == "" {
				dialed.wantOpen(t)
				return
			}
			dialed.wantEnded(t, "EOF")
			for name, err := range map[string]error{"accept": second(connect(t, dc1, thief)),
				"dial": second(connect(t, thief, dc1))} {
				if revoked := (*RevokedError)(nil); !errors.As(err, &revoked) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s = %v, want a RevokedError with %q", name, err, tt.want)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// TestAdmit_TrustChangedDuringHandshake checks that a connection does not escape
// a change of trust between its handshake and Admit.
func TestAdmit_TrustChangedDuringHandshake(t *testing.T) {
	ca := newCA(t, CARequest{})
	p := issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1"})
	dc1, _ := loadPair(t, ca.Cert, issueFrom(t, ca, srv1))
	dc2, _ := loadPair(t, ca.Cert, p)
	a, b := net.Pipe()
	defer b.Close()
	g := dc1.Accepted(a)
	server, client := tls.Server(g, dc1.ServerConfig()), tls.Client(b, dc2.ClientConfig("server.dc1.wanfed"))
	done := make(chan error, 1)
	go func() { done <- client.Handshake() }()
	if err := errors.Join(server.Handshake(), <-done); err != nil {
		t.Fatal(err)
	}
	l, err := Revoke(RevokeRequest{CA: ca, Serials: []*big.Int{serialOfPair(t, p)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := dc1.AddRevocations(l.PEM()); err != nil {
		t.Fatal(err)
	}
	if err := g.Admit(server); err == nil || !strings.Contains(err.Error(), "is revoked") {
		t.Errorf("Admit() = %v, want the revocation", err)
	}
	if len(dc1.conns.chains) != 0 {
		t.Error("the refused connection is watched, want it closed")
	}
}

// TestRun_RevocationFile checks that Run reads the file next to the CA file when
// it appears, that it keeps the list when the file is older or gone, and that a
// damaged file does not prevent the reload of a certificate.
func TestRun_RevocationFile(t *testing.T) {
	ca := newCA(t, CARequest{})
	p := issueFrom(t, ca, CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1"})
	f := filesIn(t.TempDir())
	put(t, f, ca.Cert, issueFrom(t, ca, srv1))
	dc1, log := loadLogged(t, f)
	dc2, _ := loadPair(t, ca.Cert, p)
	start(t, dc1.Run)
	c := mustConnect(t, dc1, dc2)
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(RevocationFile(f.CA), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, err := Revoke(RevokeRequest{CA: ca, Names: []string{"srv9.server.dc9.wanfed"}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := Revoke(RevokeRequest{CA: ca, Old: first.PEM(), Serials: []*big.Int{serialOfPair(t, p)}})
	if err != nil {
		t.Fatal(err)
	}
	write(l.PEM())
	log.take(t, "number=2 certificates=1 names=1")
	c.wantEnded(t, "is revoked")
	log.take(t, `connections closed: certificate of the peer is no longer valid" peer=srv1.server.dc2.wanfed`)
	write(first.PEM())
	log.take(t, "is older than list 2, which stays in force")
	write([]byte("nonsense"))
	log.take(t, "has no revocation list")
	next := issueFrom(t, ca, srv1)
	blockReload(dc1, func() { put(t, f, ca.Cert, next) })
	log.take(t, serialOf(t, next))
	if lists := dc1.RevocationLists(); len(lists) != 1 || lists[0].Number.Int64() != 2 {
		t.Errorf("RevocationLists() = %v, want list 2", lists)
	}
	if _, err := Load(f, DefaultDomain, nil); err == nil || !strings.Contains(err.Error(), "ca.crl has no revocation list") {
		t.Errorf("Load() with a damaged revocation list = %v, want its fault", err)
	}
}

// TestParseRevocationLists_Refused checks that only a CA that is trusted signs
// lists, and that lists have bounds.
func TestParseRevocationLists_Refused(t *testing.T) {
	root, other := newCA(t, CARequest{}), newCA(t, CARequest{})
	dc2 := newCA(t, CARequest{DC: "dc2", Parent: root})
	leaf := issueFrom(t, dc2, CertRequest{Role: RoleServer, DC: "dc2", Node: "srv1"})
	cas := []*x509.Certificate{leafOf(t, root)}
	list := func(r RevokeRequest) []byte {
		l, err := Revoke(r)
		if err != nil {
			t.Fatal(err)
		}
		return l.PEM()
	}
	damaged := list(RevokeRequest{CA: root, Names: []string{"a.b"}})
	damaged[len(damaged)-60] ^= 1
	for name, tt := range map[string]struct {
		in   []byte
		want string
	}{
		"root":         {list(RevokeRequest{CA: root, Names: []string{"a.b"}}), ""},
		"intermediate": {list(RevokeRequest{CA: dc2, Names: []string{"a.b"}}), ""},
		"another CA":   {list(RevokeRequest{CA: other, Names: []string{"a.b"}}), "is not signed by a CA that is trusted here"},
		"not PEM":      {[]byte("x"), "has no revocation list"},
		"certificate":  {root.Cert, "has no revocation list"},
		"damaged":      {damaged, "revocation list"},
		"too long":     {make([]byte, maxRevocationLists*MaxRevocationBytes+1), "has more than 4194304 bytes"},
	} {
		lists, err := ParseRevocationLists(tt.in, cas, time.Now())
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) || err == nil && len(lists) != 1 {
			t.Errorf("ParseRevocationLists() of %s = %d lists, %v, want %q", name, len(lists), err, tt.want)
		}
	}
	if _, err := Revoke(RevokeRequest{CA: KeyPair{leaf.Cert, leaf.Key}}); err == nil {
		t.Error("Revoke() with the key of a server = nil, want an error")
	}
	serials := make([]*big.Int, 1000)
	for n := range serials {
		serials[n] = new(big.Int).Lsh(big.NewInt(int64(n+1)), 100)
	}
	if _, err := Revoke(RevokeRequest{CA: root, Serials: serials}); err == nil || !strings.Contains(err.Error(), "more than 32768") {
		t.Errorf("Revoke() of %d serials = %v, want the bound", len(serials), err)
	}
	if _, err := Revoke(RevokeRequest{CA: root, Serials: serials[:500]}); err != nil {
		t.Errorf("Revoke() of 500 serials = %v, want nil", err)
	}
}

// FuzzParseRevocationLists checks that no input makes ParseRevocationLists
// panic, and that each list that it accepts can be written and read again.
func FuzzParseRevocationLists(f *testing.F) {
	ca, err := CreateCA(CARequest{})
	if err != nil {
		f.Fatal(err)
	}
	cas, err := ParseCerts(ca.Cert)
	if err != nil {
		f.Fatal(err)
	}
	l, err := Revoke(RevokeRequest{CA: ca, Serials: []*big.Int{big.NewInt(7)}, Names: []string{"srv1.server.dc1.wanfed"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(l.PEM())
	f.Add(ca.Cert)
	f.Fuzz(func(t *testing.T, b []byte) {
		lists, _ := ParseRevocationLists(b, cas, time.Now())
		for _, l := range lists {
			again, err := ParseRevocationLists(l.PEM(), cas, time.Now())
			if err != nil || len(again) != 1 || again[0].Number.Cmp(l.Number) != 0 {
				t.Errorf("ParseRevocationLists() of an accepted list = %v, %v", again, err)
			}
		}
	})
}

// BenchmarkGuard_Check measures a check of 10,000 connections, each of another
// peer, and the longest Close of a connection during it.
func BenchmarkGuard_Check(b *testing.B) {
	const peers = 10_000
	ca := newCA(b, CARequest{})
	id, _ := loadPair(b, ca.Cert, newCert(b, CertRequest{CA: ca, Role: RoleServer, Node: "srv1", DC: "dc1"}))
	open := func(n int) *Guard {
		g := id.Accepted(nopConn{})
		p := newCert(b, CertRequest{CA: ca, Role: RoleServer, Node: fmt.Sprintf("srv%d", n), DC: "dc2"})
		certs := []*x509.Certificate{leafOf(b, p)}
		id.conns.add(g, certs, id.peerOf(certs))
		return g
	}
	for n := range peers {
		open(n)
	}
	var longest time.Duration
	for b.Loop() {
		g, done := open(peers), make(chan struct{})
		go func() {
			defer close(done)
			for range 100 {
				time.Sleep(time.Millisecond)
				begin := time.Now()
				g.Close()
				longest = max(longest, time.Since(begin))
			}
		}()
		id.closeInvalid(time.Now())
		<-done
	}
	b.ReportMetric(float64(longest)/float64(time.Millisecond), "ms/close-max")
	if n := id.EndedConnections(); n != 0 {
		b.Errorf("ended connections = %d, want 0", n)
	}
}

// nopConn is a connection that only closes.
type nopConn struct{ net.Conn }

func (nopConn) Close() error { return nil }
