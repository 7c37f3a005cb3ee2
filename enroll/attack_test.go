// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// wantRefused checks that no certificate was issued for token, and that all
// calls were recorded, each with its reason.
func (r *rig) wantRefused(token *Token, calls int, reason string) {
	r.Helper()
	testutil.Await(r, 5*time.Second, "all calls are recorded", func(context.Context) error {
		if all, _ := r.calls(); all < calls {
			return errors.New("not yet")
		}
		return nil
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.records {
		if err == nil || !strings.Contains(err.Error(), reason) {
			r.Fatalf("recorded error = %v, want %q", err, reason)
		}
	}
	if token != nil {
		if data := r.stored(token); len(data.Enrollments) != 0 {
			r.Errorf("issued certificates = %v, want none", data.Enrollments)
		}
	}
}

// The client has one error for a token that is expired, used, unknown, or for
// another datacenter or role. The record has the reason.
func TestAttack_TokenNotValid(t *testing.T) {
	change := func(t *Token, f func(*pb.EnrollmentTokenText)) *Token {
		text := proto.CloneOf(t.text)
		f(text)
		changed, err := newToken(text)
		if err != nil {
			panic(err)
		}
		return changed
	}
	for reason, attack := range map[string]func(r *rig) (stored, used *Token){
		"it expired at": func(r *rig) (*Token, *Token) {
			token := r.token("dc2", RoleDatacenter, -time.Second, 1)
			return token, token
		},
		"it is used": func(r *rig) (*Token, *Token) {
			token := r.token("dc2", RoleDatacenter, time.Minute, 0)
			return token, token
		},
		"it is for datacenter dc2": func(r *rig) (*Token, *Token) {
			token := r.token("dc2", RoleDatacenter, time.Minute, 1)
			return token, change(token, func(t *pb.EnrollmentTokenText) { t.Datacenter = "dc3" })
		},
		"it is for role gateway": func(r *rig) (*Token, *Token) {
			token := r.token("dc1", RoleGateway, time.Minute, 1)
			return token, change(token, func(t *pb.EnrollmentTokenText) { t.Role = RoleServer })
		},
		"no such token": func(r *rig) (*Token, *Token) {
			token := r.token("dc2", RoleDatacenter, time.Minute, 1)
			return token, change(token, func(t *pb.EnrollmentTokenText) { t.Seed[0] ^= 1 })
		},
	} {
		t.Run(reason, func(t *testing.T) {
			r := newRig(t)
			stored, used := attack(r)
			if _, err := r.redeem(used); err == nil || !strings.HasSuffix(err.Error(), "refuses: "+ErrToken.Error()) {
				t.Errorf("Redeem() = %v, want only ErrToken", err)
			}
			r.wantRefused(stored, 1, reason)
		})
	}
}

// relay is a machine between a client and a server, which copies and stores all
// bytes.
type relay struct {
	addr     string
	mu       sync.Mutex
	upstream bytes.Buffer // from the client
	all      bytes.Buffer
}

func newRelay(t testing.TB, to string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { ln.Close() })
	wg.Go(func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				client.Close()
				continue
			}
			wg.Go(func() { r.copy(server, client, true); server.(*net.TCPConn).CloseWrite() })
			wg.Go(func() { r.copy(client, server, false); client.Close(); server.Close() })
		}
	})
	return r
}

func (r *relay) copy(to, from net.Conn, up bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		r.all.Write(b[:n])
		if up {
			r.upstream.Write(b[:n])
		}
		r.mu.Unlock()
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// An eavesdropper sees neither the secret nor the id of the token, and cannot
// repeat what it has seen.
func TestAttack_EavesdropAndReplay(t *testing.T) {
	r := newRig(t)
	relay := newRelay(t, r.addr)
	token := r.token("dc2", RoleDatacenter, time.Minute, 2)
	token.text.Addresses = []string{relay.addr}
	if _, err := r.redeem(token); err != nil {
		t.Fatal(err)
	}
	relay.mu.Lock()
	seen, sent := bytes.Clone(relay.all.Bytes()), bytes.Clone(relay.upstream.Bytes())
	relay.mu.Unlock()
	for _, secret := range [][]byte{token.text.Seed, []byte(token.String()), []byte(token.ID()), token.public(),
		[]byte(hex.EncodeToString(token.text.Seed))} {
		if bytes.Contains(seen, secret) {
			t.Errorf("the connection contains %q in plain text", secret)
		}
	}
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, c) // until the server closes the connection
	if data := r.stored(token); data.Uses != 1 || len(data.Enrollments) != 1 {
		t.Errorf("after the replay of the bytes: token = %v, want 1 use left", data)
	}
}

