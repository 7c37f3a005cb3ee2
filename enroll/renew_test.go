// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// renewRig has the service of srv1 of dc1, which has the CA, and the identity of
// a gateway of dc1 with a certificate of a life of an hour.
type renewRig struct {
	testing.TB
	root, ca tlsutil.KeyPair
	service  *RenewalService
	gateway  *tlsutil.Identity

	mu    sync.Mutex
	down  error // of calls of the service
	calls int
}

// setDown makes all calls fail with err, unless it is nil.
func (r *renewRig) setDown(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = err
}

// call counts a call, and returns the error of setDown.
func (r *renewRig) call() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	return r.down
}

func (r *renewRig) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

var gw1 = tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw1"}

func newRenewRig(t testing.TB) *renewRig {
	t.Helper()
	r := &renewRig{TB: t}
	now := time.Now().Add(-time.Hour)
	var err error
	if r.root, err = tlsutil.CreateCA(tlsutil.CARequest{Now: now}); err == nil {
		r.ca, err = tlsutil.CreateCA(tlsutil.CARequest{DC: "dc1", Parent: r.root, Now: now})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.gateway = r.identity(gw1, true)
	r.service = r.server("srv1", true)
	return r
}

// server returns the service of a server of dc1.
func (r *renewRig) server(node string, hasCA bool, others ...string) *RenewalService {
	r.Helper()
	dir := r.TempDir()
	if hasCA {
		if err := r.ca.Save(filepath.Join(dir, DatacenterCert), filepath.Join(dir, DatacenterKey)); err != nil {
			r.Fatal(err)
		}
	}
	return NewRenewalService(RenewalConfig{
		DC: "dc1", Identity: r.identity(tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: node}, true),
		Authority: Authority{Dir: dir, DC: "dc1", Life: time.Hour}, Logger: slog.New(slog.DiscardHandler),
		Peer: func(ctx context.Context) (tlsutil.Peer, error) {
			p, _ := tlsutil.PeerFromContext(ctx)
			return p, nil
		},
		Servers: func() []string { return others }, Expected: func() ([]tlsutil.Peer, error) { return []tlsutil.Peer{gw1}, nil },
		Connect: func(ctx context.Context, node string) (context.Context, grpc.ClientConnInterface, error) {
			p, _ := tlsutil.PeerFromContext(ctx)
			switch node {
			case "srv1":
				return ctx, direct{r, r.service, p}, nil
			case "down":
				return nil, nil, errors.New("no path")
			}
			return ctx, direct{r, r.server(node, false), p}, nil
		},
	})
}

// identity returns an identity with a certificate of dc1 of a life of an hour.
func (r *renewRig) identity(p tlsutil.Peer, enrolled bool) *tlsutil.Identity {
	r.Helper()
	req := CertRequest(p, "", time.Hour)
	req.Enrolled, req.CA = enrolled, r.ca
	pair, err := tlsutil.CreateCert(req)
	if err != nil {
		r.Fatal(err)
	}
	dir := r.TempDir()
	f := tlsutil.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	tlstest.Write(r, f, r.root.Cert, pair)
	id, err := tlsutil.Load(f, tlsutil.DefaultDomain, nil)
	if err != nil {
		r.Fatal(err)
	}
	return id
}

// direct calls a service as a peer, without a network.
type direct struct {
	r       *renewRig
	service *RenewalService
	peer    tlsutil.Peer
}

func (d direct) Invoke(ctx context.Context, _ string, req, reply any, _ ...grpc.CallOption) error {
	if err := d.r.call(); err != nil {
		return err
	}
	ctx = tlsutil.WithPeer(ctx, d.peer)
	var resp proto.Message
	var err error
	switch req := req.(type) {
	case *pb.RenewRequest:
		resp, err = d.service.Renew(ctx, req)
	case *pb.ReissueCARequest:
		resp, err = d.service.ReissueCA(ctx, req)
	case *pb.ListCertificatesRequest:
		resp, err = d.service.ListCertificates(ctx, req)
	}
	if err == nil {
		proto.Merge(reply.(proto.Message), resp)
	}
	return err
}

func (direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams")
}

// request returns a request for the renewal of the certificate of id.
func (r *renewRig) request(id *tlsutil.Identity, key crypto.Signer, names ...string) *pb.RenewRequest {
	r.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: names}, key)
	if err != nil {
		r.Fatal(err)
	}
	req := &pb.RenewRequest{Csr: csr, Chain: id.Chain()}
	if req.Signature, err = id.Sign(renewText(csr)); err != nil {
		r.Fatal(err)
	}
	return req
}

func (r *renewRig) renewer() Renewer {
	return Renewer{Identity: r.gateway, Logger: slog.New(slog.DiscardHandler),
		Connect: func() (grpc.ClientConnInterface, error) { return direct{r, r.service, gw1}, nil }}
}

