// SPDX-License-Identifier: MPL-2.0

package test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/wanfed/wanfed/api"
	"github.com/wanfed/wanfed/api/pb"
	"github.com/wanfed/wanfed/document"
	"github.com/wanfed/wanfed/internal/testutil"
	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

// openConn is a connection that a holder of a certificate keeps open.
type openConn struct {
	name string
	conn io.Closer
	end  chan struct{} // closed when a read fails
	at   time.Time     // of the end
}

func keepOpen(name string, conn io.Closer, read func() error) *openConn {
	h := &openConn{name: name, conn: conn, end: make(chan struct{})}
	go func() {
		for read() == nil {
		}
		h.at = time.Now()
		close(h.end)
	}()
	return h
}

func (h *openConn) open() bool {
	select {
	case <-h.end:
		return false
	default:
		return true
	}
}

// holder opens connections of all kinds with certificates of one CA.
type holder struct {
	t    *testing.T
	l    *loopback
	name string // of its nodes
	ca   *tlstest.CA
	// issue changes the request of each certificate; nil: no change.
	issue func(r *tlsutil.CertRequest)

	mu      sync.Mutex
	serials []string
}

// files returns a new certificate of the holder.
func (h *holder) files(role tlsutil.Role, dc string) tlsutil.Files {
	h.t.Helper()
	r := tlsutil.CertRequest{Role: role, Node: h.name, DC: dc}
	if h.issue != nil {
		h.issue(&r)
	}
	p := h.ca.Issue(h.t, r)
	dir := h.t.TempDir()
	f := tlsutil.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	trust := append(append([]byte{}, h.l.ca.Pair.Cert...), h.ca.Pair.Cert...)
	tlstest.Write(h.t, f, trust, p)
	certs, err := tlsutil.ParseCerts(p.Cert)
	if err != nil {
		h.t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serials = append(h.serials, certs[0].SerialNumber.Text(16))
	return f
}

func (h *holder) dial(role tlsutil.Role, dc, addr, sni, alpn string) *tls.Conn {
	h.t.Helper()
	id, err := tlsutil.Load(h.files(role, dc), tlsutil.DefaultDomain, quiet)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), waitLimit)
	defer cancel()
	c, err := dial(ctx, addr, id.ClientConfig(sni, alpn))
	if err != nil {
		h.t.Fatalf("connection of %s for %s to %s: %v", h.name, alpn, addr, err)
	}
	return c
}

// raw holds a connection on which only the first request is sent.
func (h *holder) raw(role tlsutil.Role, dc, addr, sni, alpn, request string) *openConn {
	h.t.Helper()
	c := h.dial(role, dc, addr, sni, alpn)
	if _, err := io.WriteString(c, request); err != nil {
		h.t.Fatal(err)
	}
	return keepOpen(fmt.Sprintf("%s of %s", alpn, h.name), c, func() error { _, err := c.Read(make([]byte, 4096)); return err })
}

// stream holds a connection with the gRPC stream that open opens. open returns the
// function that receives from it.
func (h *holder) stream(name string, role tlsutil.Role, dc, addr, sni string,
	open func(cc *grpc.ClientConn) (func() error, error)) *openConn {
	h.t.Helper()
	c := h.dial(role, dc, addr, sni, "h2")
	cc, closeAll, err := api.NewConnClient(c)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(closeAll)
	receive, err := open(cc)
	if err != nil {
		h.t.Fatal(err)
	}
	return keepOpen(name+" of "+h.name, c, receive)
}

// all opens connections of all protocols to the server of s, and the same
// through its gateway.
func (h *holder) all(s *site) []*openConn {
	h.t.Helper()
	sni, http := "server."+s.dc+".wanfed", strings.TrimPrefix(s.server.HTTP, "http://")
	blocking := "GET /v1/kv/none?index=1000000&wait=5m HTTP/1.1\r\nHost: localhost\r\n\r\n"
	other := "dc3"
	conns := []*openConn{
		h.raw(tlsutil.RoleServer, s.dc, s.server.Addr, sni, "wanfed/raft/1", ""),
		h.raw(tlsutil.RoleServer, other, s.gateway.WAN, sni, "wanfed/gossip/1", ""),
		h.raw(tlsutil.RoleServer, other, s.gateway.WAN, sni, "wanfed/stream/1", ""),
		h.raw(tlsutil.RoleOperator, s.dc, http, "localhost", "http/1.1", blocking),
		h.raw(tlsutil.RoleOperator, s.dc, http, "localhost", "http/1.1", "GET /v1/status/leader HTTP/1.1\r\nHost: localhost\r\n\r\n"),
	}
	conns = append(conns, h.stream("gRPC watch", tlsutil.RoleOperator, s.dc, s.gateway.WAN, sni,
		func(cc *grpc.ClientConn) (func() error, error) {
			stream, err := pb.NewResourceServiceClient(cc).WatchList(h.t.Context(), &pb.WatchListRequest{Type: document.Type})
			return func() error { _, err := stream.Recv(); return err }, err
		}))
	conns = append(conns, h.stream("xDS", tlsutil.RoleGateway, s.dc, s.server.Addr, sni,
		func(cc *grpc.ClientConn) (func() error, error) {
			stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(h.t.Context())
			return func() error { _, err := stream.Recv(); return err }, err
		}))
	h.t.Cleanup(func() {
		for _, c := range conns {
			_ = c.conn.Close()
			<-c.end
		}
	})
	return conns
}