// A request that an attacker has obtained in one connection is not valid in
// another one, even if the attacker has the plain text of both.
func TestAttack_ReplayOfRequest(t *testing.T) {
	r := newRig(t)
	token := r.token("dc2", RoleDatacenter, time.Minute, 2)
	first, err := token.dial(t.Context(), r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := token.sign(first.ConnectionState(), &pb.EnrollRequest{
		Token: token.ID(), Datacenter: "dc2", Role: RoleDatacenter, Csr: csr,
	})
	if err != nil {
		t.Fatal(err)
	}
	if refused := r.send(token, signed); refused != ErrToken.Error() {
		t.Errorf("response = %q, want ErrToken", refused)
	}
	first.Close()
	r.wantRefused(token, 1, "")
}

// send sends a request in a connection of its own, and returns the reason of the
// refusal.
func (r *rig) send(token *Token, m proto.Message) (refused string) {
	r.Helper()
	c, err := token.dial(r.Context(), r.addr)
	if err != nil {
		r.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(timeout))
	resp := &pb.EnrollResponse{}
	if err := writeMessage(c, m); err != nil {
		r.Fatal(err)
	}
	if err := readMessage(c, resp); err != nil {
		r.Fatal(err)
	}
	if len(resp.Certificate) > 0 && resp.Refused != "" {
		r.Error("the response has a certificate and a refusal")
	}
	return resp.Refused
}

// impostor accepts TLS connections with a certificate and further certificates
// in its chain. received returns the bytes that clients have sent to it.
func impostor(t testing.TB, pair tlsutil.KeyPair, more ...[]byte) (addr string, received func() int) {
	t.Helper()
	cert, err := tls.X509KeyPair(bytes.Join(append([][]byte{pair.Cert}, more...), nil), pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{wanfed.ProtoEnroll}, MinVersion: tls.VersionTLS13,
	})
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.Copy(&got, c)
			c.Close()
		}
	})
	return ln.Addr().String(), func() int { ln.Close(); wg.Wait(); return got.Len() }
}

// A client ends the handshake with a machine that has another CA, also if that
// machine sends the certificate of the true CA too, or has the certificate of
// another member of the federation. The machine receives nothing of the token.
func TestAttack_Impostor(t *testing.T) {
	r := newRig(t)
	token := r.token("dc2", RoleDatacenter, time.Minute, 1)
	ca := func(req tlsutil.CARequest) tlsutil.KeyPair {
		p, err := tlsutil.CreateCA(req)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	cert := func(role tlsutil.Role, dc, node string, ca tlsutil.KeyPair) tlsutil.KeyPair {
		p, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: role, DC: dc, Node: node, CA: ca})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	other, dc2 := ca(tlsutil.CARequest{}), ca(tlsutil.CARequest{DC: "dc2", Parent: r.root})
	for name, tt := range map[string]struct {
		pair tlsutil.KeyPair
		more [][]byte
	}{
		"another CA":                         {cert(tlsutil.RoleServer, "dc1", "srv1", other), [][]byte{other.Cert}},
		"another CA, with the true CA":       {cert(tlsutil.RoleServer, "dc1", "srv1", other), [][]byte{other.Cert, r.root.Cert}},
		"the true CA alone":                  {cert(tlsutil.RoleServer, "dc1", "srv1", r.root), nil},
		"gateway of the datacenter":          {cert(tlsutil.RoleGateway, "dc1", "srv1", r.root), [][]byte{r.root.Cert}},
		"another server of the datacenter":   {cert(tlsutil.RoleServer, "dc1", "srv2", r.root), [][]byte{r.root.Cert}},
		"server of another datacenter":       {cert(tlsutil.RoleServer, "dc2", "srv1", dc2), [][]byte{r.root.Cert}},
		"operator of the datacenter":         {cert(tlsutil.RoleOperator, "dc1", "srv1", r.root), [][]byte{r.root.Cert}},
		"CA of a datacenter as its server":   {tlsutil.KeyPair{Cert: dc2.Cert, Key: dc2.Key}, [][]byte{r.root.Cert}},
		"the true CA as its server":          {r.root, [][]byte{r.root.Cert}},
		"another CA, with the true CA first": {cert(tlsutil.RoleServer, "dc1", "srv1", other), [][]byte{r.root.Cert, other.Cert}},
	} {
		addr, received := impostor(t, tt.pair, tt.more...)
		token.text.Addresses = []string{addr}
		if _, err := r.redeem(token); err == nil || !strings.Contains(err.Error(), "no address of the token leads to srv1") {
			t.Errorf("Redeem() at an impostor with %s = %v, want an error of the handshake", name, err)
		}
		if n := received(); n > 0 {
			t.Errorf("an impostor with %s received %d bytes, want none", name, n)
		}
	}
	token.text.Addresses = []string{r.addr}
	if _, err := r.redeem(token); err != nil {
		t.Errorf("Redeem() at the true server afterwards = %v, want nil", err)
	}
}

