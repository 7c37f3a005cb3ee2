// SPDX-License-Identifier: MPL-2.0

package tlsutil_test

import (
	"bytes"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/wanfed/wanfed/tlsutil"
	"github.com/wanfed/wanfed/tlsutil/tlstest"
)

func TestLoad(t *testing.T) {
	ca := tlstest.NewCAFrom(t, tlsutil.CARequest{Domain: "Corp.Example"})
	for _, role := range tlsutil.Roles {
		i := ca.Identity(t, role, "n1", "dc1")
		if want := (tlsutil.Peer{Role: role, Node: "n1", DC: "dc1"}); i.Peer() != want {
			t.Errorf("Peer() = %v, want %v", i.Peer(), want)
		}
		if i.Domain() != "corp.example" {
			t.Errorf("Domain() = %q, want corp.example", i.Domain())
		}
		if want := "n1." + string(role) + ".dc1.corp.example"; i.Leaf().DNSNames[0] != want {
			t.Errorf("Leaf() has name %s, want %s", i.Leaf().DNSNames[0], want)
		}
		if err := i.VerifySubject(role, "n1", "dc1"); err != nil {
			t.Errorf("VerifySubject(%v, n1, dc1) = %v, want nil", role, err)
		}
	}
}

func TestLoad_Invalid(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	req := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	old := tlstest.NewCAFrom(t, tlsutil.CARequest{Now: time.Now().AddDate(0, 0, -30)})
	pair := func(change func(*tlsutil.CertRequest)) tlsutil.KeyPair {
		r := req
		change(&r)
		return ca.Issue(t, r)
	}
	good := ca.Issue(t, req)
	expired := req
	expired.Now, expired.Days = time.Now().AddDate(0, 0, -20), 10
	for _, tt := range []struct {
		name   string
		ca     []byte
		p      tlsutil.KeyPair
		change func(f *tlsutil.Files)
		want   string
	}{
		{"good", ca.Pair.Cert, good, nil, ""},
		{"bundle", slices.Concat(other.Pair.Cert, ca.Pair.Cert), good, nil, ""},
		{"text around PEM", slices.Concat([]byte("Subject: CN=x\n"), ca.Pair.Cert), good, nil, ""},
		{"no files", nil, good, func(f *tlsutil.Files) { f.CA, f.Key = "", "" }, "no CA file given; no key file given"},
		{"absent", nil, good, func(f *tlsutil.Files) { f.Cert = "gone.pem" },
			"cert file gone.pem does not exist; check the path"},
		{"directory", nil, good, func(f *tlsutil.Files) { f.Cert = filepath.Dir(f.Cert) }, "is a directory"},
		{"CA no PEM", []byte("hello"), good, nil, "CA ca.pem: is not PEM"},
		{"CA broken", []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), good, nil,
			"CA ca.pem: certificate 1: "},
		{"cert is key", ca.Pair.Cert, tlsutil.KeyPair{Cert: good.Key, Key: good.Key}, nil,
			"cert cert.pem: is a private key, not a certificate; keep it secret"},
		{"key is cert", ca.Pair.Cert, tlsutil.KeyPair{Cert: good.Cert, Key: good.Cert}, nil,
			`key key.pem: has no private key but a PEM block "CERTIFICATE"`},
		{"key of another", ca.Pair.Cert, tlsutil.KeyPair{Cert: good.Cert, Key: ca.Issue(t, req).Key}, nil,
			"key key.pem does not belong to cert cert.pem"},
		{"other CA", other.Pair.Cert, good, nil,
			"cert cert.pem: certificate of srv1.server.dc1.wanfed is signed by another CA (CN=wanfed agent CA"},
		{"expired", old.Pair.Cert, old.Issue(t, expired), nil,
			"cert cert.pem: certificate of srv1.server.dc1.wanfed expired at 20"},
		{"future", ca.Pair.Cert, pair(func(r *tlsutil.CertRequest) { r.Now = time.Now().Add(time.Hour) }), nil,
			"is not valid before 20"},
		{"no node", ca.Pair.Cert, pairOf(t, ca, "server.dc1.wanfed"), nil,
			"make one with: wanfed tls cert create --server (or --gateway) --datacenter DC --node NODE"},
		{"two peers", ca.Pair.Cert, pairOf(t, ca, "a.server.dc1.wanfed", "b.server.dc1.wanfed"), nil,
			"names two peers"},
		{"CA as certificate", ca.Pair.Cert, ca.Pair, nil, "no SAN of the form"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			f := tlsutil.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"),
				Key: filepath.Join(dir, "key.pem")}
			tlstest.Write(t, f, tt.ca, tt.p)
			if tt.change != nil {
				tt.change(&f)
			}
			_, err := tlsutil.Load(f, "wanfed", nil)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Load() = %v, want an error with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("Load() = %q, want an error of one line", err)
			}
		})
	}
	for domain, want := range map[string]string{"": "domain", "consul": "--domain consul"} {
		_, err := tlsutil.Load(ca.Files(t, req.Role, req.Node, req.DC), domain, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load() with domain %q = %v, want an error with %q", domain, err, want)
		}
	}
}