// TestRenewal_Refused checks that a certificate is renewed only for its holder,
// with its role and names, and while it is valid.
func TestRenewal_Refused(t *testing.T) {
	r := newRenewRig(t)
	other := tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc1", Node: "gw2"}
	otherID := r.identity(other, true)
	revoked := r.identity(gw1, true)
	l, err := tlsutil.Revoke(tlsutil.RevokeRequest{CA: r.ca, Serials: []*big.Int{revoked.Leaf().SerialNumber}})
	if err == nil {
		err = r.service.cfg.Identity.AddRevocations(l.PEM())
	}
	if err != nil {
		t.Fatal(err)
	}
	ok := r.request(r.gateway, newKey(t), r.gateway.Leaf().DNSNames...)
	change := func(f func(*pb.RenewRequest)) *pb.RenewRequest {
		req := proto.CloneOf(ok)
		f(req)
		return req
	}
	for _, tt := range []struct {
		name   string
		caller tlsutil.Peer
		req    *pb.RenewRequest
		want   string // "": issued
	}{
		{"valid", gw1, ok, ""},
		{"without names", gw1, r.request(r.gateway, newKey(t)), ""},
		{"another name", gw1, r.request(r.gateway, newKey(t), "gw2.gateway.dc1.wanfed"), "which is not one of gw1.gateway.dc1.wanfed"},
		{"another role", gw1, r.request(r.gateway, newKey(t), "gw1.server.dc1.wanfed"), "which is not one of gw1.gateway.dc1.wanfed"},
		{"certificate of another node", gw1, r.request(otherID, newKey(t)), "is that of gateway/dc1/gw2"},
		{"certificate of another role", tlsutil.Peer{Role: tlsutil.RoleServer, DC: "dc1", Node: "gw1"}, ok, "is that of gateway/dc1/gw1"},
		{"another datacenter", tlsutil.Peer{Role: tlsutil.RoleGateway, DC: "dc2", Node: "gw1"}, ok, "is that of gateway/dc1/gw1"},
		{"without the key", gw1, change(func(q *pb.RenewRequest) { q.Chain = revoked.Chain() }), "not valid"},
		{"signature of another key", gw1, change(func(q *pb.RenewRequest) { q.Signature, _ = otherID.Sign(renewText(q.Csr)) }), "signature"},
		{"another certificate request", gw1, change(func(q *pb.RenewRequest) { q.Csr = r.request(otherID, newKey(t)).Csr }), "signature"},
		{"revoked", gw1, r.request(revoked, newKey(t)), "is revoked"},
		{"another PKI", gw1, r.request(r.identity(gw1, false), newKey(t)), "was not issued by wanfed init"},
		{"no certificate", gw1, change(func(q *pb.RenewRequest) { q.Chain = nil }), "missing or too long"},
		{"long chain", gw1, change(func(q *pb.RenewRequest) { q.Chain = slices.Repeat(q.Chain, 5) }), "missing or too long"},
		{"large certificate", gw1, change(func(q *pb.RenewRequest) { q.Chain = [][]byte{make([]byte, maxCert+1)} }), "must have at most"},
		{"large request", gw1, change(func(q *pb.RenewRequest) { q.Csr = make([]byte, maxCSR+1) }), "missing or too long"},
		{"not a certificate", gw1, change(func(q *pb.RenewRequest) { q.Chain = [][]byte{{1}} }), "present certificate"},
		{"empty", gw1, &pb.RenewRequest{}, "missing or too long"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := r.service.Renew(tlsutil.WithPeer(t.Context(), tt.caller), tt.req)
			if tt.want != "" {
				if resp != nil || status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Renew() = %v, %v, want PermissionDenied with %q", resp, err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatalf("Renew() = %v, want nil", err)
			}
			chain, err := tlsutil.ParseCerts(resp.Certificate)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := tlsutil.PeerFromCert(chain[0], tlsutil.DefaultDomain); err != nil || p != gw1 || !tlsutil.Enrolled(chain[0]) {
				t.Errorf("certificate of %v, enrolled %v, %v, want one of %v", p, tlsutil.Enrolled(chain[0]), err, gw1)
			}
		})
	}
	t.Run("key of the present certificate", func(t *testing.T) {
		key := newKey(t)
		pair, err := r.service.cfg.Authority.signPeer(gw1, key.Public())
		text, keyErr := tlsutil.EncodeKey(key)
		if err := errors.Join(err, keyErr, r.gateway.Replace(tlsutil.KeyPair{Cert: pair, Key: text})); err != nil {
			t.Fatal(err)
		}
		_, err = r.service.Renew(tlsutil.WithPeer(t.Context(), gw1), r.request(r.gateway, key))
		if err == nil || !strings.Contains(err.Error(), "a new one is needed") {
			t.Errorf("Renew() = %v, want a refusal of the key", err)
		}
	})
}

