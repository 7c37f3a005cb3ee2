// SPDX-License-Identifier: MPL-2.0

package tlstest

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/wanfed/wanfed/tlsutil"
)

// CA signs the certificates of one test.
type CA struct {
	Domain string
	Pair   tlsutil.KeyPair
}

// NewCA creates a CA of the default domain.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	return NewCAFrom(tb, tlsutil.CARequest{})
}

// NewCAFrom creates a CA from r.
func NewCAFrom(tb testing.TB, r tlsutil.CARequest) *CA {
	tb.Helper()
	if r.Domain == "" {
		r.Domain = tlsutil.DefaultDomain
	}
	p, err := tlsutil.CreateCA(r)
	if err != nil {
		tb.Fatal(err)
	}
	return &CA{Domain: r.Domain, Pair: p}
}

// Issue creates a certificate from r, with the CA and domain of c.
func (c *CA) Issue(tb testing.TB, r tlsutil.CertRequest) tlsutil.KeyPair {
	tb.Helper()
	r.CA, r.Domain = c.Pair, c.Domain
	p, err := tlsutil.CreateCert(r)
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// Files writes the certificate of the CA, and a new certificate of role, node
// and dc, to a temporary directory.
func (c *CA) Files(tb testing.TB, role tlsutil.Role, node, dc string) tlsutil.Files {
	tb.Helper()
	dir := tb.TempDir()
	f := tlsutil.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"),
		Key: filepath.Join(dir, "key.pem")}
	Write(tb, f, c.Pair.Cert, c.Issue(tb, tlsutil.CertRequest{Role: role, Node: node, DC: dc}))
	return f
}

// Write replaces the files with a certificate of a CA and a pair. It replaces
// each file by a rename.
func Write(tb testing.TB, f tlsutil.Files, ca []byte, p tlsutil.KeyPair) {
	tb.Helper()
	for _, w := range []struct {
		path string
		b    []byte
	}{{f.CA, ca}, {f.Cert, p.Cert}, {f.Key, p.Key}} {
		if err := os.WriteFile(w.path+".new", w.b, 0o600); err != nil {
			tb.Fatal(err)
		}
		if err := os.Rename(w.path+".new", w.path); err != nil {
			tb.Fatal(err)
		}
	}
}

// Identity creates and loads a certificate of role, node and dc.
func (c *CA) Identity(tb testing.TB, role tlsutil.Role, node, dc string) *tlsutil.Identity {
	tb.Helper()
	i, err := tlsutil.Load(c.Files(tb, role, node, dc), c.Domain, slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return i
}