// Guesses of the secret fail, and each is recorded.
func TestAttack_Guesses(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 400
	}
	r := newRig(t)
	r.service.interval = 0 // see TestPace
	token := r.token("dc2", RoleDatacenter, time.Hour, 1)
	var wg sync.WaitGroup
	const clients = 8
	for range clients {
		wg.Go(func() {
			for range n / clients {
				guess := &Token{text: token.text, key: ed25519.NewKeyFromSeed(random(32))}
				c, err := token.dial(context.Background(), r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				signed, err := guess.sign(c.ConnectionState(), &pb.EnrollRequest{
					Token: token.ID(), Datacenter: "dc2", Role: RoleDatacenter,
				})
				resp := &pb.EnrollResponse{}
				err = errors.Join(err, writeMessage(c, signed), readMessage(c, resp))
				c.Close()
				if err != nil || resp.Refused != ErrToken.Error() || len(resp.Certificate) > 0 {
					t.Errorf("guess = %v, %v, want ErrToken", resp, err)
					return
				}
			}
		})
	}
	wg.Wait()
	r.wantRefused(token, n, "the signature is wrong")
	if all, _ := r.calls(); all != n {
		t.Errorf("records = %d, want %d", all, n)
	}
}

// 10,000 requests take at least 199 s.
func TestPace(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		s, began := NewService(Config{}), time.Now()
		var wg sync.WaitGroup
		for range maxClients {
			wg.Go(func() {
				for range 10_000/maxClients + 1 {
					if err := s.pace(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if took, least := time.Since(began), 199*time.Second; took < least {
			t.Errorf("10,000 requests took %v, want at least %v", took, least)
		}
	})
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// Of many simultaneous redemptions of a token with one use, one succeeds.
func TestAttack_SimultaneousRedemptions(t *testing.T) {
	r := newRig(t)
	token := r.token("dc2", RoleDatacenter, time.Minute, 1)
	const clients = 8
	results := make(chan error, clients)
	for range clients {
		key := newKey(t)
		go func() {
			_, err := Redeem(t.Context(), token, Request{Key: key})
			results <- err
		}()
	}
	succeeded := 0
	for range clients {
		err := <-results
		if err == nil {
			succeeded++
		} else if !strings.Contains(err.Error(), ErrToken.Error()) {
			t.Errorf("Redeem() = %v, want nil or ErrToken", err)
		}
	}
	if data := r.stored(token); succeeded != 1 || len(data.Enrollments) != 1 || data.Uses != 0 {
		t.Errorf("%d redemptions succeeded, token = %v, want one", succeeded, data)
	}
	if all, refused := r.calls(); all != clients || refused != clients-1 {
		t.Errorf("records = %d, %d refused, want %d and %d", all, refused, clients, clients-1)
	}
}

// Two servers with the key, which do not share a lock, issue one certificate: the
// store decides.
func TestAttack_SimultaneousAtTwoServers(t *testing.T) {
	r := newRig(t)
	token := r.token("dc2", RoleDatacenter, time.Minute, 1)
	stored, data, err := r.service.token(t.Context(), &pb.EnrollRequest{
		Token: token.ID(), Datacenter: "dc2", Role: RoleDatacenter,
	}, func([]byte) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.redeem(token); err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	other := NewService(r.service.cfg)
	resp, err := other.issue(t.Context(), &pb.EnrollRequest{Csr: csr}, stored, data, "")
	if err == nil {
		t.Errorf("issue() with the state before = %v, want a conflict", resp)
	}
	if data := r.stored(token); len(data.Enrollments) != 1 {
		t.Errorf("token = %v, want one enrollment", data)
	}
}

// A client that offers another protocol too needs a certificate, and the
// connection without a certificate serves no other protocol.
func TestAttack_OtherProtocol(t *testing.T) {
	r := newRig(t)
	for _, alpn := range [][]string{{wanfed.ProtoEnroll, "h2"}, {"h2"}, {wanfed.ProtoGossip}, nil} {
		c, err := tls.Dial("tcp", r.addr, &tls.Config{
			InsecureSkipVerify: true, ServerName: "srv1.server.dc1.wanfed", NextProtos: alpn,
		})
		if err != nil {
			continue
		}
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("Read() with ALPN %q without a certificate = nil, want an error", alpn)
		}
		c.Close()
	}
	if all, _ := r.calls(); all != 0 {
		t.Errorf("records = %d, want none: no connection reached the service", all)
	}
}

// Large, slow and damaged requests end, and are recorded.
func TestAttack_Malformed(t *testing.T) {
	r := newRig(t)
	token := r.token("dc2", RoleDatacenter, time.Minute, 1)
	for _, b := range [][]byte{{0xff, 0xff, 0xff, 0xff}, {0, 1, 0, 1}, {0, 0, 0, 2, 0xff, 0xff}, {0, 0, 0, 0}} {
		c, err := token.dial(t.Context(), r.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		resp := &pb.EnrollResponse{}
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := readMessage(c, resp); err != nil || resp.Refused == "" {
			t.Errorf("response to % x = %v, %v, want a refusal", b, resp, err)
		}
		c.Close()
	}
	r.wantRefused(token, 4, "")
}