// TestRenewal_Expired checks that an expired certificate is not renewed.
func TestRenewal_Expired(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRenewRig(t)
		req := r.request(r.gateway, newKey(t))
		time.Sleep(time.Hour + time.Second)
		_, err := r.service.Renew(tlsutil.WithPeer(t.Context(), gw1), req)
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "expired") {
			t.Errorf("Renew() = %v, want PermissionDenied: expired", err)
		}
	})
}

// TestRenewal_Forwarded checks that a server without the CA finds the one that
// has it, and names the cause otherwise.
func TestRenewal_Forwarded(t *testing.T) {
	r := newRenewRig(t)
	ctx := tlsutil.WithPeer(t.Context(), gw1)
	req := r.request(r.gateway, newKey(t))
	if _, err := r.server("srv3", false, "down", "srv2", "srv1").Renew(ctx, req); err != nil {
		t.Errorf("Renew() at a server without the CA = %v, want nil", err)
	}
	if _, err := r.server("srv3", false, "srv2", "down").Renew(ctx, req); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "down: no path") {
		t.Errorf("Renew() while the server with the CA is down = %v, want Unavailable", err)
	}
	if _, err := r.server("srv3", false, "srv2").Renew(ctx, req); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Renew() without any CA = %v, want FailedPrecondition", err)
	}
	req = proto.CloneOf(req)
	req.Signature[8] ^= 1
	if _, err := r.server("srv3", false, "srv1", "down").Renew(ctx, req); status.Code(err) != codes.PermissionDenied {
		t.Errorf("Renew() with a wrong signature = %v, want the refusal of the server with the CA", err)
	}
}

// TestRenewer checks the times of renewals, and that failed ones are repeated
// and reported.
func TestRenewer(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRenewRig(t)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.renewer().Run(ctx) }()
		first := r.gateway.Leaf().SerialNumber
		time.Sleep(39 * time.Minute)
		synctest.Wait()
		if n := r.count(); n != 0 {
			t.Errorf("%d calls before two thirds of the life, want none", n)
		}
		r.setDown(status.Error(codes.Unavailable, "no server of dc1 that responds has its CA"))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if got := r.gateway.Renewal(); got.Failures < 2 || got.Err == nil || r.gateway.Leaf().SerialNumber.Cmp(first) != 0 {
			t.Errorf("Renewal() without servers = %+v, want failures and the old certificate", got)
		}
		r.setDown(nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if got := r.gateway.Renewal(); got.Count != 1 || got.Err != nil || r.gateway.Leaf().SerialNumber.Cmp(first) == 0 {
			t.Errorf("Renewal() = %+v, want a renewal and a new certificate", got)
		}
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got := r.gateway.Renewal().Count; got < 5 || got > 6 {
			t.Errorf("%d renewals in 3 h of a life of 1 h, want 5 or 6", got)
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// TestRenewer_OtherPKI checks that a certificate of another PKI is left alone.
func TestRenewer_OtherPKI(t *testing.T) {
	testutil.Bubble(t, func(t *testing.T) {
		r := newRenewRig(t)
		r.gateway = r.identity(gw1, false)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		if err := r.renewer().Run(ctx); err != nil || r.count() != 0 {
			t.Errorf("Run() = %v with %d calls, want none", err, r.count())
		}
	})
}

// FuzzRenew checks that no request panics, and that only a request with the
// signature of the present key has a response.
func FuzzRenew(f *testing.F) {
	r := newRenewRig(f)
	req := r.request(r.gateway, newKey(f))
	f.Add(req.Csr, req.Chain[0], req.Signature)
	f.Add(req.Csr, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, csr, cert, signature []byte) {
		ctx := tlsutil.WithPeer(context.Background(), gw1)
		_, err := r.service.Renew(ctx, &pb.RenewRequest{Csr: csr, Chain: [][]byte{cert, req.Chain[1]}, Signature: signature})
		if err == nil && tlsutil.VerifyText(r.gateway.Leaf(), renewText(csr), signature) != nil {
			t.Error("Renew() = nil without a valid signature")
		}
	})
}

// An error for a peer or for a client with a token does not name files of the
// server.
func TestErrors_NameNoFiles(t *testing.T) {
	for _, err := range []error{
		fmt.Errorf("%w certificates: no key in /etc/wanfed/ca", ErrNoCA),
		fmt.Errorf("%w: CA key /etc/wanfed/ca/dc-key.pem is encrypted", errAuthority),
		fmt.Errorf("%w: /usr/local/bin/sign: exit status 1", errSigner),
	} {
		s := &RenewalService{cfg: RenewalConfig{Logger: slog.New(slog.DiscardHandler)}}
		for _, text := range []string{publicText(err), s.cannotSign(tlsutil.Peer{}, err).Error()} {
			if strings.Contains(text, "/") || len(text) < 10 {
				t.Errorf("text for the peer = %q, want no path", text)
			}
		}
	}
}
