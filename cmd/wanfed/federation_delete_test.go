// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/federation"
	"github.com/wanfed/wanfed/policy"
	"github.com/wanfed/wanfed/resource"
	"github.com/wanfed/wanfed/resource/resourcetest"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/wanfed"
)

// pki is a CA with certificates of dc1.
type pki struct {
	dir string
	ca  tlsutil.KeyPair
}

func newPKI(t testing.TB) pki {
	t.Helper()
	ca, err := tlsutil.CreateCA(tlsutil.CARequest{})
	if err != nil {
		t.Fatal(err)
	}
	p := pki{dir: t.TempDir(), ca: ca}
	if err := ca.Save(filepath.Join(p.dir, "ca.pem"), filepath.Join(p.dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	return p
}

// files creates a certificate that is also valid for 127.0.0.1.
func (p pki) files(t testing.TB, role tlsutil.Role, node string) tlsutil.Files {
	t.Helper()
	pair, err := tlsutil.CreateCert(tlsutil.CertRequest{
		Role: role, DC: "dc1", Node: node, CA: p.ca, IPs: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := tlsutil.Files{
		CA:   filepath.Join(p.dir, "ca.pem"),
		Cert: filepath.Join(p.dir, node+".pem"), Key: filepath.Join(p.dir, node+"-key.pem"),
	}
	if err := pair.Save(f.Cert, f.Key); err != nil {
		t.Fatal(err)
	}
	return f
}

func (p pki) identity(t testing.TB, role tlsutil.Role, node string) *tlsutil.Identity {
	t.Helper()
	id, err := tlsutil.Load(p.files(t, role, node), tlsutil.DefaultDomain, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func fileFlags(f tlsutil.Files) []string {
	return []string{"--ca-file", f.CA, "--cert-file", f.Cert, "--key-file", f.Key}
}

// startServer serves the federation service of the primary over TLS, with a
// store in memory. The service sees dc2 as alive. Package test has complete
// servers.
func startServer(t *testing.T, id *tlsutil.Identity) (addr string, store *resourcetest.Store) {
	t.Helper()
	store = resourcetest.NewStore()
	t.Cleanup(func() { store.Close() })
	for _, dc := range []string{"dc2", "dc3"} {
		if _, _, err := federation.Upsert(t.Context(), store, &pb.FederationState{Datacenter: dc}); err != nil {
			t.Fatal(err)
		}
	}
	caller := func(ctx context.Context) (tlsutil.Peer, error) {
		p, _ := peer.FromContext(ctx)
		return tlsutil.PeerFromCert(p.AuthInfo.(credentials.TLSInfo).State.PeerCertificates[0], tlsutil.DefaultDomain)
	}
	engine := policy.New(policy.Config{DC: "dc1"})
	svc, err := federation.NewService(federation.ServiceConfig{
		Decide: func(ctx context.Context, a resource.Access) error {
			p, err := caller(ctx)
			if err != nil {
				return err
			}
			return engine.DecideFor(policy.Caller{Peer: p}, a)
		},
		Backend: store, DC: "dc1", PrimaryDC: "dc1", Logger: slog.New(slog.DiscardHandler),
		Alive:   func(dc string) bool { return dc == "dc2" },
		Connect: func(string) (pb.FederationServiceClient, error) { return nil, net.ErrClosed },
		Peer:    caller,
	})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(id.ServerConfig(wanfed.ProtoGRPC))))
	pb.RegisterFederationServiceServer(srv, svc)
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return ln.Addr().String(), store
}

func TestFederationDelete_Outcomes(t *testing.T) {
	startFakeAPI(t, nil) // clears the environment
	p := newPKI(t)
	addr, store := startServer(t, p.identity(t, tlsutil.RoleServer, "srv1"))
	operator := fileFlags(p.files(t, tlsutil.RoleOperator, "cli"))
	gateway := fileFlags(p.files(t, tlsutil.RoleGateway, "gw1"))
	otherCA := fileFlags(newPKI(t).files(t, tlsutil.RoleOperator, "cli"))
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead.Close() // the address now refuses connections
	for _, tt := range []struct {
		name, args string
		files      []string
		want       string // part of stdout, or of the error
		code       int
	}{
		{"deleted", "dc3 --datacenter dc1 --server " + addr, operator, "deleted the federation state of dc3\n", 0},
		{"no federation state", "dc3 --datacenter dc1 --server " + addr, operator, "dc3 had no federation state\n", 0},
		{"alive", "dc2 --datacenter dc1 --server " + addr, operator,
			"delete federation state of dc2 at " + addr + ": dc2 is alive in the WAN pool and " +
				"would write its federation state again; " +
				"stop its servers first, or delete the state anyway with --force", exitFailure},
		{"gateway's certificate", "dc2 --force --datacenter dc1 --server " + addr, gateway,
			"gateway/dc1/gw1 may not delete federation/v1/FederationState", exitFailure},
		{"another CA's certificate", "dc2 --force --datacenter dc1 --server " + addr, otherCA,
			"is signed by another CA", exitFailure},
		{"name of another datacenter", "dc2 --force --datacenter dc9 --server " + addr, operator,
			"reach server.dc9.wanfed through " + addr, exitFailure},
		{"no server", "dc2 --force --datacenter dc1 --server " + dead.Addr().String(), operator,
			"no server answers at " + dead.Addr().String() + ": connect: connection refused; " +
				"--server must be a server of dc1, or a gateway", exitFailure},
		{"forced", "dc2 --force --datacenter dc1 --server " + addr, operator,
			"deleted the federation state of dc2\n", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := slices.Concat([]string{"federation", "delete"}, strings.Fields(tt.args), tt.files)
			out, code, err := call(t, args...)
			if err != nil {
				out = err.Error()
			}
			if code != tt.code || !strings.Contains(out, tt.want) {
				t.Errorf("exit status = %d, output %s, want %d, %s", code, out, tt.code, tt.want)
			}
		})
	}
	for _, dc := range []string{"dc2", "dc3"} {
		if s, _, err := federation.ReadState(t.Context(), store, dc); err != nil || s != nil {
			t.Errorf("ReadState(%s) = %v, %v, want none", dc, s, err)
		}
	}
}

// An interrupted command ends at once, although the server does not respond.
func TestFederationDelete_Interrupted(t *testing.T) {
	p := newPKI(t)
	ln, err := tls.Listen("tcp", "127.0.0.1:0",
		p.identity(t, tlsutil.RoleServer, "srv1").ServerConfig(wanfed.ProtoGRPC))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Write([]byte{3: 4, 8: 0}) // empty SETTINGS, after the handshake
		c.Read(make([]byte, 1))     // the first byte of gRPC
		cancel()
		io.Copy(io.Discard, c)
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	root := newRoot()
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetArgs(append([]string{"federation", "delete", "dc3", "--datacenter", "dc1", "--server", ln.Addr().String()},
		fileFlags(p.files(t, tlsutil.RoleOperator, "cli"))...))
	err = root.ExecuteContext(ctx)
	const want = "the outcome is unknown: see wanfed federation list"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("ExecuteContext() = %v, want %s", err, want)
	}
}

// TestExplainHTTP_WrongName checks the remedy for an address that is not in the
// certificate of the server.
func TestExplainHTTP_WrongName(t *testing.T) {
	err := explainHTTP(&api.UnreachableError{Addr: "https://10.0.0.7:8501", Err: x509.HostnameError{
		Certificate: &x509.Certificate{DNSNames: []string{"srv1.server.dc1.wanfed"}}, Host: "10.0.0.7",
	}})
	for _, want := range []string{"is not valid for 10.0.0.7; its names: srv1.server.dc1.wanfed",
		"set --tls-server-name to one of these names", "--additional-ipaddress"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("explainHTTP() = %v, want %q", err, want)
		}
	}
}

func TestMembers_OverTLS(t *testing.T) {
	startFakeAPI(t, nil) // clears the environment
	p := newPKI(t)
	id := p.identity(t, tlsutil.RoleServer, "srv1")
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := tlsutil.PeerFromCert(r.TLS.PeerCertificates[0], tlsutil.DefaultDomain)
		if err != nil {
			t.Errorf("PeerFromCert() = %v, want nil", err)
		}
		json.NewEncoder(w).Encode([]api.Member{{Name: string(caller.Role) + "." + caller.DC}})
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // the errors of handshakes are expected
	srv.TLS = id.ServerConfig("http/1.1")
	srv.Listener = tls.NewListener(srv.Listener, srv.TLS)
	srv.Start()
	t.Cleanup(srv.Close)
	url := "https://" + srv.Listener.Addr().String()
	operator := p.files(t, tlsutil.RoleOperator, "cli")
	t.Setenv("WANFED_CA_FILE", operator.CA)
	t.Setenv("WANFED_CERT_FILE", operator.Cert)
	t.Setenv("WANFED_KEY_FILE", operator.Key)
	t.Setenv("WANFED_HTTP_ADDR", url)
	for _, args := range [][]string{{"members"}, {"members", "--tls-server-name", "server.dc1.wanfed"}} {
		out, _, err := call(t, args...)
		if err != nil || !strings.Contains(out, "cli.dc1") {
			t.Errorf("wanfed %q = %s, %v, want cli.dc1", args, out, err)
		}
	}
	otherCA := fileFlags(newPKI(t).files(t, tlsutil.RoleOperator, "cli"))
	wrongName := "no server answers at " + url + " (WANFED_HTTP_ADDR): peer failed, or has no certificate for the requested name"
	for want, args := range map[string][]string{
		wrongName: {"--tls-server-name", "server.dc9.wanfed"},
		"set --ca-file (WANFED_CA_FILE) to the CA of its certificate": otherCA,
	} {
		_, _, err := call(t, append([]string{"members"}, args...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("wanfed members %q = %v, want %s", args, err, want)
		}
	}
}
