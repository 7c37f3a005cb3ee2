// SPDX-License-Identifier: MPL-2.0

package tlsutil

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/wanfed/wanfed/internal/testutil"
)

func TestRenewAt(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	c := leafOf(t, newCert(t, CertRequest{CA: newCA(t, CARequest{Now: now.Add(-time.Hour)}), Role: RoleServer, Node: "srv1",
		DC: "dc1", Life: time.Minute, Enrolled: true, Now: now}))
	if got := RenewAt(c); !got.Equal(now.Add(40 * time.Second)) {
		t.Errorf("RenewAt() of a life of a minute = %v after its creation, want 40s", got.Sub(now))
	}
	if !Enrolled(c) {
		t.Error("Enrolled() = false, want true")
	}
	ca := newCA(t, CARequest{Days: 1})
	c = leafOf(t, newCert(t, CertRequest{CA: ca, Role: RoleServer, Node: "srv1", DC: "dc1", Life: 48 * time.Hour}))
	if Enrolled(c) || !c.NotAfter.Equal(leafOf(t, ca).NotAfter) {
		t.Errorf("Enrolled() = %v, NotAfter = %v, want false and the end of the CA", Enrolled(c), c.NotAfter)
	}
}

// TestReplace checks that the files belong together at each step, and that the
// key is for the owner only.
func TestReplace(t *testing.T) {
	ca := newCA(t, CARequest{})
	issue := func(node string) KeyPair {
		return newCert(t, CertRequest{CA: ca, Role: RoleServer, Node: node, DC: "dc1"})
	}
	old, next := issue("srv1"), issue("srv1")
	id, f := loadPair(t, ca.Cert, old)
	if err := os.Chmod(f.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := id.Replace(next); err != nil {
		t.Fatalf("Replace() = %v, want nil", err)
	}
	if got := id.Leaf().SerialNumber; got.Cmp(serialOfPair(t, next)) != 0 {
		t.Errorf("serial number in use = %v, want that of the new certificate", got)
	}
	key, err := os.ReadFile(f.Key)
	if st, _ := os.Stat(f.Key); err != nil || !bytes.Equal(key, next.Key) || st.Mode().Perm() != 0o600 {
		t.Errorf("key file = %v, mode %v, want only the new key, 0600", err, st.Mode())
	}
	both := slices.Concat(next.Key, old.Key)
	for _, cert := range []KeyPair{old, next} { // before and after the second step
		if _, err := Load(writeFiles(t, ca.Cert, cert.Cert, both), DefaultDomain, nil); err != nil {
			t.Errorf("Load() of an interrupted Replace = %v, want nil", err)
		}
	}
	for _, tt := range []struct {
		p    KeyPair
		want string
	}{
		{issue("srv2"), "has no SAN"},
		{KeyPair{Cert: issue("srv1").Cert, Key: old.Key}, "does not belong"},
		{newCert(t, CertRequest{CA: newCA(t, CARequest{}), Role: RoleServer, Node: "srv1", DC: "dc1"}), "another CA"},
		{KeyPair{}, "is not PEM"},
	} {
		if err := id.Replace(tt.p); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Replace() = %v, want an error with %q", err, tt.want)
		}
	}
	if now, err := os.ReadFile(f.Key); err != nil || !bytes.Equal(now, key) {
		t.Errorf("key file after refused certificates has changed (%v)", err)
	}
}

func writeFiles(t *testing.T, ca, cert, key []byte) Files {
	t.Helper()
	f := filesIn(t.TempDir())
	put(t, f, ca, KeyPair{cert, key})
	return f
}

func TestSign(t *testing.T) {
	ca := newCA(t, CARequest{})
	id, _ := loadPair(t, ca.Cert, newCert(t, CertRequest{CA: ca, Role: RoleServer, Node: "srv1", DC: "dc1"}))
	sig, err := id.Sign([]byte("text"))
	if err != nil || VerifyText(id.Leaf(), []byte("text"), sig) != nil {
		t.Errorf("Sign() = %v, want a valid signature", err)
	}
	if VerifyText(id.Leaf(), []byte("other"), sig) == nil || VerifyText(leafOf(t, ca), []byte("text"), sig) == nil {
		t.Error("VerifyText() of another text or key = nil, want an error")
	}
}

// renewing are two servers whose certificates have a life of an hour, and a
// connection between them, which client has opened.
type renewing struct {
	*testing.T
	ca             KeyPair
	server, client *Identity
	conn           *guarded
}

func newRenewing(t *testing.T) *renewing {
	r := &renewing{T: t, ca: newCA(t, CARequest{Now: time.Now().Add(-time.Hour)})}
	r.server, _ = loadPair(t, r.ca.Cert, r.issue("dc1"))
	r.client, _ = loadPair(t, r.ca.Cert, r.issue("dc2"))
	r.conn = r.connect()
	return r
}

