// SPDX-License-Identifier: MPL-2.0

package enroll

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
	"github.com/wanfed/wanfed/wanfed"
)

// rig is server srv1 of dc1, with a Mux, a Service and both CAs.
type rig struct {
	testing.TB
	addr    string
	root    tlsutil.KeyPair
	store   resource.Backend
	service *Service

	mu      sync.Mutex
	records []error // of the calls, in order
	// cannotRecord is the error of each record.
	cannotRecord error
	taken        map[string]bool
	known        map[string]bool
}

func newRig(t testing.TB) *rig {
	t.Helper()
	root, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	dc1, err := tlsutil.CreateCA(tlsutil.CARequest{DC: "dc1", Parent: root})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, b := range map[string][]byte{RootCert: root.Cert, RootKey: root.Key, DatacenterCert: dc1.Cert, DatacenterKey: dc1.Key} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{TB: t, root: root, store: resourcetest.NewStore(), taken: map[string]bool{"server/srv1": true}, known: map[string]bool{}}
	cfg := Config{
		DC: "dc1", Node: "srv1", Authority: Authority{Dir: dir, DC: "dc1"}, Backend: r.store,
		CAs:        func() ([]byte, error) { return root.Cert, nil },
		Known:      func(dc string) bool { r.mu.Lock(); defer r.mu.Unlock(); return r.known[dc] },
		Taken:      func(role, node string) bool { r.mu.Lock(); defer r.mu.Unlock(); return r.taken[role+"/"+node] },
		Federation: func() (string, []string, []string) { return "dc1", nil, []string{"10.0.0.5:8300"} },
		GossipKey:  func() string { return "a key" },
		Logger:     slog.New(slog.DiscardHandler),
		Record: func(_ context.Context, c *policy.Call, err error) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			if c.Addr == "" || !strings.HasPrefix(c.Method, wanfed.ProtoEnroll) || c.Caller.Role != tlsutil.RoleAnonymous {
				t.Errorf("Record(%+v), want an address, the method and an anonymous caller", c)
			}
			r.records = append(r.records, err)
			return r.cannotRecord
		},
	}
	r.service = NewService(cfg)
	r.addr = serve(t, root.Cert, dc1, r.service)
	return r
}

// serve runs the port of srv1 of dc1, with a certificate of ca, until the end of
// the test.
func serve(t testing.TB, cas []byte, ca tlsutil.KeyPair, s *Service) (addr string) {
	t.Helper()
	pair, err := tlsutil.CreateCert(tlsutil.CertRequest{Role: tlsutil.RoleServer, DC: "dc1", Node: "srv1", CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := tlsutil.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	tlstest.Write(t, files, cas, pair)
	id, err := tlsutil.Load(files, tlsutil.DefaultDomain, nil)
	if err != nil {
		t.Fatal(err)
	}
	mux, err := wanfed.NewMux(wanfed.MuxConfig{Identity: id})
	if err != nil {
		t.Fatal(err)
	}
	mux.HandleAnonymous(wanfed.ProtoEnroll, s.Serve)
	mux.Handle(wanfed.ProtoGRPC, tlsutil.Roles, false, func(_ context.Context, c *tls.Conn, p tlsutil.Peer) {
		t.Errorf("connection of %v with gRPC, want none", p)
		c.Close()
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mux.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
	return ln.Addr().String()
}

// fingerprint returns the SHA-256 of the certificate of a CA.
func fingerprint(t testing.TB, ca []byte) []byte {
	t.Helper()
	certs, err := tlsutil.ParseCerts(ca)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(certs[0].Raw)
	return sum[:]
}

// token stores and returns a token.
func (r *rig) token(dc, role string, ttl time.Duration, uses uint32) *Token {
	r.Helper()
	t, err := New(&pb.EnrollmentTokenText{
		CaSha256: fingerprint(r, r.root.Cert), Addresses: []string{r.addr}, Server: "srv1", ServerDatacenter: "dc1",
		Datacenter: dc, Role: role,
	})
	if err != nil {
		r.Fatal(err)
	}
	res, err := t.Resource(time.Now().Add(ttl), uses)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := r.store.Commit(r.Context(), resource.PutOp(res, "")); err != nil {
		r.Fatal(err)
	}
	return t
}

// stored returns the data of the resource of a token.
func (r *rig) stored(t *Token) *pb.EnrollmentToken {
	r.Helper()
	res, err := r.store.Read(r.Context(), resource.Strong, resource.ID(Type, t.ID()))
	if err != nil {
		r.Fatal(err)
	}
	data, err := resource.Decode[*pb.EnrollmentToken](res)
	if err != nil {
		r.Fatal(err)
	}
	return data
}

// calls returns the number of recorded calls, and the number of refused ones.
func (r *rig) calls() (all, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.records {
		if err != nil {
			refused++
		}
	}
	return len(r.records), refused
}

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (r *rig) redeem(t *Token) (*Result, error) {
	return Redeem(r.Context(), t, Request{Key: newKey(r)})
}