// awaitClosed fails unless all connections end within limit of the event at.
func awaitClosed(t *testing.T, conns []*openConn, at time.Time, limit time.Duration) {
	t.Helper()
	for _, h := range conns {
		select {
		case <-h.end:
			if took := h.at.Sub(at); took > limit {
				t.Errorf("%s ended after %v, want at most %v", h.name, took, limit)
			}
		case <-time.After(time.Until(at.Add(limit + waitLimit))):
			t.Errorf("%s is open, want it closed within %v", h.name, limit)
		}
	}
}

func wantOpen(t *testing.T, conns []*openConn, when string) {
	t.Helper()
	for _, h := range conns {
		if !h.open() {
			t.Errorf("%s ended %s, want it open", h.name, when)
		}
	}
}

var numberOfList = regexp.MustCompile(`(?m)^wanfed_tls_revocation_list_number\{issuer="[0-9a-f]{32}"\} 1$`)

// TestStolenCertificate holds connections of all protocols to two servers, with
// certificates that expire, that are revoked, and whose CA is removed. The
// connections end, and no others do. It is the attack program "hold".
func TestStolenCertificate(t *testing.T) {
	testutil.Cluster(t)
	l := newLoopback(t)
	l.log = "info"
	oldCA := tlstest.NewCAFrom(t, tlsutil.CARequest{Now: time.Now().AddDate(0, 0, -2)})
	l.bundle = oldCA.Pair.Cert
	dc1 := l.start("dc1", "")
	dc2 := l.start("dc2", "dc1", dc1.gateway.WAN)
	l.federated(dc1, dc2)
	sites := []*site{dc1, dc2}
	honest := &holder{t: t, l: l, name: "honest", ca: l.ca}
	thief := &holder{t: t, l: l, name: "thief", ca: l.ca}
	late := &holder{t: t, l: l, name: "late", ca: oldCA}
	var bystanders, stolen, removed []*openConn
	for _, s := range sites {
		bystanders = append(bystanders, honest.all(s)...)
		stolen = append(stolen, thief.all(s)...)
		removed = append(removed, late.all(s)...)
	}
	operator := honest.files(tlsutil.RoleOperator, "dc1")
	cli := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		cmd := exec.CommandContext(ctx, l.bin, args...)
		cmd.Env = append(os.Environ(), "WANFED_HTTP_ADDR="+strings.Replace(dc1.server.HTTP, "http", "https", 1),
			"WANFED_CA_FILE="+operator.CA, "WANFED_CERT_FILE="+operator.Cert, "WANFED_KEY_FILE="+operator.Key)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("wanfed %s = %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	dir := t.TempDir()
	ca, key := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem")
	if err := l.ca.Pair.Save(ca, key); err != nil {
		t.Fatal(err)
	}
	revoke := func(args ...string) time.Time {
		t.Helper()
		cli(append([]string{"tls", "revoke", "--ca-file", ca, "--ca-key-file", key}, args...)...)
		at := time.Now()
		cli("tls", "publish", filepath.Join(dir, "ca.crl"))
		return at
	}

	t.Run("expired", func(t *testing.T) {
		ends := time.Now().Add(12 * time.Second).Truncate(time.Second)
		expiring := &holder{t: t, l: l, name: "expiring", ca: oldCA, issue: func(r *tlsutil.CertRequest) {
			r.Days, r.Now = 1, ends.AddDate(0, 0, -1)
		}}
		conns := append(expiring.all(dc1), expiring.all(dc2)...)
		wantOpen(t, conns, "before the expiry")
		awaitClosed(t, conns, ends, 5*time.Second)
		wantOpen(t, stolen, "at the expiry of another certificate")
	})
	t.Run("revoked", func(t *testing.T) {
		wantOpen(t, stolen, "before the revocation")
		var args []string
		for _, serial := range thief.serials {
			args = append(args, "--serial", serial)
		}
		at := revoke(args...)
		awaitClosed(t, stolen, at, 5*time.Second)
		for _, s := range sites {
			logOf(s.gateway.Process).await(t, `msg="revocation list in force" .* number=1`)
			// Half of the connections were stolen ones, and as many expired.
			if n := metric(t, s.server.HTTP, `wanfed_tls_ended_total`); int(n) != len(stolen) {
				t.Errorf("wanfed_tls_ended_total of %s = %v, want %d", s.dc, n, len(stolen))
			}
			if lines := metricLines(t, s.admin); !numberOfList.MatchString(lines) {
				t.Errorf("metrics of the gateway of %s = %s, want list 1", s.dc, lines)
			}
		}
	})
	t.Run("older list", func(t *testing.T) {
		b, err := tlsutil.Revoke(tlsutil.RevokeRequest{CA: l.ca.Pair, Names: []string{"other.server.dc9.wanfed"}})
		if err != nil {
			t.Fatal(err)
		}
		old := filepath.Join(t.TempDir(), "old.crl")
		if err := os.WriteFile(old, b.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), l.bin, "tls", "publish", old, "--http-addr",
			strings.Replace(dc1.server.HTTP, "http", "https", 1), "--ca-file", operator.CA, "--cert-file", operator.Cert,
			"--key-file", operator.Key).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "is not newer than list 1, which is in force") {
			t.Errorf("publish of another list 1 = %v: %s, want a refusal", err, out)
		}
	})
	t.Run("CA removed", func(t *testing.T) {
		wantOpen(t, removed, "before the removal")
		at := time.Now()
		for _, f := range l.issued {
			if err := os.WriteFile(f.CA, l.ca.Pair.Cert, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		awaitClosed(t, removed, at, 5*time.Second)
	})
	wantOpen(t, bystanders, "although its certificate is valid")
	l.federated(dc1, dc2)

	// The server of dc2 is revoked: its links and its session end, at the side
	// that dialed too.
	t.Run("server revoked", func(t *testing.T) {
		link := `wanfed_gossip_link_connected{dc="dc2"`
		if !strings.Contains(metricLines(t, dc1.server.HTTP), link) {
			t.Fatal("dc1 has no link to dc2, want one")
		}
		revoke("--name", "srv1.server.dc2.wanfed", "--before", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		log := logOf(dc1.server.Process)
		log.await(t, `msg="connections closed: certificate of the peer is no longer valid" .*peer=srv1.server.dc2`)
		log.await(t, `msg="gossip link down" .*certificate of srv1.server.dc2.wanfed is revoked`)
		log.await(t, `msg="connection refused: client certificate is revoked" .*certificate of srv1.server.dc2`)

		// Commands and sync daemons have the list only as a file.
		list, err := os.ReadFile(filepath.Join(dir, "ca.crl"))
		if err != nil {
			t.Fatal(err)
		}
		address, config := strings.Replace(dc2.server.HTTP, "http", "https", 1), filepath.Join(t.TempDir(), "sync.hcl")
		for role, args := range map[tlsutil.Role][]string{
			tlsutil.RoleOperator: {"status", "--http-addr", address}, tlsutil.RoleSync: {"sync", "--config-file", config},
		} {
			f := honest.files(role, "dc2")
			text := fmt.Sprintf("port = 0\nconsul {\n  address = %q\n}\nwanfed {\n  ca = %q\n  cert = %q\n  key = %q\n}\n",
				address, f.CA, f.Cert, f.Key)
			err := errors.Join(os.WriteFile(tlsutil.RevocationFile(f.CA), list, 0o600),
				os.WriteFile(config, []byte(text), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), l.bin, args...)
			cmd.Dir = t.TempDir()
			cmd.Env = append(os.Environ(), "WANFED_CA_FILE="+f.CA, "WANFED_CERT_FILE="+f.Cert, "WANFED_KEY_FILE="+f.Key)
			path := filepath.Join(t.TempDir(), "log")
			out, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			if cmd.Stdout, cmd.Stderr = out, out; cmd.Start() != nil {
				t.Fatal("cannot start ", args)
			}
			(&logFile{path: path}).await(t, "certificate of srv1.server.dc2.wanfed is revoked")
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	// A gateway leaves a revoked server, even one that sent the list.
	t.Run("server of a gateway revoked", func(t *testing.T) {
		revoke("--name", "server.dc1.wanfed", "--before", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
		log := logOf(dc1.gateway.Process)
		log.await(t, `msg="connections closed: certificate of the peer is no longer valid" .*peer=srv1.server.dc1`)
		log.await(t, `no server of dc1 answers: .*certificate of srv1.server.dc1.wanfed is revoked`)
	})
}