func (r *renewing) issue(dc string) KeyPair {
	r.Helper()
	return newCert(r, CertRequest{CA: r.ca, Role: RoleServer, Node: "srv1", DC: dc, Life: time.Hour, Now: time.Now()})
}

// connect opens a connection whose Refresh opens another one.
func (r *renewing) connect() *guarded {
	a, b := net.Pipe()
	accepted := r.server.Accepted(a)
	dialed := r.client.Dialed(b, func(_ context.Context, name string) error {
		if name != "srv1.server.dc1.wanfed" {
			r.Errorf("name of a Refresh = %s, want that of the server", name)
		}
		c := r.connect()
		return errors.Join(c.client.NetConn().Close(), c.server.NetConn().Close())
	})
	c := &guarded{server: tls.Server(accepted, r.server.ServerConfig("a")), ended: make(chan error, 2),
		client: tls.Client(dialed, r.client.ClientConfig("server.dc1.wanfed", "a"))}
	done := make(chan error, 1)
	go func() { done <- c.server.Handshake() }()
	if err := errors.Join(c.client.Handshake(), <-done, accepted.Admit(c.server), dialed.Admit(c.client)); err != nil {
		r.Errorf("connect() = %v, want nil", err)
	}
	for _, end := range []*tls.Conn{c.server, c.client} {
		go func() { _, err := io.Copy(io.Discard, end); c.ended <- err }()
	}
	return c
}

// run runs f while both identities are watched.
func (r *renewing) run(f func()) {
	ctx, stop := context.WithCancel(r.Context())
	done := make(chan struct{})
	for _, i := range []*Identity{r.server, r.client} {
		go func() {
			w := &watcher{i: i, watched: map[string]bool{}}
			_ = w.run(ctx)
			w.refreshes.Wait()
			done <- struct{}{}
		}()
	}
	f()
	stop()
	<-done
	<-done
	r.conn.client.NetConn().Close()
	r.conn.server.NetConn().Close()
}

// TestRefresh checks that a connection survives the certificates of both ends if
// both renew them, and that it ends with the last one.
func TestRefresh(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRenewing(t)
		r.run(func() {
			for range 5 {
				time.Sleep(40 * time.Minute)
				if err := errors.Join(r.server.Replace(r.issue("dc1")), r.client.Replace(r.issue("dc2"))); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(59 * time.Minute)
			synctest.Wait()
			r.conn.wantOpen(t)
			if s, c := r.server.EndedConnections(), r.client.EndedConnections(); s+c != 0 {
				t.Errorf("ended connections = %d and %d, want none", s, c)
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if s, c := r.server.EndedConnections(), r.client.EndedConnections(); s+c == 0 {
				t.Error("the connection is open after the last certificates have expired, want it closed")
			}
		})
	})
}

// TestRefresh_OneEnd checks that a connection ends with the certificate of an
// end that does not renew it.
func TestRefresh_OneEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		renew func(r *renewing) error
		want  func(r *renewing) uint64
	}{
		{"client", func(r *renewing) error { return r.client.Replace(r.issue("dc2")) },
			func(r *renewing) uint64 { return r.client.EndedConnections() }},
		{"server", func(r *renewing) error { return r.server.Replace(r.issue("dc1")) },
			func(r *renewing) uint64 { return r.server.EndedConnections() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Bubble(t, func(t *testing.T) {
				r := newRenewing(t)
				r.run(func() {
					time.Sleep(40 * time.Minute)
					if err := tt.renew(r); err != nil {
						t.Fatal(err)
					}
					time.Sleep(25 * time.Minute)
					synctest.Wait()
					if tt.want(r) == 0 {
						t.Error("the connection is open, want it closed: one certificate has expired")
					}
				})
			})
		})
	}
}

// TestRefresh_Revoked checks that the connection of a revoked certificate ends,
// also if the certificate has expired and its peer has a newer one.
func TestRefresh_Revoked(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRenewing(t)
		r.run(func() {
			first := r.client.Leaf().SerialNumber
			time.Sleep(40 * time.Minute)
			if err := errors.Join(r.server.Replace(r.issue("dc1")), r.client.Replace(r.issue("dc2"))); err != nil {
				t.Fatal(err)
			}
			time.Sleep(25 * time.Minute)
			synctest.Wait()
			r.conn.wantOpen(t)
			l, err := Revoke(RevokeRequest{CA: r.ca, Serials: []*big.Int{first}})
			if err == nil {
				err = r.server.AddRevocations(l.PEM())
			}
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := r.server.EndedConnections(); n != 1 {
				t.Errorf("EndedConnections() = %d after the revocation, want 1", n)
			}
			if err := r.server.VerifyPeer([]*x509.Certificate{r.client.Leaf()}); err != nil {
				t.Errorf("VerifyPeer() of the new certificate = %v, want nil", err)
			}
		})
	})
}
