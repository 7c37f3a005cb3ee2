// SPDX-License-Identifier: MPL-2.0

package gatewayd

import (
	"context"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// certServer is a server that disconnects its clients every 200 ms. It sends
// the serial numbers of the certificates of Envoys to the channel.
func certServer(t *testing.T, id *tlsutil.Identity) (addr string, serials <-chan string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan string)
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(id.ServerConfig("h2"))),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 200 * time.Millisecond, MaxConnectionAgeGrace: time.Millisecond,
		}),
		grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
			p, _ := peer.FromContext(s.Context())
			method, _ := grpc.MethodFromServerStream(s)
			if strings.Contains(method, "AggregatedDiscoveryService") {
				leaf := p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0]
				select {
				case seen <- leaf.SerialNumber.String():
				case <-s.Context().Done():
				}
			}
			return status.Error(codes.Unavailable, "no configuration")
		}))
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ln.Addr().String(), seen
}

// renewal replaces the certificate files of an Envoy, which are those of its
// settings.
type renewal struct {
	*testing.T
	settings EnvoySettings
	files    tlsutil.Files
	serials  <-chan string
}

// newRenewal starts a server with the certificate of server.
func newRenewal(t *testing.T, server *tlsutil.Identity) *renewal {
	t.Helper()
	testutil.Cluster(t)
	s := envoySettings(t)
	s.Envoy = testutil.Envoy(t)
	r := &renewal{T: t, files: tlsutil.Files{CA: s.CAFile, Cert: s.CertFile, Key: s.KeyFile}}
	addr, serials := certServer(t, server)
	s.Servers, s.ShutdownDelay, s.DrainTime = []string{addr}, "0s", "0s"
	s.LAN, s.WAN, s.AdminAddr = freeAddr(t), freeAddr(t), freeAddr(t)
	r.settings, r.serials = s, serials
	return r
}

// issue returns a new certificate of the gateway, and its serial number.
func (r *renewal) issue(ca *tlstest.CA) (p tlsutil.KeyPair, serial string) {
	r.Helper()
	p = ca.Issue(r, tlsutil.CertRequest{Role: tlsutil.RoleGateway, Node: "gw1", DC: "dc1"})
	certs, err := tlsutil.ParseCerts(p.Cert)
	if err != nil {
		r.Fatal(err)
	}
	return p, certs[0].SerialNumber.String()
}

// rename renames a new certificate of ca into place, with the trusted CAs. It
// returns the serial number.
func (r *renewal) rename(ca *tlstest.CA, trusted []byte) (serial string) {
	r.Helper()
	p, serial := r.issue(ca)
	tlstest.Write(r, r.files, trusted, p)
	return serial
}

// want waits until Envoy uses the certificate with a serial number.
func (r *renewal) want(what, serial string) {
	r.Helper()
	timeout := time.After(10 * time.Second)
	for got := ""; ; {
		select {
		case got = <-r.serials:
			if got == serial {
				return
			}
		case <-timeout:
			r.Fatalf("after 10s with %s: certificate of Envoy = %q, want %q", what, got, serial)
		}
	}
}

// Envoy uses a renewed certificate and a renewed CA for its next connection to
// a server, whether the files are renamed into place or written in place.
func TestRunEnvoy_RenewedCertificate(t *testing.T) {
	ca, next := tlstest.NewCA(t), tlstest.NewCA(t)
	serverFiles := ca.Files(t, tlsutil.RoleServer, "srv1", "dc1")
	server, err := tlsutil.Load(serverFiles, tlsutil.DefaultDomain, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newRenewal(t, server)
	serial := r.rename(ca, ca.Pair.Cert)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunEnvoy(ctx, EnvoyConfig{Settings: r.settings, Stdout: t.Output(), Stderr: t.Output()})
	}()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("RunEnvoy() = %v, want nil", err)
		}
	}()
	r.want("the first certificate", serial)

	both := slices.Concat(ca.Pair.Cert, next.Pair.Cert)
	r.want("files renamed into place", r.rename(ca, both))

	pair, serial := r.issue(ca)
	for path, b := range map[string][]byte{r.files.Cert: pair.Cert, r.files.Key: pair.Key} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r.want("files written in place", serial)

	tlstest.Write(t, serverFiles, both, next.Issue(t,
		tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}))
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	r.want("another CA", r.rename(next, next.Pair.Cert))
}

// An Envoy that was started with the bootstrap alone uses a certificate that is
// renamed into place.
func TestBootstrap_RenewedCertificate(t *testing.T) {
	ca := tlstest.NewCA(t)
	r := newRenewal(t, ca.Identity(t, tlsutil.RoleServer, "srv1", "dc1"))
	serial := r.rename(ca, ca.Pair.Cert)
	envoy := exec.Command(r.settings.Envoy, "-c", writeBootstrap(t, r.settings), "--disable-hot-restart", "--log-level", "warn")
	envoy.Stdout, envoy.Stderr = t.Output(), t.Output()
	if err := envoy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = envoy.Process.Kill(); _ = envoy.Wait() }()
	r.want("the first certificate", serial)
	r.want("files renamed into place", r.rename(ca, ca.Pair.Cert))
}

// freeAddr returns an unused address of 127.0.0.1.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}