// pairOf returns a certificate of ca with exactly these names.
func pairOf(t *testing.T, ca *tlstest.CA, names ...string) tlsutil.KeyPair {
	t.Helper()
	return ca.Sign(t, x509.Certificate{DNSNames: names})
}

func TestLoad_WarnsOfReadableKey(t *testing.T) {
	f := tlstest.NewCA(t).Files(t, tlsutil.RoleServer, "srv1", "dc1")
	for mode, warned := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o640: true, 0o604: true} {
		if err := os.Chmod(f.Key, mode); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		if _, err := tlsutil.Load(f, "wanfed", slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "private key file can be read by group or others"); got != warned {
			t.Errorf("Load() of a key with mode %04o logs %q, want a warning: %t", mode, log.String(), warned)
		}
		if strings.Count(log.String(), "\n") > 1 || strings.Contains(log.String(), "BEGIN") {
			t.Errorf("Load() of a key with mode %04o logs %q, want at most one line without the key", mode,
				log.String())
		}
	}
}

func TestVerifySubject(t *testing.T) {
	ca := tlstest.NewCA(t)
	i := ca.Identity(t, tlsutil.RoleServer, "srv1", "dc2")
	for _, tt := range []struct {
		role     tlsutil.Role
		node, dc string
		want     string
	}{
		{tlsutil.RoleServer, "srv1", "dc2", ""},
		{tlsutil.RoleServer, "srv2", "dc2",
			`cert cert.pem has no SAN "srv2.server.dc2.wanfed" (it is for node srv1: server/dc2/srv1); ` +
				`make one with: wanfed tls cert create --server --datacenter dc2 --node srv2`},
		{tlsutil.RoleServer, "srv1", "dc1",
			`cert cert.pem has no SAN "srv1.server.dc1.wanfed" (it is for datacenter dc2: server/dc2/srv1); ` +
				`make one with: wanfed tls cert create --server --datacenter dc1 --node srv1`},
		{tlsutil.RoleGateway, "srv1", "dc2",
			`cert cert.pem has no SAN "srv1.gateway.dc2.wanfed" (its role is server: server/dc2/srv1); ` +
				`make one with: wanfed tls cert create --gateway --datacenter dc2 --node srv1`},
	} {
		err := i.VerifySubject(tt.role, tt.node, tt.dc)
		if (err == nil) != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("VerifySubject(%s, %s, %s) = %v, want %s", tt.role, tt.node, tt.dc, err, tt.want)
		}
	}
	f := ca.Files(t, tlsutil.RoleServer, "srv1", "dc2")
	tlstest.Write(t, f, ca.Pair.Cert, pairOf(t, ca, "srv1.server.dc2.wanfed"))
	i, err := tlsutil.Load(f, "wanfed", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `cert cert.pem has no SAN "server.dc2.wanfed"; make one with: wanfed tls cert create --server ` +
		`--datacenter dc2 --node srv1`
	if err := i.VerifySubject(tlsutil.RoleServer, "srv1", "dc2"); err == nil || err.Error() != want {
		t.Errorf("VerifySubject() without the shared name = %v, want %s", err, want)
	}
}

func TestReload_Rejected(t *testing.T) {
	ca := tlstest.NewCA(t)
	req := tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv1", DC: "dc1"}
	f := ca.Files(t, req.Role, req.Node, req.DC)
	i, err := tlsutil.Load(f, "wanfed", nil)
	if err != nil {
		t.Fatal(err)
	}
	first, changed := i.Leaf(), i.Changed()
	for _, tt := range []struct {
		name string
		p    tlsutil.KeyPair
		want string
	}{
		{"another node", ca.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleServer, Node: "srv2", DC: "dc1"}),
			"is now that of server/dc1/srv2, not of server/dc1/srv1"},
		{"another role", ca.Issue(t, tlsutil.CertRequest{Role: tlsutil.RoleGateway, Node: "srv1", DC: "dc1"}),
			"is now that of gateway/dc1/srv1"},
		{"lost any-server name", pairOf(t, ca, "srv1.server.dc1.wanfed"), `has no SAN "server.dc1.wanfed"`},
		{"half of a pair", tlsutil.KeyPair{Cert: ca.Issue(t, req).Cert, Key: ca.Issue(t, req).Key}, "does not belong"},
		{"empty", tlsutil.KeyPair{}, "is not PEM"},
	} {
		tlstest.Write(t, f, ca.Pair.Cert, tt.p)
		if err := i.Reload(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Reload() of %s = %v, want an error with %q", tt.name, err, tt.want)
		}
		if !i.Leaf().Equal(first) {
			t.Fatalf("Leaf() after Reload() of %s = a new certificate, want the old one", tt.name)
		}
	}
	select {
	case <-changed:
		t.Error("channel of Changed() is closed after rejected certificates, want it open")
	default:
	}
	tlstest.Write(t, f, ca.Pair.Cert, ca.Issue(t, req))
	if err := i.Reload(); err != nil || i.Leaf().Equal(first) {
		t.Errorf("Reload() of a valid certificate = %v, new certificate %t, want nil, true", err,
			!i.Leaf().Equal(first))
	}
	select {
	case <-changed:
	default:
		t.Error("channel of Changed() is open after a valid certificate, want it closed")
	}
}
